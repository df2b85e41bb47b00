"""Programs as Ray Tune's users write them; only the import differs.

They name no cluster: like Ray Tune, dasktune takes the one that the process is connected to.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

import dasktune as tune
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining
from dasktune.search import BasicVariantGenerator
from dasktune.stopper import CombinedStopper, MaximumIterationStopper, TrialPlateauStopper

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("connected")]


def objective(config):
    for step in range(8):
        tune.report({"score": config["a"] * step, "cost": {"loss": 8 - step}})


class Counter(tune.Trainable):
    def setup(self, config, offset=0):
        self.value = config["start"] + offset

    def step(self):
        self.value += 1
        return {"value": self.value}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "value.json").write_text(json.dumps(self.value))

    def load_checkpoint(self, checkpoint_dir):
        self.value = json.loads(Path(checkpoint_dir, "value.json").read_text())


def resumable(config):
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            start = json.loads(Path(checkpoint_dir, "step.json").read_text()) + 1
    for step in range(start, 6):
        with tempfile.TemporaryDirectory() as temporary:
            Path(temporary, "step.json").write_text(json.dumps(step))
            tune.report(
                {"step": step, "lr": config["lr"]},
                checkpoint=tune.Checkpoint.from_directory(temporary),
            )
        if step == 2 and "flag" in config and not Path(config["flag"]).exists():
            raise RuntimeError("once")


def test_what_ray_tune_adds_to_the_metrics_of_a_result(run_config):
    space = {"a": tune.grid_search([1, 2]), "b": {"c": 3}}
    results = tune.Tuner(objective, param_space=space, run_config=run_config()).fit()
    for number, result in enumerate(results):
        assert result.metrics["config"] == {"a": number + 1, "b": {"c": 3}} == result.config
        assert result.metrics["trial_id"] == result.trial_id
        assert result.metrics["experiment_tag"] == f"{number}_a={number + 1}"
    read = tune.ExperimentAnalysis(results.experiment_path)
    assert read.results[result.trial_id]["config"] == result.config
    assert read.results_df.loc[result.trial_id, "config/b/c"] == 3


def test_a_function_a_grid_and_the_best_result(run_config):
    tuner = tune.Tuner(
        objective,
        param_space={"a": tune.grid_search([1, 2, 3]), "b": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=2),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert len(results) == 6
    best = results.get_best_result(metric="cost/loss", mode="min")
    assert best.metrics["cost/loss"] == 1
    assert results.get_best_result().config["a"] == 3


def test_a_class_with_checkpoints_parameters_and_resources(run_config):
    trainable = tune.with_resources(tune.with_parameters(Counter, offset=10), {"cpu": 1})
    results = tune.Tuner(
        trainable,
        param_space={"start": tune.choice([5])},
        run_config=run_config(
            stop={"training_iteration": 3},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
        ),
    ).fit()
    assert results[0].metrics["value"] == 18
    assert len(results[0].best_checkpoints) == 2
    best_checkpoint, best_metrics = results[0].best_checkpoints[-1]
    assert best_metrics["value"] == 18
    with best_checkpoint.as_directory() as checkpoint_dir:
        assert json.loads(Path(checkpoint_dir, "value.json").read_text()) == 18


def test_early_stopping_by_asha_under_a_limit(run_config):
    results = tune.Tuner(
        objective,
        param_space={"a": tune.randint(1, 100)},
        tune_config=tune.TuneConfig(
            num_samples=6,
            scheduler=ASHAScheduler(metric="score", mode="max", max_t=8, grace_period=2, reduction_factor=2),
            search_alg=BasicVariantGenerator(max_concurrent=2),
        ),
        run_config=run_config(),
    ).fit()
    assert not results.errors
    assert max(len(result.history) for result in results) == 8


def test_population_based_training(run_config):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="lr",
        mode="max",
        perturbation_interval=2,
        hyperparam_mutations={"lr": tune.uniform(0.1, 1.0)},
    )
    results = tune.Tuner(
        resumable,
        param_space={"lr": tune.uniform(0.1, 1.0)},
        tune_config=tune.TuneConfig(num_samples=4, scheduler=scheduler, reuse_actors=False),
        run_config=run_config(),
    ).fit()
    assert results.num_terminated == 4


def test_stoppers_alone_and_together(run_config):
    stopper = CombinedStopper(
        MaximumIterationStopper(max_iter=6),
        TrialPlateauStopper("cost/loss", std=0.1),
    )
    results = tune.Tuner(objective, param_space={"a": 1}, run_config=run_config(stop=stopper)).fit()
    assert results[0].metrics["training_iteration"] == 6


def test_a_failed_experiment_is_restored(run_config, tmp_path):
    space = {"lr": 1, "flag": str(tmp_path / "flag")}
    results = tune.Tuner(resumable, param_space=space, run_config=run_config()).fit()
    assert results.num_errors == 1
    (tmp_path / "flag").touch()
    path = str(tmp_path / "exp")
    assert tune.Tuner.can_restore(path)
    tuner = tune.Tuner.restore(path, trainable=resumable, resume_errored=True)
    assert tuner.fit()[0].metrics["step"] == 5
    skip = tune.ResumeConfig.ResumeType.SKIP
    assert tune.ResumeConfig(errored=skip).errored == "skip"


def test_failures_are_tried_again(run_config, tmp_path):
    flag = tmp_path / "flag"

    def touching(config):
        if not flag.exists():
            flag.touch()
            raise RuntimeError("once")
        return {"score": 1}

    failure_config = tune.FailureConfig(max_failures=1)
    results = tune.Tuner(touching, run_config=run_config(failure_config=failure_config)).fit()
    assert results[0].metrics["score"] == 1


def test_tune_run_and_the_analysis(tmp_path):
    analysis = tune.run(
        objective,
        name="classic",
        config={"a": tune.sample_from(lambda spec: 4)},
        metric="score",
        mode="max",
        resources_per_trial={"cpu": 1},
        storage_path=str(tmp_path),
        max_concurrent_trials=0,
        verbose=0,
    )
    assert analysis.best_config == {"a": 4}
    assert analysis.best_result["score"] == 28
    assert analysis.get_best_trial("score", "max", "all").last_result["score"] == 28


def test_run_experiments(tmp_path):
    trials = tune.run_experiments(
        tune.Experiment("one", Counter, config={"start": 1}, stop={"value": 3}),
        verbose=0,
        storage_path=str(tmp_path),
    )
    assert [trial.last_result["value"] for trial in trials] == [3]


def test_what_a_trial_knows_of_itself(run_config):
    def asking(config):
        context = tune.get_context()
        assert isinstance(context, tune.TuneContext)
        return {
            "name": context.get_experiment_name(),
            "id": context.get_trial_id(),
            "dir": context.get_trial_dir(),
            "cpus": context.get_trial_resources().required_resources["CPU"],
        }

    (result,) = tune.Tuner(asking, run_config=run_config()).fit()
    own = result.metrics
    assert (own["name"], own["id"], own["cpus"]) == ("exp", result.trial_id, 1)
    assert own["dir"] == result.path


def test_names_of_trainables_schedulers_and_searchers(run_config):
    tune.register_trainable("compat-objective", objective)
    results = tune.Tuner(
        "compat-objective",
        param_space={"a": tune.choice([1])},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=tune.create_scheduler("async_hyperband", max_t=8),
            search_alg=tune.create_searcher("random"),
        ),
        run_config=run_config(),
    ).fit()
    assert results.num_terminated == 1


def test_name_creators_use_what_was_searched_for(run_config):
    def named(trial):
        return "_".join(f"{key}={value}" for key, value in trial.evaluated_params.items())

    tuner = tune.Tuner(
        lambda config: {"loss": config["x"]},
        param_space={"x": tune.grid_search([1, 2]), "data": "digits"},
        tune_config=tune.TuneConfig(trial_name_creator=named, trial_dirname_creator=named),
        run_config=run_config(),
    )
    assert sorted(Path(result.path).name for result in tuner.fit()) == ["x=1", "x=2"]
