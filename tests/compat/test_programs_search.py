"""Programs with searchers, as Ray Tune's users write them; only the import differs."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

import dasktune as tune
from dasktune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, Searcher

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("connected")]

SPACE = {"x": tune.uniform(-1, 1), "kind": tune.choice(["a", "b"])}


def objective(config):
    for step in range(1, 3):
        tune.report({"loss": config["x"] ** 2 / step})


def fit(run_config, search_alg, space=None, **more):
    return tune.Tuner(
        objective,
        param_space=SPACE if space is None else space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", search_alg=search_alg, num_samples=4, **more),
        run_config=run_config(),
    ).fit()


def test_optuna_under_a_limit(run_config):
    pytest.importorskip("optuna")
    from dasktune.search.optuna import OptunaSearch

    algo = ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=2)
    results = fit(run_config, algo)
    assert results.num_terminated == 4
    assert {result.config["kind"] for result in results} <= {"a", "b"}


def test_optuna_with_points_to_evaluate_and_a_space_of_its_own(run_config):
    pytest.importorskip("optuna")
    from dasktune.search.optuna import OptunaSearch

    def space(trial):
        trial.suggest_float("x", -1, 1)
        return {"kind": "a"}

    searcher = OptunaSearch(space, metric="loss", mode="min", points_to_evaluate=[{"x": 0.0}], sampler=None)
    tuner = tune.Tuner(
        objective,
        tune_config=tune.TuneConfig(search_alg=searcher, num_samples=2),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert results.get_best_result("loss", "min").config == {"x": 0.0, "kind": "a"}


def test_hyperopt(run_config):
    pytest.importorskip("hyperopt")
    from dasktune.search.hyperopt import HyperOptSearch

    results = fit(run_config, HyperOptSearch(random_state_seed=1), max_concurrent_trials=2)
    assert results.num_terminated == 4


def test_bayesian_optimisation(run_config):
    pytest.importorskip("bayes_opt")
    from dasktune.search.bayesopt import BayesOptSearch

    algo = ConcurrencyLimiter(BayesOptSearch(random_search_steps=2), max_concurrent=2)
    assert fit(run_config, algo, {"x": tune.uniform(-1, 1)}).num_terminated == 4


def test_a_repeater(run_config):
    pytest.importorskip("optuna")
    from dasktune.search.optuna import OptunaSearch

    algo = Repeater(OptunaSearch(seed=1), repeat=2)
    results = fit(run_config, algo)
    assert sorted(result.config["__trial_index__"] for result in results) == [0, 0, 1, 1]


def test_random_search_with_presets_and_a_constant_grid(run_config):
    algo = BasicVariantGenerator(points_to_evaluate=[{"x": 0.5}], constant_grid_search=True, random_state=3)
    space = {"x": tune.uniform(-1, 1), "fold": tune.grid_search([1, 2])}
    results = fit(run_config, algo, space)
    assert [result.config["x"] for result in results][:2] == [0.5, 0.5]
    assert len(results) == 8


class OwnSearch(Searcher):
    """The one of Ray Tune's guide, with what Ray Tune's users save and restore."""

    def __init__(self, metric="loss", mode="min", **kwargs):
        super().__init__(metric=metric, mode=mode, **kwargs)
        self.configurations, self.completed = {}, {}
        self.random = random.Random(0)

    def suggest(self, trial_id):
        self.configurations[trial_id] = {"x": self.random.uniform(-1, 1)}
        return self.configurations[trial_id]

    def on_trial_complete(self, trial_id, result=None, error=False):
        if result:
            self.completed[trial_id] = result[self.metric]

    def save(self, checkpoint_path):
        with open(checkpoint_path, "wb") as file:
            pickle.dump(self.configurations, file)

    def restore(self, checkpoint_path):
        with open(checkpoint_path, "rb") as file:
            self.configurations = pickle.load(file)


def test_a_searcher_of_the_users_own(run_config):
    searcher = OwnSearch()
    results = fit(run_config, searcher, {})
    assert results.num_terminated == 4
    assert {result.config["x"] for result in results} == {
        config["x"] for config in searcher.configurations.values()
    }
    assert searcher.completed == {one.trial_id: one.metrics["loss"] for one in results}


def test_a_searcher_by_its_name(run_config):
    pytest.importorskip("optuna")
    assert fit(run_config, "optuna", scheduler="asha").num_terminated == 4


def test_a_searcher_that_is_saved_restored_and_given_an_analysis(run_config, tmp_path):
    pytest.importorskip("optuna")
    from dasktune.search.optuna import OptunaSearch

    space = OptunaSearch.convert_search_space(SPACE)
    searcher = OptunaSearch(space, metric="loss", mode="min")
    goal = tune.TuneConfig(search_alg=searcher, num_samples=3)
    tune.Tuner(objective, tune_config=goal, run_config=run_config()).fit()
    searcher.save(str(tmp_path / "searcher"))
    again = OptunaSearch(space, metric="loss", mode="min")
    again.restore(str(tmp_path / "searcher"))
    goal = tune.TuneConfig(search_alg=again, num_samples=2)
    more = tune.RunConfig(name="more", storage_path=str(tmp_path), verbose=0)
    tune.Tuner(objective, tune_config=goal, run_config=more).fit()
    assert len(again.study.trials) == 5
    analysis = tune.ExperimentAnalysis(str(tmp_path / "exp"))
    fresh = OptunaSearch(space, metric="loss", mode="min")
    fresh.add_evaluated_trials(analysis, "loss")
    fresh.add_evaluated_trials(analysis.trials[0], "loss")
    assert fresh.suggest("by hand").keys() == {"x", "kind"}
    assert len(fresh.study.trials) == 3 + 1 + 1


@pytest.fixture
def numpy_state():
    """Restore NumPy's global generator after a program that seeds it."""
    state = np.random.get_state()  # noqa: NPY002
    yield
    np.random.set_state(state)  # noqa: NPY002


@pytest.mark.usefixtures("numpy_state")
def test_numpys_seed_repeats_a_search(tmp_path):
    def search(name):
        results = tune.Tuner(
            objective,
            param_space=SPACE,
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=3),
            run_config=tune.RunConfig(name=name, storage_path=str(tmp_path), verbose=0),
        ).fit()
        return [result.config for result in results]

    np.random.seed(1234)  # noqa: NPY002
    first, second = search("first"), search("second")
    np.random.seed(1234)  # noqa: NPY002
    assert search("again") == first
    assert second != first
