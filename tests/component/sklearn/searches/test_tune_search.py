"""`TuneSearchCV` in this process."""

from __future__ import annotations

import asyncio
import pickle
import re
import warnings
from threading import Lock
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

import sklearn
from scipy import stats
from sklearn import model_selection
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import Lasso, LogisticRegression, SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining
from dasktune.search import BasicVariantGenerator
from dasktune.sklearn import TuneSearchCV
from dasktune.sklearn.steps import candidate
from dasktune.sklearn.steps.pipeline_cache import transformers_key
from dasktune.sklearn.steps.training_modes import TrainingData, choose_mode
from dasktune.stopper import Stopper
from dasktune.storage.experiment.tuner_json import SETUP_FILE

X, y = load_iris(return_X_y=True)
ALPHA = {"alpha": stats.loguniform(1e-4, 1)}
EXTRA = ["training_iteration", "trial_id", "status", "time_total_s"]


def search(estimator=None, space=None, **options):
    defaults = {"n_iter": 3, "cv": 2, "random_state": 0}
    estimator = SGDClassifier(random_state=0) if estimator is None else estimator
    return TuneSearchCV(estimator, space or ALPHA, **{**defaults, **options})


class Counter(ClassifierMixin, BaseEstimator):
    """Counts its calls; its score is its parameter `gain`, times the calls."""

    calls: ClassVar[list] = []

    def __init__(self, gain=1.0, fails_at=None, times=10**9):
        self.gain = gain
        self.fails_at = fails_at
        self.times = times

    def fit(self, X, y):
        raise NotImplementedError

    def partial_fit(self, X, y, classes=None):
        self.classes_ = classes
        self.calls_ = getattr(self, "calls_", 0) + 1
        Counter.calls.append((self.gain, self.calls_))
        if self.calls_ == self.fails_at and len(Counter.calls) <= self.times:
            raise ZeroDivisionError("mine")
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def score(self, X, y):
        return self.gain * self.calls_


class MaximumTrialStopper(Stopper):
    """Ends the search at the first result of the third trial."""

    def __init__(self):
        self.seen = set()

    def __call__(self, trial_id, result):
        self.seen.add(trial_id)
        return False

    def stop_all(self):
        return len(self.seen) >= 3


@pytest.fixture(autouse=True)
def _no_calls():
    Counter.calls = []


# Without early stopping


def test_without_early_stopping_it_is_the_random_search_of_scikit_learn():
    space = {"C": stats.loguniform(1e-2, 1e2), "kernel": ["rbf", "linear"]}
    options = {"n_iter": 3, "cv": 3, "random_state": 7, "return_train_score": True}
    theirs = model_selection.RandomizedSearchCV(SVC(), space, **options).fit(X, y)
    ours = TuneSearchCV(SVC(), space, **options).fit(X, y)
    assert list(ours.cv_results_) == list(theirs.cv_results_)
    for key, value in theirs.cv_results_.items():
        if not key.endswith("_time"):
            np.testing.assert_array_equal(ours.cv_results_[key], value)
    assert ours.best_params_ == theirs.best_params_
    assert ours.budget_ == "folds"
    assert not hasattr(ours, "best_iteration_")


def test_several_metrics_are_all_there():
    found = search(scoring=["accuracy", "f1_macro"], refit="f1_macro", max_iters=2).fit(X, y)
    assert found.multimetric_
    assert found.best_score_ == found.cv_results_["mean_test_f1_macro"].max()
    assert set(found.scorer_) == {"accuracy", "f1_macro"}


def test_a_function_that_returns_several_metrics_needs_one_that_decides():
    def scores(estimator, X, y):
        return {"a": 1.0, "b": estimator.score(X, y)}

    found = search(scoring=scores, refit="b", max_iters=2).fit(X, y)
    assert found.best_score_ == found.cv_results_["mean_test_b"].max()
    with pytest.raises(ValueError, match="For multi-metric scoring"):
        search(scoring=scores).fit(X, y)


def two_scores(estimator, X, y):
    """Return two metrics that prefer opposite candidates."""
    return {"gain": estimator.score(X, y), "loss": -estimator.score(X, y)}


TWO = {
    "dict": {
        "gain": lambda estimator, X, y: estimator.score(X, y),
        "loss": lambda estimator, X, y: -estimator.score(X, y),
    },
    "function": two_scores,
}


