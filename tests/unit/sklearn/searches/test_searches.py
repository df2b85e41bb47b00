"""Searches that run in this process."""

from __future__ import annotations

import asyncio
import copy
import pickle
from itertools import product

import numpy as np
import pytest

pytest.importorskip("sklearn")

import sklearn
from sklearn import model_selection
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_iris
from sklearn.exceptions import FitFailedWarning
from sklearn.svm import SVC

from dasktune.sklearn import GridSearchCV, RandomizedSearchCV
from dasktune.sklearn.fits.backend import choose_backend, compute_collections, picklable_client
from dasktune.sklearn.fits.engine import Backend, Engine, FitQueue
from dasktune.sklearn.fits.fit_and_score import Data, Fit, Job, failed_outcome

X, y = load_iris(return_X_y=True)


class Fickle(ClassifierMixin, BaseEstimator):
    """Raises its parameter `error`, if it has one."""

    def __init__(self, error=None):
        self.error = error

    def fit(self, X, y):
        if self.error is not None:
            raise self.error
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.zeros(len(X), dtype=int)


def without_times(results):
    return {key: value for key, value in results.items() if not key.endswith("_time")}


def test_results_are_those_of_scikit_learn():
    space = {"C": [0.01, 1.0, 100.0], "kernel": ["rbf", "linear"]}
    theirs = model_selection.GridSearchCV(SVC(), space, cv=3, return_train_score=True).fit(X, y)
    ours = GridSearchCV(SVC(), space, cv=3, return_train_score=True).fit(X, y)
    assert list(ours.cv_results_) == list(theirs.cv_results_)
    np.testing.assert_equal(without_times(ours.cv_results_), without_times(theirs.cv_results_))
    assert ours.best_params_ == theirs.best_params_
    assert ours.best_index_ == theirs.best_index_


def test_the_same_seed_draws_the_candidates_that_scikit_learn_draws():
    space = {"C": np.logspace(-2, 2, 100)}
    searches = [
        kind(SVC(), space, n_iter=3, cv=2, random_state=7).fit(X, y).cv_results_["params"]
        for kind in (model_selection.RandomizedSearchCV, RandomizedSearchCV)
    ]
    assert searches[0] == searches[1]


def test_a_fit_that_fails_gets_the_error_score():
    space = {"error": [None, ValueError("no")]}
    with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4"):
        search = GridSearchCV(Fickle(), space, cv=2, error_score=-1.0).fit(X, y)
    assert search.cv_results_["mean_test_score"][1] == -1.0
    assert search.best_params_ == {"error": None}


def test_the_exception_itself_is_raised_if_it_is_asked_for():
    error = ZeroDivisionError("mine")
    search = GridSearchCV(Fickle(error), {"error": [error]}, cv=2, error_score="raise")
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        search.fit(X, y)
    assert "fit" in [entry.name for entry in caught.traceback]


def test_an_interrupt_of_a_fit_interrupts_the_search():
    search = GridSearchCV(Fickle(), {"error": [KeyboardInterrupt()]}, cv=2)
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, y)


def test_several_batches_run_on_one_engine():
    job = Job(
        estimator=SVC(),
        scorer=_accuracy,
        return_train_score=False,
        error_score=np.nan,
        verbose=0,
        n_splits=1,
    )
    rows = np.arange(len(X))
    with Engine(job, Data(X=X, y=y), Backend(in_process=True)) as engine:
        for step in (3, 1):
            fits = [
                Fit(params={"C": c}, candidate=i, n_candidates=2, split=0) for i, c in enumerate([0.1, 10.0])
            ]
            train = rows[::step]
            outcomes = engine.run(fits, [(train, rows)])
            assert [outcome["test_scores"] for outcome in outcomes] == [
                SVC(C=c).fit(X[train], y[train]).score(X, y) for c in (0.1, 10.0)
            ]


def test_an_engine_that_was_never_used_ends_in_peace():
    job = Job(
        estimator=SVC(),
        scorer=_accuracy,
        return_train_score=False,
        error_score=np.nan,
        verbose=0,
        n_splits=1,
    )
    with Engine(job, Data(X=X, y=y), Backend(in_process=True)) as engine:
        assert engine is not None


def _accuracy(estimator, X, y):
    return float(np.mean(estimator.predict(X) == y))


def test_a_lost_fit_has_the_error_score_for_every_metric():
    search = GridSearchCV(SVC(), {}, scoring=["accuracy", "f1_macro"], refit=False, error_score=0.0)
    scorer, _ = search._get_scorers()
    job = Job(
        estimator=SVC(),
        scorer=scorer,
        return_train_score=True,
        error_score=0.0,
        verbose=0,
        n_splits=2,
    )
    outcome = failed_outcome(job, "its workers died")
    assert outcome["fit_error"] == "its workers died"
    assert outcome["test_scores"] == outcome["train_scores"] == {"accuracy": 0.0, "f1_macro": 0.0}


