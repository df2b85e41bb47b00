"""What Ray Tune's example programs do and the other programs of this folder do not.

They are written for these tests, not copied. The page for users of Ray Tune lists the examples.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest

import dasktune as tune
from dasktune.logger import LoggerCallback
from dasktune.schedulers import PB2, AsyncHyperBandScheduler, HyperBandScheduler, PopulationBasedTraining
from dasktune.search import ConcurrencyLimiter

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("connected")]


def objective(config):
    """Report a loss that depends on a width, a height and a factor."""
    for step in range(config["steps"]):
        loss = 1 / (0.1 + config["width"] * step / 100) + config["height"] * 0.1 * config.get("mult", 1)
        tune.report({"iterations": step, "mean_loss": loss, "gain": loss * config["width"]})


def flat(config):
    """Return a configuration without the levels that a conditional space has."""
    values = {}
    for name, value in config.items():
        values |= flat(value) if isinstance(value, dict) else {name: value}
    return values


def every_third(config):
    """Save a checkpoint with each third result, and none with the others."""
    first = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            first = json.loads(Path(directory, "step.json").read_text()) + 1
    for step in range(first, 30):
        with tempfile.TemporaryDirectory() as directory:
            kept = None
            if step % 3 == 0:
                Path(directory, "step.json").write_text(json.dumps(step))
                kept = tune.Checkpoint.from_directory(directory)
            tune.report({"reward": config["height"] * step}, checkpoint=kept)


def until_done(config):
    """Train without an end of its own; the result says when it is enough."""
    step, accuracy = 1, 0.0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        step, accuracy = state["step"] + 1, state["accuracy"]
    while True:
        accuracy += config["lr"] * 10
        kept = None
        if step % config["interval"] == 0:
            kept = tune.Checkpoint.from_dict({"step": step, "accuracy": accuracy})
        tune.report({"mean_accuracy": accuracy, "done": accuracy > 2}, checkpoint=kept)
        step += 1


class PrintsResults(LoggerCallback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        print(f"logger: {trial} {result['mean_loss']}")


def name_of(trial):
    return f"{trial.trainable_name}_{trial.trial_id}_123"


def test_asynchronous_hyperband_of_a_function_with_resources(run_config):
    results = tune.Tuner(
        tune.with_resources(objective, {"cpu": 1, "gpu": 0}),
        run_config=run_config(stop={"training_iteration": 9999}),
        tune_config=tune.TuneConfig(
            metric="mean_loss",
            mode="min",
            scheduler=AsyncHyperBandScheduler(grace_period=2, max_t=100),
            num_samples=6,
        ),
        param_space={"steps": 10, "width": tune.uniform(10, 100), "height": tune.uniform(0, 100)},
    ).fit()
    assert results.num_errors == 0
    # Trials are stopped at the milestones 2 and 8, or train to their end.
    assert {len(result.history) for result in results} <= {2, 8, 10}


def test_hyperband_of_a_function_that_saves_each_third_result(run_config):
    results = tune.Tuner(
        every_third,
        run_config=run_config(
            stop={"training_iteration": 10}, failure_config=tune.FailureConfig(fail_fast=True)
        ),
        tune_config=tune.TuneConfig(
            num_samples=6, metric="reward", mode="max", scheduler=HyperBandScheduler(max_t=20)
        ),
        param_space={"height": tune.uniform(0, 100)},
    ).fit()
    assert results.num_errors == 0
    assert max(result.metrics["training_iteration"] for result in results) == 10


@pytest.mark.parametrize("scheduler", ["pbt", "pb2"])
def test_a_population_of_functions_ends_by_their_results(scheduler, run_config):
    common = {"time_attr": "training_iteration", "perturbation_interval": 5}
    if scheduler == "pbt":
        mutations = {"lr": lambda: random.uniform(0.001, 0.02), "some_other_factor": [1, 2]}
        policy = PopulationBasedTraining(**common, hyperparam_mutations=mutations)
    else:
        policy = PB2(**common, hyperparam_bounds={"lr": [0.0001, 0.02]})
    results = tune.Tuner(
        until_done,
        run_config=run_config(
            stop={"done": True, "training_iteration": 30},
            failure_config=tune.FailureConfig(fail_fast=True),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_score_attribute="mean_accuracy", num_to_keep=2
            ),
        ),
        tune_config=tune.TuneConfig(
            scheduler=policy, metric="mean_accuracy", mode="max", num_samples=4, reuse_actors=True
        ),
        # The first ones are equal: only the scheduler can make them differ.
        param_space={"lr": 0.01, "some_other_factor": 1, "interval": 5},
    ).fit()
    assert results.num_errors == 0
    for result in results:
        assert result.metrics["done"] or result.metrics["training_iteration"] == 30
        assert len(result.best_checkpoints) <= 2


def test_a_logger_and_names_of_trials_and_directories(run_config, capsys):
    results = tune.Tuner(
        objective,
        run_config=run_config(callbacks=[PrintsResults()], stop={"training_iteration": 2}),
        tune_config=tune.TuneConfig(
            metric="mean_loss",
            mode="min",
            num_samples=2,
            trial_name_creator=name_of,
            trial_dirname_creator=name_of,
        ),
        param_space={"steps": 9, "width": tune.randint(10, 100), "height": tune.loguniform(10, 100)},
    ).fit()
    for result in results:
        assert Path(result.path).name == f"objective_{result.trial_id}_123"
    assert capsys.readouterr().out.count("logger: objective_") == 4


def test_a_space_that_is_defined_by_running(run_config):
    pytest.importorskip("optuna")
    from dasktune.search.optuna import OptunaSearch

    def define(trial):
        activation = trial.suggest_categorical("activation", ["relu", "tanh"])
        trial.suggest_float("width", 0, 20)
        trial.suggest_float("height", -100, 100)
        if activation == "relu":
            trial.suggest_float("mult", 1, 2)
        return {"steps": 3}

    search = ConcurrencyLimiter(OptunaSearch(space=define, metric="mean_loss", mode="min"), max_concurrent=4)
    results = tune.Tuner(
        objective,
        tune_config=tune.TuneConfig(
            metric="mean_loss",
            mode="min",
            search_alg=search,
            scheduler=AsyncHyperBandScheduler(),
            num_samples=8,
        ),
        run_config=run_config(),
    ).fit()
    configs = [result.config for result in results]
    assert {config["steps"] for config in configs} == {3}
    assert {("mult" in config) == (config["activation"] == "relu") for config in configs} == {True}


def test_two_objectives_of_a_searcher(run_config):
    pytest.importorskip("optuna")
    from dasktune.search.optuna import OptunaSearch

    search = OptunaSearch(metric=["mean_loss", "gain"], mode=["min", "max"])
    results = tune.Tuner(
        objective,
        tune_config=tune.TuneConfig(search_alg=ConcurrencyLimiter(search, max_concurrent=4), num_samples=5),
        param_space={
            "steps": 3,
            "width": tune.uniform(0, 20),
            "height": tune.uniform(-100, 100),
            "activation": tune.choice(["relu", "tanh"]),
        },
        run_config=run_config(),
    ).fit()
    lowest = results.get_best_result("mean_loss", "min").metrics["mean_loss"]
    highest = results.get_best_result("gain", "max").metrics["gain"]
    assert lowest == min(result.metrics["mean_loss"] for result in results)
    assert highest == max(result.metrics["gain"] for result in results)


def test_a_conditional_space_of_hyperopt(run_config):
    hp = pytest.importorskip("hyperopt").hp
    from dasktune.search.hyperopt import HyperOptSearch

    space = {
        "activation": hp.choice(
            "activation",
            [{"activation": "relu", "mult": hp.uniform("mult", 1, 2)}, {"activation": "tanh"}],
        ),
        "width": hp.uniform("width", 0, 20),
        "height": hp.uniform("height", -100, 100),
        "steps": 3,
    }

    def unpacked(config):
        return objective(flat(config))

    search = ConcurrencyLimiter(HyperOptSearch(space=space, metric="mean_loss", mode="min"), max_concurrent=4)
    results = tune.Tuner(
        unpacked,
        tune_config=tune.TuneConfig(
            metric="mean_loss",
            mode="min",
            search_alg=search,
            scheduler=AsyncHyperBandScheduler(),
            num_samples=6,
        ),
        run_config=run_config(),
    ).fit()
    assert results.num_errors == 0
    for result in results:
        config = flat(result.config)
        assert ("mult" in config) == (config["activation"] == "relu")


@pytest.mark.slow
def test_lightgbm_with_renamed_metrics(run_config):
    pytest.importorskip("lightgbm")
    pytest.importorskip("sklearn")

    def train_breast_cancer(config):
        import lightgbm
        from sklearn.datasets import load_breast_cancer
        from sklearn.model_selection import train_test_split

        from dasktune.integration.lightgbm import TuneReportCheckpointCallback

        data, target = load_breast_cancer(return_X_y=True)
        train_x, test_x, train_y, test_y = train_test_split(data, target, random_state=0)
        names = {"binary_error": "eval-binary_error", "binary_logloss": "eval-binary_logloss"}
        lightgbm.train(
            {**config, "num_threads": 1},
            lightgbm.Dataset(train_x, label=train_y),
            num_boost_round=10,
            valid_sets=[lightgbm.Dataset(test_x, label=test_y)],
            valid_names=["eval"],
            callbacks=[TuneReportCheckpointCallback(names)],
        )

    results = tune.Tuner(
        train_breast_cancer,
        tune_config=tune.TuneConfig(
            metric="binary_error", mode="min", num_samples=1, scheduler=AsyncHyperBandScheduler()
        ),
        param_space={
            "objective": "binary",
            "metric": ["binary_error", "binary_logloss"],
            "verbose": -1,
            "boosting_type": tune.grid_search(["gbdt", "dart"]),
            "num_leaves": tune.randint(10, 1000),
        },
        run_config=run_config(),
    ).fit()
    assert results.num_errors == 0
    assert {"binary_error", "binary_logloss"} <= set(results.get_best_result().metrics)
