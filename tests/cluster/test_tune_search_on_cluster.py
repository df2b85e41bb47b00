"""`TuneSearchCV` on real worker processes."""

from __future__ import annotations

import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from distributed import Client


@pytest.fixture
def client(pair):
    pytest.importorskip("sklearn")
    with Client(pair) as client:
        yield client


def iris():
    from sklearn.datasets import load_iris

    return load_iris(return_X_y=True)


def make_model(tell=lambda model: None, fitted=lambda model: None):
    """Return an estimator whose score is its gain times the steps that it was trained."""
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Model(ClassifierMixin, BaseEstimator):
        def __init__(self, gain=1.0):
            self.gain = gain

        def fit(self, X, y):
            raise NotImplementedError

        def partial_fit(self, X, y, classes=None):
            self.classes_ = classes
            self.calls_ = getattr(self, "calls_", 0) + 1
            tell(self)
            return self

        def predict(self, X):
            return np.zeros(len(X))

        def score(self, X, y):
            return self.gain * self.calls_

    return Model()


def noting(directory):
    """Return a function that leaves a line for each step, whichever process takes it."""

    def note(model):
        with open(os.path.join(directory, "steps"), "a") as file:
            file.write(f"{model.gain} {model.calls_}\n")

    return note


def wait_for_record(place, text):
    """Wait until the driver knows of something: until its journal speaks of it."""

    def content(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:  # a file that the driver has renamed meanwhile
            return b""

    deadline = time.monotonic() + 300
    while not any(text in content(path) for path in Path(place).rglob("journal/*")):
        assert time.monotonic() < deadline, f"nothing is known of {text}"
        time.sleep(0.05)


def test_results_are_those_of_a_search_in_this_process(client):
    from sklearn.linear_model import SGDClassifier

    from dasktune.sklearn import TuneSearchCV

    X, y = iris()
    found = [
        TuneSearchCV(
            SGDClassifier(random_state=0),
            {"alpha": [1e-4, 1e-3, 1e-2]},
            n_iter=3,
            max_iters=3,
            cv=3,
            random_state=0,
            client=where,
        ).fit(X, y)
        for where in (client, client.scheduler.address)
    ]
    client.close()
    here = TuneSearchCV(
        SGDClassifier(random_state=0),
        {"alpha": [1e-4, 1e-3, 1e-2]},
        n_iter=3,
        max_iters=3,
        cv=3,
        random_state=0,
    ).fit(X, y)
    for one in found:
        assert list(one.cv_results_) == list(here.cv_results_)
        for key, value in here.cv_results_.items():
            if "time" not in key and key != "trial_id":
                np.testing.assert_array_equal(one.cv_results_[key], value)


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "promoting_asha"])
def test_schedulers_stop_and_pause_candidates_and_the_best_wins(client, scheduler):
    from dasktune.sklearn import TuneSearchCV

    found = TuneSearchCV(
        make_model(),
        {"gain": list(range(1, 10))},
        n_iter=9,
        scheduler=scheduler,
        max_iters=9,
        cv=2,
        client=client,
    ).fit(*iris())
    assert found.best_params_ == {"gain": 9}
    assert found.best_iteration_ == 9
    assert found.best_estimator_.calls_ == 9
    # What was paused has gone on, and not begun again.
    np.testing.assert_array_equal(
        found.cv_results_["mean_test_score"],
        found.cv_results_["training_iteration"]
        * np.array([params["gain"] for params in found.cv_results_["params"]]),
    )


def test_a_lost_worker_costs_the_steps_since_the_last_checkpoint(client, tmp_path):
    from dasktune.sklearn import TuneSearchCV

    note, mark, place = noting(str(tmp_path)), str(tmp_path / "has-died"), tmp_path / "kept"

    def tell(model):
        note(model)
        if model.calls_ == 5 and not os.path.exists(mark):
            wait_for_record(place, b"checkpoint_000003")
            os.mkdir(mark)
            os.kill(os.getpid(), signal.SIGKILL)

    found = TuneSearchCV(
        make_model(tell),
        {"gain": [2.0]},
        n_iter=1,
        max_iters=8,
        cv=2,
        refit=False,
        storage_path=place,
        checkpoint_frequency=1,
        client=client,
    ).fit(*iris())
    steps = Path(tmp_path, "steps").read_text().split("\n")[:-1]
    assert os.path.exists(mark)
    assert found.best_score_ == 16.0
    # Eight steps of two splits, and the first split of the step that was broken off.
    assert len(steps) == 16 + 1
    assert sum(line == "2.0 5" for line in steps) == 3