def best_loss(results):
    return int(np.argmax(results["mean_test_loss"]))


@pytest.mark.parametrize("scoring", TWO)
@pytest.mark.parametrize(("metric", "reached"), [("gain", [4, 1]), ("loss", [4, 4])])
@pytest.mark.parametrize("refit", [False, best_loss, "loss"], ids=["none", "function", "name"])
def test_with_several_metrics_a_scheduler_judges_by_the_one_that_is_named(refit, metric, reached, scoring):
    found = search(
        Counter(),
        {"gain": [2.0, 1.0]},
        n_iter=2,
        random_state=1,
        scoring=TWO[scoring],
        metric=metric,
        refit=refit,
        max_iters=4,
        scheduler=AsyncHyperBandScheduler(max_t=4, grace_period=1, reduction_factor=2),
    ).fit(X, y)
    assert list(found.cv_results_["param_gain"]) == [2.0, 1.0]
    assert list(found.cv_results_["training_iteration"]) == reached
    assert found.multimetric_
    assert hasattr(found, "best_index_") == bool(refit)
    assert hasattr(found, "best_estimator_") == bool(refit)


@pytest.mark.parametrize("options", [{"scheduler": "asha"}, {"search_alg": "random"}], ids=str)
@pytest.mark.parametrize(
    ("scoring", "names"),
    [
        (["accuracy", "f1_macro"], ["accuracy", "f1_macro"]),
        (TWO["dict"], ["gain", "loss"]),
        (two_scores, ["gain", "loss"]),
    ],
    ids=["list", "dict", "function"],
)
@pytest.mark.parametrize(("metric", "refit"), [(None, False), (None, best_loss), ("other", False)])
def test_with_several_metrics_one_must_be_named(metric, refit, scoring, names, options):
    match = re.escape(f"metric must be one of {names}, with several metrics, got {metric!r}. Give metric=")
    with pytest.raises(ConfigError, match=match):
        search(scoring=scoring, metric=metric, refit=refit, max_iters=2, **options).fit(X, y)


def test_without_a_scheduler_or_searcher_none_of_several_metrics_must_be_named():
    assert not hasattr(search(scoring=["accuracy", "f1_macro"], refit=False).fit(X, y), "best_index_")


def test_a_metric_is_refused_where_there_is_only_one():
    with pytest.raises(ConfigError, match="metric must be None, unless scoring gives several metrics"):
        search(scoring="accuracy", metric="accuracy").fit(X, y)


def test_a_fold_that_fails_has_the_error_score_for_each_metric_of_a_function():
    class Picky(Fixed):
        def fit(self, X, y):
            if len(set(y)) < 3:
                raise ValueError("too few classes")
            return super().fit(X, y)

    def scores(estimator, X, y):
        return {"a": 1.0, "b": estimator.score(X, y)}

    rows = np.arange(len(y))
    splits = [(rows[:100], rows), (rows, rows)]
    with pytest.warns(FitFailedWarning, match="1 fits failed out of a total of 2"):
        found = search(
            Picky(),
            {"gain": [1.0]},
            n_iter=1,
            scoring=scores,
            refit="b",
            cv=splits,
            error_score=0.0,
        ).fit(X, y)
    assert found.cv_results_["split0_test_a"] == 0.0
    assert found.cv_results_["mean_test_b"] == 0.5


# Step by step


@pytest.mark.parametrize(
    ("estimator", "space", "budget"),
    [
        (SGDClassifier(random_state=0), ALPHA, "partial_fit"),
        (LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, "max_iter"),
        (RandomForestClassifier(random_state=0), {"max_depth": [1, 2, 3]}, "n_estimators"),
        (SVC(), {"C": [0.1, 1.0, 10.0]}, "folds"),
    ],
)
def test_each_estimator_is_trained_by_the_first_way_that_it_allows(estimator, space, budget):
    found = search(estimator, space, max_iters=2).fit(X, y)
    assert found.budget_ == budget
    assert list(found.cv_results_["training_iteration"]) == [2, 2, 2] if budget != "folds" else True


