"""Estimators, transformers and scorers that change their samples in place."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")
pytest.importorskip("pandas")

import pandas as pd
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dasktune.sklearn import IncrementalSearchCV, TuneSearchCV


def double(X):
    X *= 2
    return X


class Doubling(BaseEstimator):
    """Doubles its samples in place; its score is the sum of all that it has seen."""

    def __init__(self, rank=0):
        self.rank = rank

    def partial_fit(self, X, y, sample_weight=None):
        self.seen_ = getattr(self, "seen_", 0.0) + self._double(X, y)
        if sample_weight is not None:
            self.weights_ = getattr(self, "weights_", 0.0) + np.sum(double(sample_weight)) / 2
        return self

    fit = partial_fit

    def score(self, X, y, sample_weight=None):
        return self.seen_ + self._double(X, y)

    def _double(self, X, y):
        total = np.sum(X.sum()) + np.sum(y)
        double(X)
        double(y)
        return total


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, pd.DataFrame])
@pytest.mark.parametrize(
    ("transformers", "scoring", "seen"),
    [
        ([], None, 4 + 4),
        ([FunctionTransformer()], None, 4 + 4),
        ([FunctionTransformer(double)], lambda model, X, y: model.score(X, y), 2 * 4 + 4),
    ],
)
def test_each_fit_and_score_gets_the_samples_as_they_are(transformers, scoring, seen, kind):
    estimator = make_pipeline(*transformers, Doubling()) if transformers else Doubling()
    space = {"doubling__rank" if transformers else "rank": [0, 1, 2]}
    options = {"n_iter": 3, "cv": 2, "max_iters": 3, "iters_per_step": 2, "return_train_score": True}
    search = TuneSearchCV(estimator, space, budget="partial_fit", scoring=scoring, **options)
    search.fit(kind(np.ones((8, 1))), np.ones(8))
    # Six fits and a score see half of the samples each, and the refit sees all of them.
    assert list(search.cv_results_["mean_test_score"]) == [7 * seen] * 3
    assert list(search.cv_results_["mean_train_score"]) == [7 * seen] * 3
    best = search.best_estimator_[-1] if transformers else search.best_estimator_
    assert best.seen_ == 6 * 2 * seen


@pytest.mark.parametrize("kind", [np.asarray, pd.Series])
@pytest.mark.parametrize("name", ["", "doubling"])
def test_each_fit_gets_the_weights_of_its_samples_as_they_are(name, kind):
    estimator = make_pipeline(FunctionTransformer(), Doubling()) if name else Doubling()
    prefix, weights = f"{name}__" if name else "", kind(np.ones(8))
    options = {"n_iter": 1, "cv": 2, "max_iters": 3, "iters_per_step": 2}
    search = TuneSearchCV(estimator, {f"{prefix}rank": [0]}, budget="partial_fit", **options)
    search.fit(np.ones((8, 1)), np.ones(8), **{f"{prefix}sample_weight": weights})
    best = search.best_estimator_[-1] if name else search.best_estimator_
    assert best.weights_ == 6 * 8
    assert list(weights) == [1] * 8


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, pd.DataFrame])
def test_models_that_share_blocks_get_the_samples_as_they_are(kind):
    options = {"decay_rate": None, "test_size": 0.5, "max_iter": 3, "random_state": 0}
    search = IncrementalSearchCV(Doubling(), {"rank": [0, 1, 2]}, 3, **options)
    search.fit(kind(np.ones((8, 1))), np.ones(8))
    scores = {(row["partial_fit_calls"], row["score"]) for row in search.history_}
    assert scores == {(1, 2 * 8), (2, 3 * 8), (3, 4 * 8)}
