"""Transformers that candidates share."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from dasktune.sklearn.heads import Head, Heads, fit_head, head_key, heads_of, params_of_steps


def test_two_threads_that_want_the_same_head_make_it_once():
    heads, made, both = Heads(2), [], threading.Barrier(2)

    def make():
        made.append(1)
        return Head([], None, None)

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
    heads = Heads(2)
    first = heads.get("a", lambda: Head([], 1, None))
    heads.get("b", lambda: Head([], 2, None))
    assert heads.get("a", lambda: Head([], 3, None)) is first
    heads.get("c", lambda: Head([], 4, None))
    assert heads.get("a", lambda: Head([], 5, None)) is first
    assert heads.get("b", lambda: Head([], 6, None)).X_train == 6


def test_heads_go_with_the_search():
    held = heads_of("one", 2)
    assert heads_of("one", 2) is held
    held.get("a", lambda: Head([], 1, None))
    del held
    assert heads_of("one", 2).get("a", lambda: Head([], 2, None)).X_train == 2


def test_equal_transformers_have_one_name():
    one, other = [("s", StandardScaler())], [("s", StandardScaler())]
    assert head_key(one) == head_key(other)
    assert head_key(one) != head_key([("s", StandardScaler(with_mean=False))])
    assert head_key([("s", threading.Lock())]) is None


def test_metadata_goes_to_the_step_that_it_names():
    pipeline = Pipeline([("scale", StandardScaler()), ("skip", "passthrough"), ("svc", SVC())])
    X, weights = np.arange(6.0).reshape(3, 2), np.ones(3)
    params = params_of_steps(
        pipeline, {"scale__sample_weight": weights, "svc__sample_weight": weights}
    )
    made, steps = fit_head(pipeline.steps[:-1], X, None, params)
    np.testing.assert_allclose(made.mean(axis=0), 0.0)
    assert steps[0][1].n_samples_seen_ == 3
    assert params["svc"].fit == {"sample_weight": weights}
    with pytest.raises(ValueError, match="fit does not accept the weight parameter"):
        params_of_steps(pipeline, {"weight": weights})