def test_steps_of_a_forest_add_trees_and_the_refit_has_as_many():
    found = search(
        RandomForestRegressor(random_state=0),
        {"max_depth": [2]},
        n_iter=1,
        max_iters=3,
        iters_per_step=2,
    ).fit(X, y)
    assert found.best_iteration_ == 3
    assert len(found.best_estimator_.estimators_) == 6
    whole = model_selection.cross_val_score(RandomForestRegressor(6, max_depth=2, random_state=0), X, y, cv=2)
    assert found.best_score_ == pytest.approx(whole.mean())


def test_histogram_boosting_counts_all_iterations():
    model = HistGradientBoostingRegressor(early_stopping=False, random_state=0)
    found = search(model, {"max_depth": [2]}, n_iter=1, max_iters=2, iters_per_step=2).fit(X, y)
    assert found.budget_ == "max_iter"
    assert found.best_estimator_.n_iter_ == 4


def test_a_warm_start_does_as_many_iterations_in_steps_as_at_once():
    # On columns that say much the same it takes its time.
    columns = np.vander(X[:, 2] / 7, 6, increasing=True)
    model = Lasso(tol=0.0)
    options = {"n_iter": 1, "max_iters": 3, "iters_per_step": 5}
    found = search(model, {"alpha": [1e-4]}, **options).fit(columns, y)
    assert found.budget_ == "max_iter"
    assert found.best_estimator_.max_iter == 15
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        at_once = [
            model_selection.cross_val_score(Lasso(1e-4, tol=0.0, max_iter=5 * step), columns, y, cv=2).mean()
            for step in (1, 2, 3)
        ]
    np.testing.assert_allclose([row["score"] for row in found.results_[0].history], at_once)
    assert len(set(at_once)) == 3


def test_classes_that_a_split_lacks_are_known_from_the_start():
    found = search(Counter(), {"gain": [1.0, 2.0]}, n_iter=2, max_iters=2).fit(X, y)
    assert list(found.best_estimator_.classes_) == [0, 1, 2]


def test_more_samples_at_each_step_end_with_all_of_them():
    found = search(SVC(), {"C": [1.0]}, n_iter=1, budget="n_samples", max_iters=3).fit(X, y)
    whole = model_selection.cross_val_score(SVC(C=1.0), X, y, cv=2)
    assert found.best_score_ == pytest.approx(whole.mean())
    steps = [row["score"] for row in found.results_[0].history]
    assert len(steps) == 3
    assert len(found.best_estimator_.support_) > 0


def test_a_row_says_how_far_its_candidate_came():
    found = search(Counter(), {"gain": [1.0, 2.0]}, n_iter=2, max_iters=3).fit(X, y)
    assert list(found.cv_results_)[:4] == EXTRA
    assert list(found.cv_results_["status"]) == ["TERMINATED"] * 2
    np.testing.assert_array_equal(
        found.cv_results_["mean_test_score"], 3 * found.cv_results_["param_gain"].data.astype(float)
    )
    assert found.best_estimator_.calls_ == 3
    assert found.n_trials_ == len(found.results_) == 2


def test_a_scheduler_stops_what_is_worse():
    found = search(
        Counter(),
        {"gain": list(range(8, 0, -1))},
        n_iter=8,
        scheduler=AsyncHyperBandScheduler(max_t=4, reduction_factor=2),
        max_iters=4,
    ).fit(X, y)
    steps = found.cv_results_["training_iteration"]
    assert steps.min() < 4
    np.testing.assert_array_equal(found.stopped_early_, steps < 4)
    assert found.best_params_ == {"gain": 8}
    assert len(Counter.calls) == 2 * steps.sum() + found.best_iteration_


@pytest.mark.parametrize("name", [True, "hyperband", "median_stopping_rule", "promoting_asha"])
def test_schedulers_can_be_named(name):
    found = search(Counter(), {"gain": list(range(1, 9))}, n_iter=8, scheduler=name, max_iters=4).fit(X, y)
    assert found.best_params_ == {"gain": 8}
    assert found.best_iteration_ == 4


def test_population_based_training_changes_parameters_on_the_way():
    pbt = PopulationBasedTraining(perturbation_interval=1, hyperparam_mutations={"gain": tune.uniform(1, 2)})
    space = {"gain": tune.uniform(1, 2)}
    found = search(Counter(), space, n_iter=4, scheduler=pbt, max_iters=6).fit(X, y)
    assert list(found.cv_results_["training_iteration"]) == [6] * 4
    # Each estimator is scored with the parameters that its row names.
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"],
        [6 * params["gain"] for params in found.cv_results_["params"]],
    )


