"""A search that `time_budget_s` ends before all of its candidates were scored."""

from __future__ import annotations

import warnings
from typing import ClassVar

import pytest

pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris

from dasktune.errors import ConfigError
from dasktune.sklearn import TuneSearchCV
from dasktune.sklearn.fits import search_experiment

X, y = load_iris(return_X_y=True)


class Slow(ClassifierMixin, BaseEstimator):
    """Takes as many seconds for a fit as its parameter says, on a clock of its own."""

    now: ClassVar[float] = 0.0

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def fit(self, X, y):
        self.classes_ = [0, 1, 2]
        Slow.now += self.seconds
        return self

    def score(self, X, y):
        return 1.0 - self.seconds / 1000


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(search_experiment, "perf_counter", lambda: Slow.now)


def search(seconds, **options):
    """Search candidates that take this long, of which the time budget of 15 s allows some."""
    defaults = {"n_iter": len(seconds), "cv": 2, "budget": "folds", "time_budget_s": 15.0, "random_state": 0}
    return TuneSearchCV(Slow(), {"seconds": seconds}, **{**defaults, **options})


def test_a_search_that_scored_no_candidate_presents_none_as_the_best():
    found = search([20.0, 30.0])
    rule = "long enough to score a candidate on all splits, and it ended before the first of 2"
    with pytest.raises(ConfigError, match=rf"^time_budget_s must be {rule}, got 15.0"):
        found.fit(X, y)
    assert not hasattr(found, "best_estimator_")


def test_a_search_that_scored_some_candidates_says_how_many():
    found = search([6.0] * 3)  # both splits of the first candidate, and one of the second
    with pytest.warns(UserWarning, match=r"^1 of 3 candidates were scored when time_budget_s=15.0") as seen:
        found.fit(X, y)
    assert [one.filename for one in seen] == [__file__]
    assert list(found.cv_results_["rank_test_score"]).count(1) == 1
    assert found.best_index_ == 0


def test_a_search_with_enough_time_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = search([1.0, 2.0]).fit(X, y)
    assert found.n_trials_ == 2


def test_a_search_without_a_number_of_candidates_ends_with_the_time_and_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Two candidates, and one split of the third.
        found = search([3.0], n_iter=-1).fit(X, y)
    assert found.n_trials_ == 3
    assert list(found.cv_results_["rank_test_score"]).count(1) == 2
    with pytest.raises(ConfigError, match="before the first of"):
        search([20.0], n_iter=-1).fit(X, y)


def test_a_candidate_that_never_began_is_pending():
    with pytest.warns(UserWarning, match="candidates were scored"):
        found = search([6.0] * 3, scheduler=True).fit(X, y)
    assert list(found.cv_results_["status"]) == ["TERMINATED", "TERMINATED", "PENDING"]
