"""Steps of `TuneSearchCV` after which nothing is decided."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.svm import SVC

import dasktune as tune
from dasktune.schedulers import (
    AsyncHyperBandScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PromotingASHAScheduler,
    SuccessiveHalvingScheduler,
)
from dasktune.sklearn import TuneSearchCV
from dasktune.sklearn.searches import tune_base
from dasktune.sklearn.steps import candidate_trial
from dasktune.sklearn.steps.candidate import CandidateJob
from dasktune.sklearn.steps.candidate_trial import CandidateTrial, last_scored
from dasktune.trainable import with_parameters

X, y = load_iris(return_X_y=True)
GAINS = {"gain": list(range(8, 0, -1))}


class Counter(ClassifierMixin, BaseEstimator):
    """Counts what is asked of it; its score is the sum of its gains, one for each call."""

    scored: ClassVar[list] = []

    def __init__(self, gain=1.0):
        self.gain = gain

    def fit(self, X, y):
        raise NotImplementedError

    def partial_fit(self, X, y, classes=None):
        self.classes_ = classes
        self.gains_ = [*getattr(self, "gains_", ()), self.gain]
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def score(self, X, y):
        Counter.scored.append(len(self.gains_))
        return float(sum(self.gains_))


@pytest.fixture(autouse=True)
def _nothing_scored():
    Counter.scored = []


def asha(max_t=8):
    return AsyncHyperBandScheduler(max_t=max_t, reduction_factor=2)


def search(estimator=None, space=GAINS, **options):
    defaults = {"n_iter": 8, "cv": 2, "random_state": 0, "scheduler": asha(), "max_iters": 8}
    estimator = Counter() if estimator is None else estimator
    return TuneSearchCV(estimator, space, **{**defaults, **options})


def scored_steps(found):
    return [
        [row["training_iteration"] for row in result.history if "score" in row] for result in found.results_
    ]


def test_only_what_is_decided_about_is_scored():
    found = search().fit(X, y)
    assert all(steps == [1, 2, 4, 8][: len(steps)] for steps in scored_steps(found))
    assert set(Counter.scored) == {1, 2, 4, 8}
    assert [len(one.history) for one in found.results_] == list(found.cv_results_["training_iteration"])


@pytest.mark.parametrize(
    ("estimator", "space", "options"),
    [
        (SGDClassifier(random_state=0), {"alpha": np.logspace(-5, 1, 8)}, {}),
        (LogisticRegression(), {"C": np.logspace(-3, 3, 8)}, {}),
        (RandomForestClassifier(random_state=0), {"max_depth": [1, 2, 3, None]}, {"n_iter": 4}),
        (
            HistGradientBoostingClassifier(random_state=0, max_features=0.5),
            {"learning_rate": [0.01, 0.3]},
            {"n_iter": 2, "iters_per_step": 2},
        ),
        (SVC(), {"C": np.logspace(-3, 3, 8)}, {"budget": "n_samples"}),
        (Counter(), GAINS, {"scheduler": HyperBandScheduler(max_t=8)}),
        (Counter(), GAINS, {"scheduler": SuccessiveHalvingScheduler(max_t=8)}),
        (Counter(), GAINS, {"scheduler": PromotingASHAScheduler(max_t=8)}),
    ],
)
def test_decisions_and_scores_are_those_of_steps_by_themselves(estimator, space, options):
    lazy = search(estimator, space, **options).fit(X, y)
    each = search(estimator, space, checkpoint_frequency=1, **options).fit(X, y)
    assert lazy.budget_ == each.budget_
    for name in ("mean_test_score", "training_iteration", "rank_test_score"):
        np.testing.assert_array_equal(lazy.cv_results_[name], each.cv_results_[name])
    np.testing.assert_array_equal(lazy.stopped_early_, each.stopped_early_)
    assert sum(map(len, scored_steps(lazy))) < sum(map(len, scored_steps(each)))
    assert sum(map(len, scored_steps(each))) == each.cv_results_["training_iteration"].sum()


@pytest.mark.parametrize(
    ("library", "name", "more"),
    [
        ("xgboost", "XGBClassifier", {"n_jobs": 1}),
        ("lightgbm", "LGBMClassifier", {"n_jobs": 1, "verbose": -1, "min_child_samples": 5}),
        (
            "catboost",
            "CatBoostClassifier",
            {"thread_count": 1, "verbose": False, "allow_writing_files": False, "depth": 2},
        ),
    ],
)
def test_boosters_add_the_rounds_of_several_steps_at_once(library, name, more):
    model = getattr(pytest.importorskip(library), name)(**more)
    options = {"n_iter": 2, "iters_per_step": 2, "scoring": "neg_log_loss"}
    space = {"learning_rate": [0.1, 0.3]}
    lazy = search(model, space, **options).fit(X, y)
    each = search(model, space, checkpoint_frequency=1, **options).fit(X, y)
    assert lazy.budget_ == each.budget_ == "boosting"
    assert max(scored_steps(lazy), key=len) == [1, 2, 4, 8]
    # They round to single precision where they resume.
    name = "mean_test_score"
    np.testing.assert_allclose(lazy.cv_results_[name], each.cv_results_[name], rtol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"search_alg": tune.search.BasicVariantGenerator(), "space": {"gain": tune.choice([1, 2])}},
        {"stop": {"mean_test_score": 1e9}},
        {"callbacks": [tune.Callback()]},
        {"scheduler": None},
        {"scheduler": MedianStoppingRule(time_attr="training_iteration", grace_period=5)},
        {
            "scheduler": PopulationBasedTraining(
                perturbation_interval=3, hyperparam_mutations={"gain": [1, 2]}
            ),
            "max_iters": 5,
        },
        {"checkpoint_frequency": 1},
    ],
)
def test_where_others_may_look_at_the_scores_each_step_has_one(options):
    found = search(n_iter=2, **options).fit(X, y)
    for steps, result in zip(scored_steps(found), found.results_, strict=True):
        assert steps == [row["training_iteration"] for row in result.history]


def test_what_takes_long_is_not_put_off(monkeypatch):
    monkeypatch.setattr(tune_base, "_MAX_DEFERRED_SECONDS", 0.0)
    found = search(n_iter=2).fit(X, y)
    assert max(scored_steps(found), key=len) == list(range(1, 9))


def test_little_is_put_off_where_there_is_little_time(monkeypatch):
    backlogs = []

    class Watched(CandidateTrial):
        def setup(self, config, job, **bound):
            backlogs.append(job.max_deferred_seconds)
            super().setup(config, job, **bound)

    monkeypatch.setattr(tune_base, "CandidateTrial", Watched)
    for budget in (None, 20, timedelta(seconds=1e6)):
        search(n_iter=1, time_budget_s=budget).fit(X, y)
    assert backlogs == [5.0, 2.0, 5.0]


def test_what_is_saved_between_is_what_was_asked_for():
    found = search(checkpoint_frequency=3).fit(X, y)
    assert max(scored_steps(found), key=len) == [1, 2, 3, 4, 6, 8]


def test_candidates_that_take_long_are_saved_on_the_way(monkeypatch):
    monkeypatch.setattr(candidate_trial, "_SAVE_EVERY", -1.0)
    found = search(n_iter=2).fit(X, y)
    longest = max(found.results_, key=lambda one: len(one.history))
    due = [row["training_iteration"] for row in longest.history if row.get("should_checkpoint")]
    assert due == [1, 2, 4]


def candidate(gain):
    job = CandidateJob(
        estimator=Counter(),
        scorer=lambda model, X, y: model.score(X, y),
        error_score=np.nan,
        return_train_score=False,
        verbose=0,
        n_splits=1,
        budget="partial_fit",
        max_steps=8,
        classes=np.unique(y),
        defer_steps=True,
        max_deferred_seconds=60.0,
        token=f"test-{gain}",
    )
    rows = np.arange(len(y))
    bound = with_parameters(CandidateTrial, job=job, X=X, y=y, metadata=({}, {}), splits=[(rows, rows)])
    made = bound({"gain": gain})
    made.tell_milestones(lambda result: False)
    return made


def test_what_was_put_off_was_put_off_with_the_parameters_of_then():
    one = candidate(1.0)
    for _ in range(3):
        one.train()
    saved = one.save_checkpoint("")
    other = candidate(100.0)
    other.load_checkpoint(saved)
    other.tell_milestones(lambda result: True)
    assert other.step()["score"] == 1 + 1 + 1 + 100


def test_a_candidate_that_ends_between_has_the_scores_it_had_last():
    rows = [{"outcomes": [], "training_iteration": 2}, {"training_iteration": 3}]
    assert last_scored(SimpleNamespace(history=rows)) is rows[0]
    assert last_scored(SimpleNamespace(history=rows[1:])) == {}
