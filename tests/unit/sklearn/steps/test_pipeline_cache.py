"""Transformers that candidates share."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler, TargetEncoder
from sklearn.svm import SVC

from dasktune.sklearn.steps.pipeline_cache import (
    FittedTransformers,
    TransformerCache,
    apply_transformers,
    fit_transformers,
    refit_transform,
    route_fit_params,
    shared_cache,
    transformers_key,
)


def test_two_threads_that_want_the_same_head_make_it_once():
    heads, made, both = TransformerCache(2), [], threading.Barrier(2)

    def make():
        made.append(1)
        return FittedTransformers([], None, None)

    def ask():
        both.wait()
        heads.get("a", make)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_only_the_last_heads_are_kept():
    heads = TransformerCache(2)
    first = heads.get("a", lambda: FittedTransformers([], 1, None))
    heads.get("b", lambda: FittedTransformers([], 2, None))
    assert heads.get("a", lambda: FittedTransformers([], 3, None)) is first
    heads.get("c", lambda: FittedTransformers([], 4, None))
    assert heads.get("a", lambda: FittedTransformers([], 5, None)) is first
    assert heads.get("b", lambda: FittedTransformers([], 6, None)).train == 6


def test_heads_go_with_the_search():
    held = shared_cache("one", 2)
    assert shared_cache("one", 2) is held
    held.get("a", lambda: FittedTransformers([], 1, None))
    del held
    assert shared_cache("one", 2).get("a", lambda: FittedTransformers([], 2, None)).train == 2


def test_equal_transformers_have_one_name():
    one, other = [("s", StandardScaler())], [("s", StandardScaler())]
    assert transformers_key(one) == transformers_key(other)
    assert transformers_key(one) != transformers_key([("s", StandardScaler(with_mean=False))])
    assert transformers_key([("s", threading.Lock())]) is None


def test_metadata_goes_to_the_step_that_it_names():
    pipeline = Pipeline([("scale", StandardScaler()), ("skip", "passthrough"), ("svc", SVC())])
    X, weights = np.arange(6.0).reshape(3, 2), np.ones(3)
    params = route_fit_params(pipeline, {"scale__sample_weight": weights, "svc__sample_weight": weights})
    made, steps = fit_transformers(pipeline.steps[:-1], X, None, params)
    np.testing.assert_allclose(made.mean(axis=0), 0.0)
    assert steps[0][1].n_samples_seen_ == 3
    assert params["svc"].fit == {"sample_weight": weights}
    with pytest.raises(ValueError, match="fit does not accept the weight parameter"):
        route_fit_params(pipeline, {"weight": weights})


KINDS = np.array([["a", "b", "c", "d"][n * n % 7 % 4] for n in range(80)], dtype=object)
TARGETS = np.array([n % 3 % 2 for n in range(80)])


class LeaveOneOut(TransformerMixin, BaseEstimator):
    """Encodes samples as the mean target, and each training sample without its own target."""

    def fit(self, X, y):
        self.mean_ = y.mean()
        return self

    def transform(self, X):
        return np.full((len(X), 1), self.mean_)

    def fit_transform(self, X, y):
        self.fit(X, y)
        return ((y.sum() - y) / (len(y) - 1))[:, np.newaxis]


def encoders():
    encoder = TargetEncoder(random_state=0)
    return [encoder, make_column_transformer((encoder, [0])), LeaveOneOut()]


# Older versions need `random_state` to draw the same folds each time.
@pytest.mark.filterwarnings("ignore:`TargetEncoder:FutureWarning")
@pytest.mark.parametrize("encoder", encoders())
def test_what_encodes_targets_makes_the_same_of_the_samples_it_was_fitted_on_again(encoder):
    X = KINDS[:, np.newaxis]
    pipeline = make_pipeline(encoder, StandardScaler(), SVC())
    params = route_fit_params(pipeline, {})
    made, fitted = fit_transformers(pipeline.steps[:-1], X, TARGETS, params)
    np.testing.assert_array_equal(refit_transform(fitted, X, TARGETS, params), made)
    assert not np.allclose(apply_transformers(fitted, X, params), made)


def test_a_fit_that_no_clone_repeats_is_not_repeated():
    class Numbered(LeaveOneOut):
        numbers = iter(range(9))

        def fit(self, X, y):
            self.mean_ = next(self.numbers)
            return self

        def fit_transform(self, X, y):
            return self.fit(X, y).transform(X)

    made, fitted = fit_transformers([("one", Numbered())], KINDS, TARGETS, {"one": {}})
    np.testing.assert_array_equal(refit_transform(fitted, KINDS, TARGETS, {"one": {}}), made)