@pytest.mark.slow
def test_a_candidate_that_kills_every_worker_gets_the_error_score(client):
    from sklearn.exceptions import FitFailedWarning

    from dasktune.sklearn import TuneSearchCV

    def tell(model):
        if model.gain == 2.0:
            os.kill(os.getpid(), signal.SIGKILL)

    search = TuneSearchCV(
        make_model(tell),
        {"gain": [1.0, 2.0]},
        n_iter=2,
        max_iters=2,
        cv=2,
        error_score=-1.0,
        client=client,
    )
    with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4"):
        search.fit(*iris())
    scores = dict(
        zip(
            (params["gain"] for params in search.cv_results_["params"]),
            search.cv_results_["mean_test_score"],
            strict=True,
        )
    )
    assert scores == {1.0: 2.0, 2.0: -1.0}
    assert sorted(search.cv_results_["status"]) == ["ERROR", "TERMINATED"]


@pytest.mark.slow
def test_the_exception_of_a_step_keeps_its_type(client):
    from dasktune.sklearn import TuneSearchCV

    def fail(model):
        raise ZeroDivisionError("mine")

    search = TuneSearchCV(
        make_model(fail), {"gain": [1.0]}, n_iter=1, max_iters=2, error_score="raise", client=client
    )
    with pytest.raises(ZeroDivisionError, match="mine"):
        search.fit(*iris())


def test_population_based_training_resumes_from_the_estimators_of_others(client):
    import dasktune as tune
    from dasktune.schedulers import PopulationBasedTraining
    from dasktune.sklearn import TuneSearchCV

    found = TuneSearchCV(
        make_model(),
        {"gain": tune.uniform(1, 2)},
        n_iter=4,
        scheduler=PopulationBasedTraining(
            perturbation_interval=2, hyperparam_mutations={"gain": tune.uniform(1, 2)}
        ),
        max_iters=6,
        cv=2,
        random_state=1,
        client=client,
    ).fit(*iris())
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"],
        [6 * params["gain"] for params in found.cv_results_["params"]],
    )


def test_searches_may_be_nested_in_tasks_and_find_the_cluster(client):
    from sklearn.svm import SVC

    from dasktune.sklearn import TuneSearchCV

    X, y = iris()

    def search(X, y):
        found = TuneSearchCV(SVC(), {"C": [0.001, 1.0]}, n_iter=2, cv=2).fit(X, y)
        return found.best_params_

    assert client.submit(search, X, y, pure=False).result(timeout=120) == {"C": 1.0}


def test_the_configuration_and_the_warning_filters_travel_along(client):
    import sklearn

    from dasktune.sklearn import TuneSearchCV

    def look(model):
        assert sklearn.get_config()["assume_finite"]
        warnings.warn("as an error", RuntimeWarning, stacklevel=1)

    search = TuneSearchCV(
        make_model(look), {"gain": [1.0]}, n_iter=1, max_iters=2, error_score="raise", client=client
    )
    with sklearn.config_context(assume_finite=True), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="as an error"):
            search.fit(*iris())


@pytest.mark.slow
def test_a_metric_or_a_budget_of_time_ends_candidates(client, tmp_path):
    from dasktune.sklearn import TuneSearchCV

    stopped = TuneSearchCV(
        make_model(),
        {"gain": [1.0, 2.0]},
        n_iter=2,
        max_iters=8,
        cv=2,
        stop={"mean_test_score": 4.0},
        client=client,
    ).fit(*iris())
    gains = [params["gain"] for params in stopped.cv_results_["params"]]
    assert [4 / gain for gain in gains] == list(stopped.cv_results_["training_iteration"])

    def tell(model):
        # Endless, but for the budget.
        time.sleep(0.05)

    with warnings.catch_warnings():
        # Those that were not begun have no score.
        warnings.simplefilter("ignore")
        found = TuneSearchCV(
            make_model(tell),
            {"gain": [1.0]},
            n_iter=1,
            max_iters=10**9,
            cv=2,
            time_budget_s=10.0,
            refit=False,
            client=client,
        ).fit(*iris())
    assert found.n_trials_ == 1
    assert found.cv_results_["training_iteration"][0] >= 1