def test_a_queue_that_is_closed_says_how_many_fits_there_were():
    queue = FitQueue()
    queue.add([Fit(params={}, candidate=0, n_candidates=1, split=0)])
    assert queue.total_samples is None
    queue.close()
    assert queue.total_samples == len(queue) == 1
    assert queue.next_trial("t0").config == {"fit": 0}
    assert queue.next_trial("t1").finished
    queue.on_trial_complete("t0", None, error=True)
    assert queue.failed == {0: "t0"}
    queue.set_failed(0, {"test_scores": 0.0})
    assert (queue.failed, queue.results) == ({}, {0: {"test_scores": 0.0}})


class Unpicklable:
    """Stands for a client."""

    scheduler_address = "tcp://127.0.0.1:1"

    def __reduce__(self):
        raise TypeError("a client cannot be pickled")

    def __deepcopy__(self, memo):
        raise TypeError("a client cannot be copied")


def test_a_search_with_a_client_is_cloned_copied_and_pickled():
    client = Unpicklable()
    search = GridSearchCV(SVC(), {"C": [1.0]}, client=client)
    assert clone(search).client is client
    assert clone(search).get_params()["estimator__C"] == 1.0
    assert pickle.loads(pickle.dumps(search)).client == client.scheduler_address
    assert copy.deepcopy(search).client == client.scheduler_address


def test_what_names_a_cluster_and_has_no_address_stays_as_it_is():
    assert picklable_client(None) is None
    assert picklable_client("tcp://cluster:8786") == "tcp://cluster:8786"
    nowhere = object()
    assert picklable_client(nowhere) is nowhere


def test_no_jobs_at_all_are_refused_as_scikit_learn_does():
    with pytest.raises(ValueError, match="n_jobs must be None, -1 or a positive number"):
        choose_backend(None, 0)


@pytest.mark.parametrize(("n_jobs", "most"), [(None, None), (-1, None), (3, 3)])
def test_n_jobs_is_how_many_fits_may_run_at_a_time(n_jobs, most):
    assert choose_backend("tcp://cluster:8786", n_jobs) == Backend(
        in_process=False, client="tcp://cluster:8786", max_concurrent=most
    )


def test_a_search_can_be_awaited_and_takes_the_configuration_along():
    class Attentive(Fickle):
        def fit(self, X, y):
            self.seen_ = sklearn.get_config()["assume_finite"]
            return super().fit(X, y)

    async def main():
        with sklearn.config_context(assume_finite=True):
            return await GridSearchCV(Attentive(), {"error": [None]}, cv=2).fit_async(X, y)

    assert asyncio.run(main()).best_estimator_.seen_ is True


def test_dask_collections_are_computed():
    array = pytest.importorskip("dask.array")
    data, target = array.from_array(X, chunks=(50, 4)), array.from_array(y, chunks=50)
    ours = GridSearchCV(SVC(), {"C": [0.01, 1.0]}, cv=3).fit(data, target)
    theirs = model_selection.GridSearchCV(SVC(), {"C": [0.01, 1.0]}, cv=3).fit(X, y)
    np.testing.assert_equal(without_times(ours.cv_results_), without_times(theirs.cv_results_))


def test_delayed_samples_and_targets_are_computed_and_predictions_for_them_are_delayed():
    dask = pytest.importorskip("dask")
    data, target = dask.delayed(X), dask.delayed(y)
    ours = GridSearchCV(SVC(), {"C": [0.01, 1.0]}, cv=3).fit(data, target)
    theirs = model_selection.GridSearchCV(SVC(), {"C": [0.01, 1.0]}, cv=3).fit(X, y)
    np.testing.assert_equal(without_times(ours.cv_results_), without_times(theirs.cv_results_))
    predicted = ours.predict(data)
    assert hasattr(predicted, "compute")
    np.testing.assert_array_equal(predicted.compute(), theirs.predict(X))
    assert ours.score(data, target) == theirs.score(X, y)


@pytest.mark.parametrize("kinds", list(product(["array", "frame", "delayed"], repeat=3)), ids="-".join)
def test_collections_of_several_kinds_are_not_confused(kinds):
    dask = pytest.importorskip("dask")
    array, frame = pytest.importorskip("dask.array"), pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    make = {
        "array": array.from_array,
        "frame": lambda one: frame.from_pandas(pd.Series(one), npartitions=1),
        "delayed": dask.delayed,
    }
    known = [np.arange(3) + 10 * number for number in range(3)]
    first, second, third = (make[kind](one) for kind, one in zip(kinds, known, strict=True))
    found, params = compute_collections(None, first, second, {"groups": third})[1:]
    np.testing.assert_array_equal(found, known[1])
    np.testing.assert_array_equal(params["groups"], known[2])


def test_dask_collections_are_computed_after_the_last_client_has_left_its_name():
    array = pytest.importorskip("dask.array")
    import dask

    data = array.from_array(X, chunks=(50, 4))
    with dask.config.set(scheduler="dask.distributed"):
        ours = GridSearchCV(SVC(), {"C": [0.01, 1.0]}, cv=3).fit(data, y)
    assert ours.best_score_ > 0


def test_a_bad_argument_is_found_when_it_is_fitted_and_not_before():
    search = GridSearchCV(SVC(), {"C": [1.0]}, verbose="loud")
    with pytest.raises(ValueError, match="'verbose' parameter of GridSearchCV must be"):
        search.fit(X, y)
