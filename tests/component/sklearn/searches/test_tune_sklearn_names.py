"""`TuneGridSearchCV`, and the arguments of tune-sklearn in `TuneSearchCV`."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from bokeh.models import ColumnDataSource
from sklearn import model_selection
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import Ridge, SGDClassifier, SGDRegressor
from sklearn.metrics import make_scorer, max_error, mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import dasktune as tune
from dasktune.callback import Callback
from dasktune.errors import ConfigError
from dasktune.schedulers import ASHAScheduler
from dasktune.search import Searcher
from dasktune.sklearn import TuneGridSearchCV, TuneSearchCV
from dasktune.stopper import MaximumIterationStopper, Stopper

X, y = load_iris(return_X_y=True)
MODEL = SGDClassifier(random_state=0)
ALPHAS = {"alpha": [1e-4, 1e-2, 1.0]}


def without_times(results):
    return {key: value for key, value in results.items() if not key.endswith("_time")}


# The grid


def test_without_early_stopping_it_is_the_grid_search_of_scikit_learn():
    space = [{"C": [0.01, 1.0], "kernel": ["rbf", "linear"]}, {"C": [10.0], "gamma": [0.1, 1.0]}]
    ours = TuneGridSearchCV(SVC(), space, cv=3, return_train_score=True).fit(X, y)
    theirs = model_selection.GridSearchCV(SVC(), space, cv=3, return_train_score=True).fit(X, y)
    assert list(ours.cv_results_) == list(theirs.cv_results_)
    np.testing.assert_equal(without_times(ours.cv_results_), without_times(theirs.cv_results_))
    assert ours.best_params_ == theirs.best_params_
    assert ours.n_trials_ == 6


@pytest.mark.parametrize(
    "early_stopping", [True, "ASHAScheduler", ASHAScheduler(max_t=8)], ids=["True", "name", "object"]
)
def test_bad_candidates_of_a_grid_are_stopped_early(early_stopping):
    space = {"alpha": [1e-4, 1e-3, 1e-2, 10.0, 100.0], "penalty": ["l2", "l1"]}
    found = TuneGridSearchCV(MODEL, space, early_stopping=early_stopping, max_iters=8, cv=2).fit(X, y)
    assert found.n_trials_ == 10
    assert [tuple(one.values()) for one in found.cv_results_["params"]] == [
        (alpha, penalty) for alpha in space["alpha"] for penalty in space["penalty"]
    ]
    assert found.stopped_early_.any()
    assert found.cv_results_["training_iteration"].max() == 8
    assert found.best_score_ > 0.8
    assert found.score(X, y) > 0.8


@pytest.mark.parametrize(
    "space",
    [
        {"alpha": tune.grid_search([1e-4, 1e-2]), "penalty": ["l2"]},
        {"alpha": np.array([1e-4, 1e-2]), "penalty": ("l2",)},
        [{"alpha": [1e-4], "penalty": ["l2"]}, {"alpha": tune.grid_search([1e-2]), "penalty": ["l2"]}],
    ],
    ids=["grid_search", "arrays", "list"],
)
def test_a_grid_may_be_given_as_in_tune_sklearn(space):
    found = TuneGridSearchCV(MODEL, space, cv=2).fit(X, y)
    assert found.cv_results_["params"] == [{"alpha": alpha, "penalty": "l2"} for alpha in (1e-4, 1e-2)]


@pytest.mark.parametrize(
    ("space", "error"), [({"C": 1.0}, TypeError), ({"C": []}, ValueError), ({"C": "1,2"}, TypeError)]
)
def test_what_is_no_grid_is_refused_before_anything_is_fitted(space, error):
    with pytest.raises(error, match="C"):
        TuneGridSearchCV(SVC(), space).fit(X, y)


@pytest.mark.parametrize(("grid", "error"), [([1], TypeError), ([], ValueError)])
def test_a_grid_is_refused_with_the_errors_of_scikit_learn(grid, error):
    with pytest.raises(error) as refused:
        model_selection.GridSearchCV(SVC(), grid).fit(X, y)
    with pytest.raises(error, match=re.escape(str(refused.value))):
        TuneGridSearchCV(SVC(), grid).fit(X, y)


def test_a_tuple_is_a_list_of_values_in_a_random_search_with_and_without_a_number_of_candidates():
    def tried(**options):
        space = {"alpha": (1e-4, 1e-2)}
        search = TuneSearchCV(MODEL, space, search_optimization="random", cv=2, random_state=0, **options)
        return {params["alpha"] for params in search.fit(X, y).cv_results_["params"]}

    values = {1e-4, 1e-2}
    assert tried(n_iter=2) == values
    assert tried(n_iter=-1, stopper=MaximumResults(9)) <= values


class MaximumResults(Stopper):
    """Ends the experiment after a number of results."""

    def __init__(self, results):
        self.left = results

    def __call__(self, trial_id, result):
        self.left -= 1
        return False

    def stop_all(self):
        return self.left <= 0


def test_a_metric_that_a_function_does_not_return_is_refused():
    scoring = LOSSES["function"]
    with pytest.raises(ConfigError, match="metric must be one of"):
        TuneGridSearchCV(Ridge(), {"alpha": [1.0]}, scoring=scoring, refit="r2", metric="r3").fit(X, y)


def test_a_parameter_that_the_estimator_lacks_is_refused_before_anything_is_fitted():
    with pytest.raises(ValueError, match="Invalid parameter 'D'"):
        TuneGridSearchCV(SVC(), [{"C": [1.0]}, {"D": [1.0]}]).fit(X, y)


def test_a_grid_search_whose_driver_died_resumes_with_the_same_grid_only(tmp_path):
    options = {"storage_path": tmp_path, "name": "grid", "resume": True, "cv": 2}
    first = TuneGridSearchCV(MODEL, ALPHAS, **options).fit(X, y)
    again = TuneGridSearchCV(MODEL, ALPHAS, **options).fit(X, y)
    np.testing.assert_equal(again.cv_results_, first.cv_results_)
    with pytest.raises(ConfigError, match="param_grid must be the same"):
        TuneGridSearchCV(MODEL, {"alpha": [0.1]}, **options).fit(X, y)


def test_a_search_resumes_by_either_name_of_an_argument_with_the_same_value_only(tmp_path):
    options = {"storage_path": tmp_path, "name": "mine", "resume": True, "cv": 2, "random_state": 0}
    first = TuneSearchCV(MODEL, ALPHAS, n_trials=2, **options).fit(X, y)
    again = TuneSearchCV(MODEL, ALPHAS, n_iter=2, **options).fit(X, y)
    np.testing.assert_equal(again.cv_results_, first.cv_results_)
    with pytest.raises(ConfigError, match="n_iter must be the same"):
        TuneSearchCV(MODEL, ALPHAS, n_trials=3, **options).fit(X, y)
    with pytest.raises(ConfigError, match="mode must be the same"):
        TuneSearchCV(MODEL, ALPHAS, n_trials=2, mode="min", **options).fit(X, y)


# A lower score is better


def error(estimator, X, y):
    return mean_squared_error(y, estimator.predict(X))


SQUARED = make_scorer(mean_squared_error)
LOSSES = {
    "score": SQUARED,
    "metrics": {"r2": "r2", "error": SQUARED},
    "function": lambda estimator, X, y: {"r2": estimator.score(X, y), "error": error(estimator, X, y)},
}


@pytest.mark.parametrize("kind", LOSSES)
def test_with_mode_min_the_smallest_error_wins(kind):
    data, target = load_diabetes(return_X_y=True)
    space, best = {"alpha": [1e-3, 1.0, 1e4]}, True if kind == "score" else "error"
    found = TuneGridSearchCV(Ridge(), space, scoring=LOSSES[kind], refit=best, mode="min").fit(data, target)
    known = model_selection.GridSearchCV(Ridge(), space, scoring="neg_mean_squared_error").fit(data, target)
    name = "score" if kind == "score" else "error"
    assert found.best_params_ == known.best_params_
    assert found.best_score_ == pytest.approx(-known.best_score_)
    assert list(found.cv_results_[f"rank_test_{name}"]) == list(known.cv_results_["rank_test_score"])
    assert found.cv_results_[f"rank_test_{name}"].dtype == np.int32
    if kind != "score":
        # Other metrics keep their direction.
        assert found.cv_results_["rank_test_r2"][found.best_index_] == 1


def test_with_mode_min_a_scheduler_stops_the_larger_errors():
    found = TuneGridSearchCV(
        SGDRegressor(random_state=0),
        {"alpha": [1e-4, 1e3, 1e-4]},
        early_stopping=ASHAScheduler(max_t=4, reduction_factor=2),
        max_iters=4,
        cv=2,
        scoring=SQUARED,
        mode="min",
    ).fit(*load_diabetes(return_X_y=True))
    assert list(found.stopped_early_) == [False, True, False]
    assert found.best_params_ == {"alpha": 1e-4}


def test_with_mode_min_a_searcher_minimises():
    seen = []

    class Noting(Searcher):
        def set_search_properties(self, metric, mode, config, **spec):
            seen.append(mode)
            return True

        def suggest(self, trial_id):
            return {"alpha": 1.0}

        def on_trial_complete(self, trial_id, result=None, error=False):
            seen.append(result["score"])

    found = TuneSearchCV(
        Ridge(), ALPHAS, n_trials=1, search_optimization=Noting(), cv=2, scoring=SQUARED, mode="min"
    ).fit(*load_diabetes(return_X_y=True))
    assert seen == ["min", pytest.approx(found.best_score_)]


@pytest.mark.filterwarnings("ignore:One or more of the test scores")
def test_an_error_that_is_not_a_number_is_the_worst_with_mode_min():
    space = {"alpha": [1.0, -1.0]}
    data, target = load_diabetes(return_X_y=True)
    with pytest.warns(match="fits failed"):
        found = TuneGridSearchCV(Ridge(), space, scoring=SQUARED, mode="min", cv=2).fit(data, target)
    assert list(found.cv_results_["rank_test_score"]) == [1, 2]


def two_metrics(estimator, X, y):
    return {"r2": estimator.score(X, y), "max_error": max_error(y, estimator.predict(X))}


@pytest.mark.parametrize(
    "scoring", [{"r2": "r2", "max_error": make_scorer(max_error)}, two_metrics], ids=type
)
def test_with_several_metrics_mode_min_needs_the_name_of_one(scoring):
    search = TuneSearchCV(Ridge(), ALPHAS, n_iter=2, scoring=scoring, refit=False, mode="min")
    with pytest.raises(ConfigError, match="metric must be one of"):
        search.fit(*load_diabetes(return_X_y=True))
    found = search.set_params(metric="max_error").fit(*load_diabetes(return_X_y=True))
    errors = found.cv_results_["mean_test_max_error"]
    assert found.cv_results_["rank_test_max_error"][errors.argmin()] == 1


def test_the_figures_of_a_search_with_mode_min_show_the_smallest_as_the_best():
    found = TuneGridSearchCV(Ridge(), {"alpha": [1.0, 1e3]}, scoring=SQUARED, mode="min")
    found.fit(*load_diabetes(return_X_y=True))
    sources = found.plot("best_so_far").select({"type": ColumnDataSource})
    curves = [list(source.data["value"]) for source in sources]
    assert found.best_params_["alpha"] == 1.0
    smallest = min(map(min, curves))
    # Without a journal the time of a result is known to a second, so either candidate may come
    # first. The line of the best value continues to the end of the search.
    best = [curve[-1] for curve in curves if curve[-1] == curve[-2]]
    assert best == [smallest]


# Names and values


def test_arguments_may_be_given_by_the_names_of_tune_sklearn(tmp_path):
    found = TuneSearchCV(
        MODEL,
        {"alpha": [1e-4, 1e-3, 1e-2]},
        n_trials=2,
        search_optimization="random",
        early_stopping="HyperBandScheduler",
        stopper=MaximumIterationStopper(2),
        max_iters=9,
        local_dir=str(tmp_path),
        name="mine",
        loggers=["csv", "json"],
        random_state=0,
        cv=2,
    ).fit(X, y)
    assert found.n_trials_ == 2
    assert set(found.cv_results_["training_iteration"]) == {2}
    files = {path.name for path in (tmp_path / "mine").rglob("*") if path.stat().st_size}
    assert {"progress.csv", "result.json"} <= files


@pytest.mark.parametrize(
    ("early_stopping", "kind"),
    [
        (True, "AsyncHyperBandScheduler"),
        ("AsyncHyperBandScheduler", "AsyncHyperBandScheduler"),
        ("HyperBandScheduler", "HyperBandScheduler"),
        ("HyperBandForBOHB", "HyperBandForBOHB"),
        ("MedianStoppingRule", "MedianStoppingRule"),
    ],
)
def test_schedulers_are_named_by_their_classes(early_stopping, kind):
    search = TuneGridSearchCV(MODEL, ALPHAS, early_stopping=early_stopping, max_iters=3, cv=2)
    given = type(search)._trial_scheduler
    made = []

    class Noting(TuneGridSearchCV):
        def _trial_scheduler(self, job):
            made.append(given(self, job))
            return made[-1]

    Noting(**search.get_params(deep=False)).fit(X, y)
    assert [type(one).__name__ for one in made] == [kind]


def test_tuples_are_ranges_for_the_searchers_of_tune_sklearn():
    pytest.importorskip("optuna")
    found = TuneSearchCV(
        MODEL,
        {
            "alpha": (1e-4, 1e-1, "log-uniform"),
            "l1_ratio": (0.0, 1.0),
            "max_iter": (5, 7),
            "penalty": ["l2", "l1"],
        },
        n_trials=8,
        search_optimization="optuna",
        random_state=0,
        cv=2,
        error_score="raise",
    )
    with pytest.warns(match="Maximum number of iteration"):
        found.fit(X, y)
    for params in found.cv_results_["params"]:
        assert 1e-4 <= params["alpha"] <= 1e-1
        assert 0.0 <= params["l1_ratio"] <= 1.0
        assert params["max_iter"] in (5, 6, 7)
        assert params["penalty"] in ("l1", "l2")
    assert len({params["alpha"] for params in found.cv_results_["params"]}) == 8


def test_a_bayesian_search_takes_lists_of_values():
    pytest.importorskip("optuna")
    space = {"alpha": [1e-4, 1e-3, 1e-2], "penalty": ["l1", "l2"], "warm_start": [False]}
    search = TuneSearchCV(MODEL, space, n_trials=3, search_optimization="Bayesian", cv=2, random_state=0)
    search.fit(X, y)
    assert search.n_trials_ == 3
    assert hasattr(search.searcher_, "study")


def test_bohb_comes_with_its_scheduler():
    options = {"n_trials": 3, "max_iters": 3, "cv": 2, "random_state": 0}
    space = {"alpha": (1e-4, 1e-1, "log-uniform")}
    search = TuneSearchCV(MODEL, space, search_optimization="BOHB", **options)
    assert search._scheduler == "hb_bohb"
    assert clone(search).set_params(early_stopping=False)._scheduler is False
    assert clone(search).set_params(early_stopping="MedianStoppingRule")._scheduler == "median_stopping_rule"
    assert "training_iteration" in search.fit(X, y).cv_results_


def test_search_kwargs_are_the_arguments_of_the_searcher():
    points = [{"alpha": 0.4}, {"alpha": 0.3}]
    search = TuneSearchCV(
        MODEL,
        {"alpha": tune.uniform(1e-4, 0.5)},
        n_iter=2,
        cv=2,
        search_alg="random",
        search_kwargs={"points_to_evaluate": points},
    ).fit(X, y)
    assert search.cv_results_["params"] == points


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_iter": 3, "n_trials": 2}, "n_iter and n_trials must be two names of one argument"),
        ({"scheduler": "asha", "early_stopping": True}, "scheduler and early_stopping must be"),
        ({"search_kwargs": {"a": 1}}, "search_kwargs must be empty, unless search_alg is the name"),
        ({"loggers": ["csv"]}, "storage_path must be given with loggers"),
        ({"loggers": ["cvs"], "storage_path": "PLACE"}, "loggers must be names in"),
        ({"use_gpu": True, "resources_per_trial": {"cpu": 2}}, "use_gpu and resources_per_trial must be"),
        ({"search_optimization": "optuna"}, "must be a tuple of two numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_that_contradict_each_other_are_refused(options, match, tmp_path):
    if "storage_path" in options:
        options = {**options, "storage_path": tmp_path}
    space = {"alpha": (1e-4, "high")} if "search_optimization" in options else ALPHAS
    with pytest.raises(ConfigError, match=match):
        TuneSearchCV(MODEL, space, **options).fit(X, y)


def test_a_candidate_with_a_gpu_has_a_cpu_too():
    requested = []

    class Noting(Callback):
        def on_trial_start(self, iteration, trials, trial, **info):
            requested.append(trial.placement_group_factory.required_resources)

    TuneSearchCV(MODEL, ALPHAS, n_iter=1, cv=2, use_gpu=True, callbacks=[Noting()]).fit(X, y)
    assert requested == [{"CPU": 1, "GPU": 1}]


@pytest.mark.parametrize(("early", "budget"), [(True, "partial_fit"), (False, "folds")])
def test_a_pipeline_may_be_fitted_as_a_whole(early, budget):
    found = TuneGridSearchCV(
        make_pipeline(StandardScaler(), MODEL),
        {"sgdclassifier__alpha": [1e-4, 1e-2]},
        early_stopping=True,
        max_iters=2,
        cv=2,
        pipeline_auto_early_stop=early,
    ).fit(X, y)
    assert found.budget_ == budget


def test_loggers_may_be_callbacks(tmp_path):
    class Noting(Callback):
        def on_trial_complete(self, *about, **more):
            ends.append(more)

    ends: list = []
    TuneGridSearchCV(MODEL, ALPHAS, cv=2, loggers=[Noting()], storage_path=tmp_path).fit(X, y)
    assert len(ends) == 3


def test_a_grid_search_can_be_cloned():
    search = TuneGridSearchCV(MODEL, ALPHAS, early_stopping=True, local_dir="there", mode="min")
    again = clone(search).get_params(deep=False)
    assert {**again, "estimator": None} == {**search.get_params(deep=False), "estimator": None}