def test_callbacks_get_every_candidate_and_every_step(client):
    from dasktune import Callback
    from dasktune.sklearn import TuneSearchCV

    class Ear(Callback):
        def __init__(self):
            self.steps, self.ends = [], []

        def on_trial_result(self, iteration, trials, trial, result, **info):
            self.steps.append((trial.trial_id, result["training_iteration"]))

        def on_trial_complete(self, iteration, trials, trial, **info):
            self.ends.append(trial.trial_id)

    ear = Ear()
    found = TuneSearchCV(
        make_model(),
        {"gain": [1.0, 2.0, 3.0]},
        n_iter=3,
        max_iters=2,
        cv=2,
        callbacks=[ear],
        client=client,
    ).fit(*iris())
    ids = list(found.cv_results_["trial_id"])
    assert sorted(ear.ends) == sorted(ids)
    assert sorted(ear.steps) == sorted((one, step) for one in ids for step in (1, 2))


def test_a_search_that_was_interrupted_on_the_cluster_resumes_there(client, tmp_path):
    from dasktune import Callback, ExperimentAnalysis
    from dasktune.sklearn import TuneSearchCV

    class Interrupter(Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            if result["training_iteration"] == 3:
                os.kill(os.getpid(), signal.SIGINT)

    def made(**more):
        return TuneSearchCV(
            make_model(noting(str(tmp_path))),
            {"gain": [1.0, 2.0, 3.0]},
            n_iter=3,
            max_iters=6,
            cv=2,
            refit=False,
            storage_path=tmp_path / "kept",
            name="mine",
            resume=True,
            checkpoint_frequency=1,
            client=client,
            **more,
        )

    with pytest.raises(KeyboardInterrupt):
        made(callbacks=[Interrupter()]).fit(*iris())
    steps_before = Path(tmp_path, "steps").read_text().splitlines()
    # How many steps of each candidate are in its newest checkpoint.
    saved = {
        result.config["gain"]: max(
            (metrics["training_iteration"] for _, metrics in result.best_checkpoints), default=0
        )
        for result in ExperimentAnalysis(str(tmp_path / "kept" / "mine")).trials
    }
    assert max(saved.values()) >= 3
    found = made().fit(*iris())
    assert list(found.cv_results_["training_iteration"]) == [6, 6, 6]
    np.testing.assert_array_equal(
        found.cv_results_["mean_test_score"],
        [6 * params["gain"] for params in found.cv_results_["params"]],
    )
    # Each candidate is resumed from that checkpoint, on both folds.
    steps = Path(tmp_path, "steps").read_text().splitlines()[len(steps_before) :]
    assert sorted(steps) == sorted(
        f"{gain} {step}" for gain, done in saved.items() for step in range(done + 1, 7) for _ in range(2)
    )


def test_on_the_loop_of_an_asynchronous_client_a_search_is_awaited(pair):
    pytest.importorskip("sklearn")
    import asyncio

    from sklearn.svm import SVC

    from dasktune.sklearn import HalvingRandomSearchCV, RandomizedSearchCV, TuneSearchCV

    async def fit_all():
        async with Client(pair.scheduler_address, asynchronous=True) as client:
            tuned = TuneSearchCV(make_model(), {"gain": [1.0, 2.0]}, n_iter=2, max_iters=2, cv=2)
            drawn = RandomizedSearchCV(SVC(), {"C": [1.0, 2.0]}, n_iter=2, cv=2, client=client)
            halved = HalvingRandomSearchCV(SVC(), {"C": [1.0, 2.0]}, n_candidates=2, cv=2, min_resources=40)
            return [await one.fit(*iris()) for one in (tuned, drawn, halved)]

    tuned, drawn, halved = asyncio.run(fit_all())
    assert tuned.best_params_ == {"gain": 2.0}
    assert drawn.best_params_["C"] in (1.0, 2.0)
    assert halved.best_params_["C"] in (1.0, 2.0)