class Fixed(ClassifierMixin, BaseEstimator):
    """Scores its parameter `gain`."""

    def __init__(self, gain=1.0):
        self.gain = gain

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def score(self, X, y):
        return self.gain


def test_whole_fits_race_from_split_to_split():
    scheduler = AsyncHyperBandScheduler(max_t=4, reduction_factor=2)
    found = search(Fixed(), {"gain": list(range(7, -1, -1))}, n_iter=8, cv=4, scheduler=scheduler).fit(X, y)
    steps = found.cv_results_["training_iteration"]
    assert found.budget_ == "folds"
    assert steps.min() < 4
    short = int(steps.argmin())
    assert np.isnan(found.cv_results_["mean_test_score"][short])
    assert found.cv_results_["split0_test_score"][short] == found.cv_results_["param_gain"][short]
    assert found.cv_results_["rank_test_score"][short] == (steps == 4).sum() + 1
    assert found.best_params_ == {"gain": 7}


# Pipelines


class Watched(TransformerMixin, BaseEstimator):
    """Counts how often it was fitted."""

    fits = 0

    def __init__(self, factor=1.0):
        self.factor = factor

    def fit(self, X, y=None, sample_weight=None):
        Watched.fits += 1
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return X * self.factor


def test_candidates_that_agree_on_the_transformers_share_them():
    Watched.fits = 0
    pipeline = Pipeline([("watched", Watched()), ("model", SGDClassifier(random_state=0))])
    space = {"model__alpha": [1e-4, 1e-3, 1e-2]}
    found = search(pipeline, space, max_iters=3, cv=3).fit(X, y)
    # Once for each split, and for the refit.
    assert Watched.fits == 3 + 1
    assert found.budget_ == "partial_fit"
    assert found.predict(X).shape == y.shape


def test_transformers_without_a_name_are_not_taken_for_those_of_a_candidate_that_is_gone(
    monkeypatch,
):
    # A function that cannot be found by its name keeps them from having one.
    same = FunctionTransformer(lambda X: X)
    assert transformers_key([("same", same)]) is None
    # As if each candidate began where the one before had lain in memory.
    monkeypatch.setattr(candidate, "id", lambda thing: 1, raising=False)
    space = {"best__k": [1, 2, 3, 4]}
    model = SGDClassifier(random_state=0)
    scores = [
        search(
            Pipeline([("same", step), ("best", SelectKBest()), ("model", model)]),
            space,
            n_iter=4,
            max_iters=2,
        )
        .fit(X, y)
        .cv_results_["mean_test_score"]
        for step in ("passthrough", same)
    ]
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize("scheduler", ["hyperband", "successive_halving"])
def test_candidates_with_steps_that_are_searched_can_be_paused(scheduler):
    pipeline = Pipeline([("scaler", StandardScaler()), ("model", SGDClassifier(random_state=0))])
    space = {
        "scaler": [StandardScaler(), FunctionTransformer(lambda X: X), "passthrough"],
        "model": [SGDClassifier(random_state=0), SGDClassifier(penalty="l1", random_state=0)],
    }
    options = {"n_iter": 6, "max_iters": 9, "error_score": "raise"}
    found = search(pipeline, space, scheduler=scheduler, **options).fit(X, y)
    assert max(found.cv_results_["training_iteration"]) == 9


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (StandardScaler(), StandardScaler(), True),
        (StandardScaler(), StandardScaler(with_mean=False), False),
        (float("nan"), float("nan"), True),
        (np.arange(2), np.arange(2), True),
        (np.arange(2), np.arange(3), False),
        (1, 1.0, True),
        ("l1", None, False),
    ],
)
def test_values_are_compared_by_what_they_are(one, other, same):
    assert candidate.is_equal(one, other) is same


def test_a_pipeline_scores_what_the_whole_of_it_does():
    pipeline = make_pipeline(StandardScaler(), SGDClassifier(random_state=0))
    space = {"sgdclassifier__alpha": [1e-3]}

    def whole(estimator, X, y):
        assert isinstance(estimator, Pipeline)
        return estimator.score(X, y)

    scores = [
        search(pipeline, space, n_iter=1, max_iters=2, scoring=scoring).fit(X, y).best_score_
        for scoring in (None, "accuracy", whole)
    ]
    assert scores[0] == scores[1] == scores[2]


