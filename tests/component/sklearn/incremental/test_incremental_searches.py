"""Incremental searches in this process."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
import warnings
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("sklearn")

from scipy import stats as scipy_stats
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import ParameterGrid, ParameterSampler

from dasktune.errors import ConfigError
from dasktune.sklearn import (
    HyperbandSearchCV,
    IncrementalSearchCV,
    InverseDecaySearchCV,
    SuccessiveHalvingSearchCV,
)

KEYS = {
    "mean_partial_fit_time",
    "mean_score_time",
    "std_partial_fit_time",
    "std_score_time",
    "test_score",
    "rank_test_score",
    "model_id",
    "params",
    "partial_fit_calls",
}

RECORD = {
    "model_id",
    "params",
    "partial_fit_calls",
    "partial_fit_time",
    "score",
    "score_time",
    "elapsed_wall_time",
}


class Constant(BaseEstimator):
    """Scores its parameter `value`, from its first call."""

    def __init__(self, value=0.0):
        self.value = value

    def fit(self, X, y=None):
        return self

    def partial_fit(self, X, y=None, **more):
        self.seen_ = [*getattr(self, "seen_", []), len(X)]
        return self

    def score(self, X, y=None):
        self.scored_ = [*getattr(self, "scored_", []), len(self.seen_)]
        return self.value


class Linear(Constant):
    """Gets better by as much with each call."""

    def __init__(self, slope=1.0, value=0.0):
        self.slope = slope
        self.value = value

    def score(self, X, y=None):
        return self.value + self.slope * len(self.seen_)


class Saturating(Constant):
    """The worse ones get better and better, and the good ones are so from the start."""

    def __init__(self, final=1):
        self.final = final

    def score(self, X, y=None):
        calls = len(self.seen_)
        return self.final if self.final > 3 else self.final * (1 - 1 / (calls + 2))


class Failing(Constant):
    """Fails at its second call, or whenever it is scored."""

    def __init__(self, value=0.0, fails=""):
        self.value = value
        self.fails = fails

    def partial_fit(self, X, y=None, **more):
        if self.fails == "late" and getattr(self, "seen_", []):
            raise ArithmeticError("as it was told")
        return super().partial_fit(X, y)

    def score(self, X, y=None):
        if self.fails == "scored":
            raise ArithmeticError("as it was told")
        return self.value


def samples(n=20, d=4):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] > 0).astype(int)


def calls_of(search):
    return [records[-1]["partial_fit_calls"] for records in search.model_history_.values()]


@pytest.mark.parametrize(("max_iter", "models", "calls"), [(9, 17, 69), (20, 17, 144)])
def test_hyperband_trains_as_many_models_as_often_as_that_of_dask_ml(max_iter, models, calls):
    values = np.linspace(0, 1, 1000)
    search = HyperbandSearchCV(Constant(), {"value": values}, max_iter=max_iter, random_state=42)
    search.fit(*samples())
    assert len(calls_of(search)) == models
    assert sum(calls_of(search)) == calls
    assert search.best_score_ == max(search.cv_results_["test_score"])
    # It is the model itself that was trained, and no other call was made.
    assert len(search.best_estimator_.seen_) == calls_of(search)[search.best_index_]
    assert search.best_estimator_.value == search.best_params_["value"] == search.best_score_


@pytest.mark.parametrize(
    ("max_iter", "aggressiveness"), [(1, 3), (2, 3), (9, 3), (15, 3), (16, 4), (20, 3), (30, 3)]
)
def test_hyperband_says_beforehand_what_it_does(max_iter, aggressiveness):
    search = HyperbandSearchCV(
        Constant(),
        {"value": np.random.RandomState(0).rand(30)},
        max_iter=max_iter,
        aggressiveness=aggressiveness,
        random_state=0,
    )
    before = search.metadata
    search.fit(*samples())
    assert before == search.metadata_
    assert set(before) == {"n_models", "partial_fit_calls", "brackets"}
    for bracket in before["brackets"]:
        assert set(bracket) == {
            "n_models",
            "partial_fit_calls",
            "bracket",
            "SuccessiveHalvingSearchCV params",
            "decisions",
        }


@pytest.mark.slow
def test_each_bracket_can_be_run_by_itself():
    values = {"value": scipy_stats.uniform(0, 1)}
    X, y = samples()
    search = HyperbandSearchCV(Constant(), values, max_iter=9, random_state=42).fit(X, y)
    for bracket in search.metadata["brackets"]:
        params = bracket["SuccessiveHalvingSearchCV params"]
        own = SuccessiveHalvingSearchCV(Constant(), values, **params).fit(X, y)
        assert len(own.model_history_) == bracket["n_models"]
        assert sum(calls_of(own)) == bracket["partial_fit_calls"]
        there = search.cv_results_["bracket"] == bracket["bracket"]
        assert set(own.cv_results_["param_value"]) == set(search.cv_results_["param_value"][there])


def test_hyperband_passes_on_what_its_brackets_need():
    params = {
        "aggressiveness": 3.5,
        "max_iter": 253,
        "random_state": 42,
        "scoring": None,
        "test_size": 0.212,
        "tol": 0,
        "patience": 76,
    }
    search = HyperbandSearchCV(Constant(), {"value": [1]}, **params)
    told = [one["SuccessiveHalvingSearchCV params"] for one in search.metadata["brackets"]]
    del params["random_state"]
    assert all(one[name] == value for one in told for name, value in params.items())
    assert len({one["random_state"] for one in told}) == len(told)


def test_the_least_adaptive_bracket_draws_with_the_given_seed_itself():
    values = {"value": scipy_stats.uniform(0, 1)}
    search = HyperbandSearchCV(Constant(), values, max_iter=9, random_state=0).fit(*samples())
    sample_candidates = {one["value"] for one in ParameterSampler(values, 17, random_state=0)}
    same = sample_candidates & set(search.cv_results_["param_value"])
    assert len(same) == search.metadata["brackets"][0]["n_models"]


def test_names_of_hyperbands_models_tell_their_bracket():
    search = HyperbandSearchCV(
        Constant(), {"value": scipy_stats.uniform(0, 1)}, max_iter=9, random_state=42
    ).fit(*samples())
    assert search.cv_results_["model_id"].dtype == "<U11"
    assert set(search.cv_results_) == KEYS | {"param_value", "bracket"}
    for name, bracket, params, score in zip(
        *(search.cv_results_[key] for key in ("model_id", "bracket", "params", "test_score")),
        strict=True,
    ):
        last = search.model_history_[name][-1]
        assert name.startswith(f"bracket={bracket}-")
        assert (last["bracket"], last["params"], last["score"]) == (bracket, params, score)
    assert all(set(record) == RECORD | {"bracket"} for record in search.history_)
    times = [record["elapsed_wall_time"] for record in search.history_]
    assert times == sorted(times)


def test_hyperband_with_patience_decides_where_it_would_and_trains_less():
    space = {"value": scipy_stats.uniform(0, 1)}
    search = HyperbandSearchCV(Constant(), space, max_iter=9, patience=True, random_state=0)
    search.fit(*samples())
    for planned, done in zip(search.metadata["brackets"], search.metadata_["brackets"], strict=True):
        assert {calls for calls in planned["decisions"] if calls <= 3} <= set(done["decisions"])
        assert max(done["decisions"]) <= 4
    assert search.metadata_["partial_fit_calls"] < search.metadata["partial_fit_calls"]


def test_hyperband_warns_of_little_patience_unless_it_is_of_no_effect():
    space = {"value": scipy_stats.uniform(0, 1)}
    few = {"max_iter": 6, "aggressiveness": 2, "patience": 2}
    with pytest.warns(UserWarning, match="The goal of `patience`"):
        HyperbandSearchCV(Constant(), space, **few).fit(*samples())
    for tol in (None, math.nan):
        search = HyperbandSearchCV(Constant(), space, tol=tol, **few).fit(*samples())
        assert max(calls_of(search)) == 6
    few["patience"] = 1
    with (
        pytest.warns(UserWarning, match="The goal"),
        pytest.raises(ValueError, match="always detect a plateau"),
    ):
        HyperbandSearchCV(Constant(), space, **few).fit(*samples())


def test_hyperband_of_one_call_has_one_model():
    search = HyperbandSearchCV(Constant(), {"value": [0.5]}, max_iter=1).fit(*samples())
    assert (calls_of(search), search.best_score_) == ([1], 0.5)


@pytest.mark.parametrize(("n_models", "n_initial_iter"), [(9, 2), (22, 3)])
def test_halving_trains_one_model_to_the_end(n_models, n_initial_iter):
    search = SuccessiveHalvingSearchCV(
        Constant(),
        {"value": np.linspace(0, 1, 1000)},
        n_initial_parameters=n_models,
        n_initial_iter=n_initial_iter,
    ).fit(*samples())
    calls = search.cv_results_["partial_fit_calls"]
    assert min(set(calls) - {1}) == n_initial_iter
    assert (calls == max(calls)).sum() < search.aggressiveness
    assert search.metadata == search.metadata_


def test_halving_asks_for_its_first_budget():
    with pytest.raises(ValueError, match="n_initial_iter must be at least 1"):
        SuccessiveHalvingSearchCV(Constant(), {"value": [1]}).fit(*samples())


def test_results_and_history_are_those_of_dask_ml():
    search = IncrementalSearchCV(
        Constant(), {"value": scipy_stats.uniform(0, 1)}, max_iter=4, random_state=42
    ).fit(*samples())
    assert set(search.cv_results_) == KEYS | {"param_value"}
    kinds = {"test_score": float, "rank_test_score": int, "model_id": int, "params": object}
    for key, kind in kinds.items():
        assert search.cv_results_[key].dtype == kind
    assert all(isinstance(column, np.ndarray) for column in search.cv_results_.values())
    assert isinstance(search.best_index_, int)
    assert isinstance(search.best_score_, float)
    assert search.cv_results_["rank_test_score"][search.best_index_] == 1
    assert (search.n_splits_, search.multimetric_) == (1, False)
    assert [record["model_id"] for record in search.history_] == [*range(10)] * 4
    assert [record["partial_fit_calls"] for record in search.history_] == np.repeat([1, 2, 3, 4], 10).tolist()
    assert all(set(record) == RECORD for record in search.history_)
    times = [record["elapsed_wall_time"] for record in search.history_]
    assert times == sorted(times)
    assert list(search.model_history_) == [*range(10)]
    assert search.score(*samples()) == search.best_score_


def test_a_model_is_scored_only_for_a_decision():
    search = IncrementalSearchCV(
        Constant(), {"value": [1.0]}, n_initial_parameters=1, max_iter=9, fits_per_score=4
    ).fit(*samples())
    assert search.best_estimator_.scored_ == [1, 5, 9]
    assert [record["partial_fit_calls"] for record in search.history_] == [1, 5, 9]


def test_a_grid_has_a_model_for_each_combination():
    space = {"slope": [1, 2, 3], "value": [0, 5]}
    search = IncrementalSearchCV(Linear(), space, n_initial_parameters="grid", max_iter=2)
    search.fit(*samples())
    assert list(search.cv_results_["params"]) == list(ParameterGrid(space))


@pytest.mark.parametrize(("tol", "calls"), [(1, 10), (4, 3)])
def test_models_that_reach_a_plateau_are_trained_no_further(tol, calls):
    search = IncrementalSearchCV(
        Linear(), {"value": [1, 2]}, n_initial_parameters=2, patience=3, tol=tol, max_iter=10
    ).fit(*samples())
    assert set(calls_of(search)) == {calls}


@pytest.mark.parametrize(("slope", "most"), [(2.5, 16), (0.5, 7)])
def test_patience_is_looked_at_in_steps_of_the_scores(slope, most):
    search = IncrementalSearchCV(
        Linear(), {"slope": [slope]}, max_iter=15, tol=5, patience=5, fits_per_score=3
    )
    search.set_params(n_initial_parameters=1).fit(*samples())
    assert calls_of(search) == [most]


def test_a_good_model_stays_while_worse_ones_still_get_better():
    class Rude(IncrementalSearchCV):
        def _adapt(self, info):
            scores = {number: records[-1]["score"] for number, records in info.items()}
            worst = min(scores, key=scores.get)
            return {number: int(len(info) > 1) for number in info if number != worst or len(info) == 1}

    search = Rude(
        Saturating(),
        {"final": [1, 2, 3, 4, 5]},
        patience=2,
        n_initial_parameters="grid",
        max_iter=20,
    ).fit(*samples())
    assert search.best_params_ == {"final": 5}


def test_inverse_decay_keeps_fewer_and_fewer():
    search = InverseDecaySearchCV(Constant(), {"value": scipy_stats.uniform(0, 1)}, random_state=1)
    search.fit(*samples())
    counts = [
        sum(record["partial_fit_calls"] == calls for record in search.history_)
        for calls in sorted({record["partial_fit_calls"] for record in search.history_})
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 10
    assert search.best_score_ == max(search.cv_results_["test_score"])


def test_the_same_seed_finds_the_same_model():
    X, y = samples(50, 5)
    space = {"eta0": np.logspace(-2, 0, num=1000), "learning_rate": ["constant", "invscaling"]}
    search = InverseDecaySearchCV(SGDClassifier(random_state=1), space, random_state=2)
    one, other = (clone(search).fit(X, y) for _ in range(2))
    assert one.best_params_ == other.best_params_
    assert np.array_equal(one.best_estimator_.coef_, other.best_estimator_.coef_)


def test_what_is_held_out_is_not_trained_on():
    class Rows(Constant):
        def partial_fit(self, X, y=None, **more):
            self.trained_ = set(X[:, 0])
            return super().partial_fit(X, y)

        def score(self, X, y=None):
            return float(not self.trained_ & set(X[:, 0]) and len(X) == 5 and len(y) == 5)

    X = np.arange(20.0).reshape(20, 1)
    search = IncrementalSearchCV(Rows(), {"value": [0]}, n_initial_parameters=1, max_iter=2)
    search.set_params(test_size=0.25).fit(X, X[:, 0])
    assert search.best_score_ == 1.0
    assert search.best_estimator_.seen_ == [15, 15]


def test_without_targets_models_are_trained_and_scored_on_samples_only():
    X, _ = samples(60)
    search = IncrementalSearchCV(
        MiniBatchKMeans(random_state=0), {"n_clusters": [2, 3]}, n_initial_parameters="grid"
    )
    search.set_params(max_iter=3).fit(X)
    assert search.transform(X).shape == (60, search.best_params_["n_clusters"])


@pytest.mark.parametrize("fails", ["late", "scored"])
def test_a_model_that_fails_is_the_worst_and_others_train(fails):
    space = {"value": [0.5], "fails": ["", fails]}
    search = IncrementalSearchCV(Failing(), space, n_initial_parameters="grid", max_iter=3)
    with pytest.warns(FitFailedWarning, match="1 fits failed out of a total of 2") as told:
        search.fit(*samples())
    assert "as it was told" in str(told[0].message)
    assert search.best_params_ == {"value": 0.5, "fails": ""}
    assert search.cv_results_["rank_test_score"].tolist() == [1, 2]
    assert np.isnan(search.cv_results_["test_score"][1])
    assert calls_of(search) == [3, 1 if fails == "late" else 0]


class Unsaved(Constant):
    """Cannot be saved after its second call, unless it is the worst."""

    def __getstate__(self):
        if self.value and len(getattr(self, "seen_", [])) == 2:
            raise ArithmeticError("as it was told")
        return super().__getstate__()


@pytest.mark.parametrize("kind", [IncrementalSearchCV, SuccessiveHalvingSearchCV])
def test_a_model_that_cannot_be_saved_fails_and_others_train(kind):
    params = {"max_iter": 3}
    if kind is SuccessiveHalvingSearchCV:
        params = {"n_initial_iter": 2, "aggressiveness": 2}
    space = {"value": [0.0, 0.5]}
    search = kind(Unsaved(), space, n_initial_parameters="grid", **params)
    with pytest.warns(FitFailedWarning, match="1 fits failed out of a total of 2"):
        search.fit(*samples())
    assert search.best_params_ == {"value": 0.0}
    search.set_params(error_score="raise")
    with pytest.raises(ArithmeticError, match="as it was told"):
        search.fit(*samples())


def test_a_failure_is_raised_as_it_is_if_that_is_wanted():
    search = IncrementalSearchCV(
        Failing(), {"fails": ["late"]}, n_initial_parameters="grid", error_score="raise"
    )
    with pytest.raises(ArithmeticError, match="as it was told"):
        search.fit(*samples())


def test_if_all_models_fail_there_is_no_result():
    space = {"value": scipy_stats.uniform(0, 1), "fails": ["scored"]}
    search = HyperbandSearchCV(Failing(), space, max_iter=3)
    with pytest.raises(ValueError, match="All the 5 fits failed"):
        search.fit(*samples())


@pytest.mark.parametrize("kind", [SuccessiveHalvingSearchCV, HyperbandSearchCV])
def test_if_the_last_ones_fail_the_best_of_those_that_were_stopped_is_found(kind):
    class Tired(Linear):
        def partial_fit(self, X, y=None):
            super().partial_fit(X, y)
            if len(self.seen_) > 4:
                raise ArithmeticError("as it was told")

    params = {"n_initial_parameters": 9, "n_initial_iter": 1} if kind.__name__[0] == "S" else {}
    space = {"value": [*range(9)]}
    search = kind(Tired(slope=0.1), space, max_iter=9, random_state=0, **params)
    with pytest.warns(FitFailedWarning, match="as it was told"):
        search.fit(*samples())
    last = {name: records[-1] for name, records in search.model_history_.items()}
    scores = [one["score"] for one in last.values() if one["partial_fit_calls"] == 3]
    assert search.best_score_ == max(scores)
    assert len(search.best_estimator_.seen_) == search.n_iter_ == 3
    assert search.cv_results_["test_score"][search.best_index_] == search.best_score_
    assert search.best_params_ == {"value": search.best_estimator_.value}


@pytest.mark.parametrize("scoring", [["r2"], {"r2": "r2"}, ("r2", "max_error")])
def test_several_metrics_are_refused_before_anything_is_trained(scoring):
    with pytest.raises(ConfigError, match="scoring must be a str, a function or None"):
        HyperbandSearchCV(Linear(), {"value": [1, 2]}, scoring=scoring).fit(*samples())


def test_nan_never_wins():
    space = {"value": [math.nan, 0.1, math.nan]}
    search = SuccessiveHalvingSearchCV(Constant(), space, n_initial_parameters="grid", n_initial_iter=1).fit(
        *samples()
    )
    assert search.best_params_ == {"value": 0.1}
    assert search.cv_results_["rank_test_score"].tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"max_iter": 0}, "max_iter < 1 is not supported"),
        ({"patience": 1}, "patience >= 2"),
        ({"patience": 2.0}, "patience must be an integer"),
        ({"verbose": -1.0}, "0 <= verbose <= 1"),
        ({"verbose": 1.2}, "0 <= verbose <= 1"),
        ({"scores_per_fit": 2, "fits_per_score": 3}, "not scores_per_fit"),
        ({"test_size": 1.5}, "between 0 and 1"),
        # Not one sample, nor all of them.
        ({"test_size": 1}, "between 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_refused(params, text):
    with pytest.raises(ValueError, match=text):
        IncrementalSearchCV(Constant(), {"value": [*range(10)]}, **params).fit(*samples())


def test_models_must_be_able_to_learn_block_by_block():
    from sklearn.svm import SVC

    with pytest.raises(TypeError, match=r"must have partial_fit\(\)"):
        IncrementalSearchCV(SVC(), {"C": [1.0]}).fit(*samples())


def test_old_names_warn_and_work():
    search = IncrementalSearchCV(
        Constant(), {"value": [1]}, n_initial_parameters=1, max_iter=5, scores_per_fit=2
    )
    with pytest.warns(UserWarning, match=r"deprecated since Dask-ML v1.4.0"):
        search.fit(*samples())
    assert [record["partial_fit_calls"] for record in search.history_] == [1, 3, 5]
    search.set_params(scores_per_fit=None, decay_rate=1)
    with pytest.warns(FutureWarning, match=r"decay_rate is deprecated .* Use InverseDecay"):
        search.fit(*samples())


@pytest.mark.parametrize(("verbose", "lines"), [(False, 0), (True, 9), (0.5, 5), (1, 9)])
def test_as_much_is_printed_as_is_wanted(verbose, lines, capsys):
    search = IncrementalSearchCV(Constant(), {"value": [1]}, max_iter=9, verbose=verbose)
    search.set_params(n_initial_parameters=1, prefix="!").fit(*samples())
    printed = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[CV!]") for line in printed)
    assert sum("validation score of 1.0000" in line for line in printed) == lines
    assert sum("examples in each chunk" in line for line in printed) == (lines > 0)


def test_each_bracket_is_logged_once(caplog):
    space = {"value": scipy_stats.uniform(0, 1)}
    search = HyperbandSearchCV(Constant(), space, max_iter=9, random_state=0)
    with caplog.at_level(logging.INFO, logger="dasktune.sklearn"):
        search.fit(*samples())
    made = [record.getMessage() for record in caplog.records if "creating" in record.getMessage()]
    assert made == [
        "[CV, bracket=2] creating 9 models",
        "[CV, bracket=1] creating 5 models",
        "[CV, bracket=0] creating 3 models",
    ]


def test_a_fitted_search_can_be_pickled_and_cloned():
    X, y = samples()
    search = IncrementalSearchCV(SGDClassifier(), {"alpha": [1e-3, 1e-2]}, max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the space is smaller than ten
        search.fit(X, y)
    again = pickle.loads(pickle.dumps(search))
    assert np.array_equal(again.predict(X), search.predict(X))
    assert not hasattr(clone(search), "best_estimator_")
    assert clone(search).get_params() | {"estimator": None} == search.get_params() | {"estimator": None}


def test_dask_blocks_are_trained_on_without_a_cluster_too():
    da = pytest.importorskip("dask.array")
    X, y = samples(60)
    blocks = da.from_array(X, chunks=(20, 2)), da.from_array(y, chunks=20)
    search = IncrementalSearchCV(Constant(), {"value": [1]}, n_initial_parameters=1, max_iter=6)
    for targets in (blocks[1], y, None):
        assert search.fit(blocks[0], targets).best_estimator_.seen_ == [16] * 6
    sgd = IncrementalSearchCV(SGDClassifier(), {"alpha": [1e-3]}, n_initial_parameters=1)
    sgd.set_params(max_iter=3).fit(*blocks)
    lazy = sgd.predict(blocks[0])
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == ((20, 20, 20),)
    assert np.array_equal(lazy.compute(), sgd.predict(X))
    assert sgd.score(*blocks) == sgd.score(X, y)


def test_delayed_samples_are_one_block():
    dask = pytest.importorskip("dask")
    da = pytest.importorskip("dask.array")
    X, y = samples(60)
    search = IncrementalSearchCV(Constant(), {"value": [1]}, n_initial_parameters=1, max_iter=2)
    for targets in (dask.delayed(y), da.from_array(y, chunks=20), y, None):
        assert search.fit(dask.delayed(X), targets).best_estimator_.seen_ == [48] * 2
    blocks = da.from_array(X, chunks=(20, 2))
    assert search.fit(blocks, dask.delayed(y)).best_estimator_.seen_ == [16] * 2


def test_fit_async_gives_the_same():
    search = IncrementalSearchCV(Constant(), {"value": [1]}, n_initial_parameters=1, max_iter=2)
    assert asyncio.run(search.fit_async(*samples())).best_score_ == 1


# What resumes


class Interruptible(Constant):
    """Is interrupted when the models of a search have made so many calls."""

    left: ClassVar[int] = -1
    calls: ClassVar[list] = []

    def partial_fit(self, X, y=None, **more):
        if not Interruptible.left:
            raise KeyboardInterrupt
        Interruptible.left -= 1
        self.calls_ = getattr(self, "calls_", 0) + 1
        Interruptible.calls.append((self.value, self.calls_))
        return super().partial_fit(X, y, **more)


def kept(tmp_path, **options):
    space = {"value": np.linspace(0, 1, 40)}
    return HyperbandSearchCV(
        Interruptible(),
        space,
        max_iter=9,
        random_state=3,
        storage_path=tmp_path,
        name="mine",
        resume=True,
        **options,
    )


@pytest.mark.parametrize("after", [2, 25, 60])
def test_a_search_that_was_interrupted_resumes_by_the_same_fit(tmp_path, after):
    X = np.zeros((20, 2))
    Interruptible.left, Interruptible.calls = -1, []
    whole = HyperbandSearchCV(
        Interruptible(), {"value": np.linspace(0, 1, 40)}, max_iter=9, random_state=3
    ).fit(X)
    Interruptible.left, Interruptible.calls = after, []
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path).fit(X)
    Interruptible.left = -1
    found = kept(tmp_path).fit(X)
    assert found.best_score_ == whole.best_score_
    assert found.metadata_ == whole.metadata_
    assert found.best_estimator_.calls_ == found.n_iter_
    for key in ("params", "partial_fit_calls", "test_score", "model_id"):
        np.testing.assert_array_equal(found.cv_results_[key], whole.cv_results_[key])
    # A model that was on its way begins again where it was scored last, and no other one does.
    again = len(Interruptible.calls) - whole.metadata_["partial_fit_calls"]
    assert 0 <= again <= 9
    with pytest.raises(ConfigError, match="X must be the same as when the search began"):
        kept(tmp_path).fit(X + 1)
    with pytest.raises(ConfigError, match="patience must be the same as"):
        kept(tmp_path, patience=True).fit(X)


def test_to_resume_a_search_needs_place_and_seed():
    with pytest.raises(ConfigError, match="integer random_state must be given with resume=True"):
        HyperbandSearchCV(Constant(), {}, resume=True).fit(np.zeros((20, 2)))


def test_a_parameter_that_the_model_lacks_is_found_before_anything_is_trained():
    Interruptible.left, Interruptible.calls = -1, []
    space = [{"value": [1.0, 2.0]}, {"volume": [1.0]}]
    search = IncrementalSearchCV(Interruptible(), space, n_initial_parameters="grid", max_iter=2)
    with pytest.raises(ValueError, match="Invalid parameter 'volume'"):
        search.fit(np.zeros((20, 2)))
    assert not Interruptible.calls