def test_the_parameters_of_transformers_may_be_searched():
    Watched.fits = 0
    pipeline = Pipeline([("watched", Watched()), ("model", SGDClassifier(random_state=0))])
    search(pipeline, {"watched__factor": [0.5, 1.0, 2.0]}, max_iters=2, refit=False).fit(X, y)
    assert Watched.fits == 3 * 2


# Searchers


def test_a_searcher_proposes_values_of_all_kinds():
    odd = [("a", 1), ("b", 2)]

    class Odd(Counter):
        def __init__(self, gain=1.0, shape=None, share=0.5, count=1):
            super().__init__(gain)
            self.shape, self.share, self.count = shape, share, count

    space = {
        "gain": stats.uniform(1, 2),
        "shape": odd,
        "share": stats.beta(2, 2),
        "count": stats.randint(1, 4),
    }
    found = search(Odd(), space, search_alg="quasi_random", max_iters=2, n_iter=4).fit(X, y)
    for params in found.cv_results_["params"]:
        assert 1 <= params["gain"] <= 3
        assert params["shape"] in odd
        assert 0 < params["share"] < 1
        assert params["count"] in (1, 2, 3)


def test_a_searcher_learns_from_the_scores_and_is_not_changed_itself():
    pytest.importorskip("optuna")
    from dasktune.search.optuna import OptunaSearch

    searcher = OptunaSearch()
    space = [{"gain": tune.uniform(0, 1)}, {"gain": tune.uniform(1, 2)}]
    made = search(Counter(), space, search_alg=searcher, n_iter=6, max_iters=2)
    found = made.fit(X, y)
    assert made.search_alg is searcher
    assert found.n_trials_ == 6
    assert found.best_score_ == pytest.approx(2 * found.best_params_["gain"])
    again = made.fit(X, y)
    assert again.cv_results_["params"] == found.cv_results_["params"]


def test_the_searcher_is_kept_with_its_study():
    optuna = pytest.importorskip("optuna")
    found = search(search_alg="optuna", n_iter=4).fit(X, y)
    study = found.searcher_.study
    assert isinstance(study, optuna.study.Study)
    assert [trial.value for trial in study.trials] == pytest.approx(
        list(found.cv_results_["mean_test_score"])
    )
    assert study.best_params == pytest.approx(found.best_params_)
    again = pickle.loads(pickle.dumps(found))
    assert again.searcher_.study.best_value == found.best_score_
    # A search without a searcher draws its candidates beforehand.
    assert not hasattr(found.set_params(search_alg=None).fit(X, y), "searcher_")


@pytest.mark.parametrize(
    ("search_alg", "package"), [("bayesopt", "bayes_opt"), ("hyperopt", "hyperopt"), ("bohb", "scipy")]
)
def test_a_search_with_any_searcher_can_be_pickled(search_alg, package):
    pytest.importorskip(package)
    found = search(space={"alpha": tune.uniform(1e-4, 1)}, search_alg=search_alg, n_iter=2).fit(X, y)
    again = pickle.loads(pickle.dumps(found))
    assert type(again.searcher_) is type(found.searcher_)
    assert again.best_params_ == found.best_params_


class UnpicklableSearcher(BasicVariantGenerator):
    """A searcher of a user that holds a lock."""

    def __init__(self):
        super().__init__()
        self.lock = Lock()

    def __deepcopy__(self, memo):
        return UnpicklableSearcher()


def test_a_pickle_leaves_out_a_searcher_that_cannot_be_pickled():
    made = search(space={"alpha": tune.uniform(1e-4, 1)}, search_alg=UnpicklableSearcher(), n_iter=2).fit(
        X, y
    )
    assert isinstance(made.searcher_, UnpicklableSearcher)
    again = pickle.loads(pickle.dumps(made.set_params(search_alg=None)))
    assert not hasattr(again, "searcher_")
    assert again.best_params_ == made.best_params_
    assert hasattr(made, "searcher_")


@pytest.mark.parametrize("search_alg", [None, "random"])
def test_without_a_number_of_candidates_the_search_lasts_until_it_is_stopped(search_alg):
    found = search(n_iter=-1, search_alg=search_alg, stop=MaximumTrialStopper()).fit(X, y)
    assert found.n_trials_ >= 3
    assert np.isfinite(found.cv_results_["mean_test_score"][:2]).all()


def test_without_a_number_of_candidates_something_else_must_end_the_search():
    with pytest.raises(ConfigError, match="time_budget_s or stop must be given with n_iter=-1"):
        search(n_iter=-1).fit(X, y)


# What goes wrong


@pytest.mark.parametrize(
    ("estimator", "space", "options", "match"),
    [
        (LogisticRegression(), {"max_iter": [1, 2]}, {"max_iters": 2}, "max_iter"),
        (
            make_pipeline(StandardScaler(), LogisticRegression()),
            {"logisticregression__max_iter": [1, 2]},
            {"max_iters": 2},
            "logisticregression__max_iter",
        ),
        (SVC(), {"C": [1.0]}, {"max_iters": 2, "budget": "partial_fit"}, "budget='folds'"),
        (
            SGDClassifier(),
            ALPHA,
            {"scoring": ["accuracy", "f1_macro"], "refit": False, "scheduler": "asha"},
            "metric must be",
        ),
        (SGDClassifier(), ALPHA, {"resume": True}, "storage_path and name"),
        (SGDClassifier(), {"alpha": 1.0}, {"search_alg": "random"}, "param_distributions"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_fitted(estimator, space, options, match):
    with pytest.raises(ConfigError, match=match):
        search(estimator, space, **options).fit(X, y)


def test_a_candidate_that_fails_has_the_error_score_and_others_train():
    space = [{"gain": [1.0]}, {"gain": [9.0], "fails_at": [2]}]
    with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4") as caught:
        found = search(Counter(), space, n_iter=2, max_iters=3, error_score=-1.0, random_state=1).fit(X, y)
    bad = found.cv_results_["params"].index({"gain": 9.0, "fails_at": 2})
    assert "ZeroDivisionError: mine" in str(caught[0].message)
    assert found.cv_results_["mean_test_score"][bad] == -1.0
    assert found.cv_results_["status"][bad] == "ERROR"
    assert found.best_params_ == {"gain": 1.0}


@pytest.mark.parametrize("max_iters", [1, 2])
def test_without_splits_it_says_what_scikit_learn_says(max_iters):
    with pytest.raises(ValueError, match="Was the CV iterator empty"):
        search(cv=[], max_iters=max_iters).fit(X, y)


def test_the_exception_itself_is_raised_if_it_is_asked_for():
    space = {"fails_at": [2]}
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        search(Counter(), space, n_iter=1, max_iters=3, error_score="raise").fit(X, y)
    assert "partial_fit" in [entry.name for entry in caught.traceback]


def test_if_all_candidates_fail_it_says_why():
    with pytest.raises(ValueError, match="All the 2 fits failed"):
        search(Counter(), {"fails_at": [1]}, n_iter=1, max_iters=2).fit(X, y)


def test_a_step_that_fails_is_tried_again_from_where_it_began():
    # The first call of all fails, and no other.
    space = {"fails_at": [1], "times": [1]}
    found = search(Counter(), space, n_iter=1, max_iters=2, max_failures=1).fit(X, y)
    assert found.best_score_ == 2.0
    assert Counter.calls[:3] == [(1.0, 1), (1.0, 1), (1.0, 1)]


def test_a_parameter_that_the_estimator_lacks_is_no_score():
    with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
        search(space={"nonsense": [1, 2, 3]}, max_iters=2).fit(X, y)


@pytest.mark.parametrize("search_alg", [None, "random"])
def test_a_parameter_that_only_some_candidates_set_is_found_before_any_is_trained(search_alg):
    space = [{"gain": [1.0, 2.0]}, {"gain": [1.0], "pain": [3.0]}]
    made = search(Counter(), space, n_iter=3, max_iters=2, search_alg=search_alg)
    with pytest.raises(ValueError, match="Invalid parameter 'pain'"):
        made.fit(X, y)
    assert not Counter.calls


def test_which_parameters_there_are_may_hang_on_a_parameter():
    steps = make_pipeline(StandardScaler(), SVC())
    space = [{"svc": [SGDClassifier(random_state=0)], "svc__alpha": [1e-3]}, {"svc__C": [1.0]}]
    found = search(steps, space, n_iter=2).fit(X, y)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()
    space[0]["svc__gamma"] = [1.0]
    with pytest.raises(ValueError, match="Invalid parameter 'gamma'"):
        search(steps, space, n_iter=2).fit(X, y)


def test_an_interrupt_interrupts_the_search_and_says_how_to_resume_if_possible(caplog, tmp_path):
    class Interrupted(Counter):
        def partial_fit(self, X, y, classes=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(Interrupted(), {"gain": [1.0]}, n_iter=1, max_iters=2).fit(X, y)
    # What is gone cannot be restored.
    assert "call the same fit()" not in caplog.text
    with pytest.raises(KeyboardInterrupt):
        search(Interrupted(), {"gain": [1.0]}, n_iter=1, max_iters=2, storage_path=tmp_path).fit(X, y)
    assert "Tuner.restore" not in caplog.text
    assert "call the same fit()" in caplog.text


def test_parameters_are_not_looked_at_before_fit():
    odd = search(max_iters=0)
    assert clone(odd).max_iters == 0
    with pytest.raises(ValueError, match="The 'max_iters' parameter"):
        odd.fit(X, y)


# Storage


class Dying(Counter):
    """Takes the driver along at its third step."""

    alive = False

    def partial_fit(self, X, y, classes=None):
        if self.gain == 2.0 and getattr(self, "calls_", 0) == 2 and not Dying.alive:
            raise KeyboardInterrupt
        return super().partial_fit(X, y, classes)


def test_a_search_whose_driver_died_resumes_by_the_same_fit(tmp_path):
    Dying.alive = False
    made = search(
        Dying(),
        {"gain": [1.0, 2.0, 3.0]},
        max_iters=4,
        random_state=None,
        storage_path=tmp_path,
        name="mine",
        resume=True,
        checkpoint_frequency=1,
    )
    with pytest.raises(KeyboardInterrupt):
        made.fit(X, y)
    before = list(Counter.calls)
    Dying.alive = True
    with pytest.raises(ConfigError, match="max_iters must be the same as when the search began"):
        clone(made).set_params(max_iters=5).fit(X, y)
    with pytest.raises(ConfigError, match="y must be the same as"):
        clone(made).fit(X, y[::-1])
    with pytest.raises(ConfigError, match="cv must be the same as"):
        clone(made).set_params(cv=model_selection.KFold(2, shuffle=True)).fit(X, y)
    Counter.calls = []
    found = clone(made).fit(X, y)
    assert list(found.cv_results_["training_iteration"]) == [4, 4, 4]
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"],
        [4 * params["gain"] for params in found.cv_results_["params"]],
    )
    # Three candidates on two splits, and the refit: no step is taken twice.
    assert len(before) + len(Counter.calls) == 3 * 2 * 4 + 4
    with pytest.raises(tune.StorageError, match="resume the stored one by resume=True"):
        clone(made).set_params(resume=False).fit(X, y)


def test_a_search_that_never_began_says_that_it_cannot_resume(tmp_path):
    made = search(max_iters=2, storage_path=tmp_path, name="mine")
    made.fit(X, y)
    # What it would be restored from: its driver died before it was written.
    (tmp_path / "mine" / SETUP_FILE).unlink()
    with pytest.raises(tune.StorageError, match="an experiment that never began"):
        clone(made).set_params(resume=True).fit(X, y)


# What any estimator can


def test_it_is_cloned_pickled_and_nested():
    made = search(max_iters=2, scheduler="asha")
    assert clone(made).get_params().keys() == made.get_params().keys()
    scores = model_selection.cross_val_score(make_pipeline(StandardScaler(), made), X, y, cv=2)
    assert np.isfinite(scores).all()
    found = pickle.loads(pickle.dumps(made.fit(X, y)))
    np.testing.assert_array_equal(found.predict(X), made.predict(X))
    assert len(found.results_) == 3


def test_it_can_be_awaited():
    found = asyncio.run(search(max_iters=2).fit_async(X, y))
    assert found.n_trials_ == 3


def test_weights_reach_every_step_by_the_rows_of_its_split():
    class Weighed(Counter):
        def partial_fit(self, X, y, classes=None, sample_weight=None):
            assert np.array_equal(sample_weight, X[:, 0])
            return super().partial_fit(X, y, classes)

        def score(self, X, y, sample_weight):
            assert np.array_equal(sample_weight, X[:, 0])
            return super().score(X, y)

    found = search(Weighed(), {"gain": [1.0]}, n_iter=1, max_iters=2)
    assert found.fit(X, y, sample_weight=X[:, 0]).best_score_ == 2.0


def test_metadata_is_routed_to_the_last_step_of_a_pipeline():
    seen = []

    class Weighed(Counter):
        def fit(self, X, y, sample_weight=None):
            raise NotImplementedError

        def partial_fit(self, X, y, classes=None, sample_weight=None):
            seen.append((len(X), len(sample_weight)))
            return super().partial_fit(X, y, classes)

        def score(self, X, y, sample_weight=None):
            seen.append((len(X), len(sample_weight)))
            return super().score(X, y)

    with sklearn.config_context(enable_metadata_routing=True):
        model = Weighed().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        pipeline = Pipeline([("scale", scaler), ("model", model)])
        found = search(pipeline, {"model__gain": [1.0]}, n_iter=1, max_iters=2)
        found.fit(X, y, sample_weight=np.ones(len(y)))
    assert found.best_score_ == 2.0
    # Two steps of two splits, each trained and scored, and two for the refit.
    assert seen == [(75, 75)] * 8 + [(150, 150)] * 2


def test_groups_reach_the_splitter():
    groups = np.arange(len(y)) % 3
    found = search(max_iters=2, cv=model_selection.GroupKFold(3)).fit(X, y, groups=groups)
    assert found.n_splits_ == 3


@pytest.mark.parametrize("is_kept", [False, True])
def test_it_says_where_its_results_are_if_they_are_kept(is_kept, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DASKTUNE_PROGRESS", raising=False)
    search(max_iters=2, verbose=1, storage_path=tmp_path if is_kept else None).fit(X, y)
    told = capsys.readouterr().err
    assert "Best: score" in told
    assert ("Results:" in told) is is_kept


def test_nothing_warns_where_nothing_is_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, max_iters=2).fit(X, y)


# Boosting of other libraries


def booster(library):
    """Return a small one for one thread: others have theirs on this machine."""
    module = pytest.importorskip(library)
    if library == "xgboost":
        return module.XGBClassifier(max_depth=2, random_state=0, n_jobs=1)
    if library == "lightgbm":
        return module.LGBMClassifier(max_depth=2, min_child_samples=5, n_jobs=1, verbose=-1)
    return module.CatBoostClassifier(
        depth=2, random_seed=0, thread_count=1, verbose=False, allow_writing_files=False
    )


@pytest.mark.parametrize("seed", [None, 7])
def test_each_step_of_lightgbm_draws_other_samples(seed):
    model = pytest.importorskip("lightgbm").LGBMRegressor(
        max_depth=1, subsample=0.2, subsample_freq=1, n_jobs=1, verbose=-1, random_state=seed
    )
    # With steps as small as this all trees see the same gradients.
    model.set_params(learning_rate=1e-9, min_child_samples=2)
    mode = choose_mode(model, "boosting", amount=1, max_steps=6)
    part = TrainingData(take=lambda: (X, X[:, 0], {}))
    for step in range(6):
        model = mode.advance(model, part, step, step + 1)
    trees = model.booster_.trees_to_dataframe()
    assert trees[trees.node_depth == 1].threshold.nunique() > 1
    assert model.random_state == seed


@pytest.mark.parametrize("library", ["xgboost", "lightgbm", "catboost"])
def test_boosters_of_other_libraries_add_round_by_round(library):
    model, rounds = booster(library), "iterations" if library == "catboost" else "n_estimators"
    space = {"learning_rate": [0.3]}
    found = search(model, space, n_iter=1, max_iters=3, iters_per_step=2, scoring="neg_log_loss")
    found.fit(X, y)
    assert found.budget_ == "boosting"
    whole = model_selection.cross_val_score(
        clone(model).set_params(learning_rate=0.3, **{rounds: 6}),
        X,
        y,
        cv=2,
        scoring="neg_log_loss",
    )
    assert found.best_score_ == pytest.approx(whole.mean(), rel=1e-3)
    assert found.best_estimator_.get_params()[rounds] == 6
    with pytest.raises(ConfigError, match=rounds):
        search(model, {rounds: [1, 2]}, max_iters=2).fit(X, y)
