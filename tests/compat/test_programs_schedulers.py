"""Programs with each scheduler, as Ray Tune's users write them; only the import differs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

import dasktune as tune
from dasktune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
)
from dasktune.schedulers.pb2 import PB2
from dasktune.search import ConcurrencyLimiter
from dasktune.search.bohb import TuneBOHB

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("connected")]


class Slope(tune.Trainable):
    """Its score grows by its slope with each step."""

    def setup(self, config):
        self.slope, self.score = config["slope"], 0.0

    def step(self):
        self.score += self.slope
        return {"score": self.score, "slope": self.slope}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "score.json").write_text(json.dumps(self.score))

    def load_checkpoint(self, checkpoint_dir):
        self.score = json.loads(Path(checkpoint_dir, "score.json").read_text())

    def reset_config(self, new_config):
        self.slope = new_config["slope"]
        return True


def climbing(config):
    """As `Slope`, as a function."""
    checkpoint, score, step = tune.get_checkpoint(), 0.0, 0
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            score, step = json.loads(Path(checkpoint_dir, "state.json").read_text())
    while step < 8:
        score, step = score + config["slope"], step + 1
        with tempfile.TemporaryDirectory() as temporary:
            Path(temporary, "state.json").write_text(json.dumps([score, step]))
            tune.report(
                {"score": score, "slope": config["slope"]},
                checkpoint=tune.Checkpoint.from_directory(temporary),
            )


def lengths(results):
    return sorted(result.metrics["training_iteration"] for result in results)


def test_hyperband(run_config):
    results = tune.Tuner(
        Slope,
        param_space={"slope": tune.grid_search([1, 2, 3, 4, 5, 6])},
        tune_config=tune.TuneConfig(
            scheduler=HyperBandScheduler(
                time_attr="training_iteration",
                metric="score",
                mode="max",
                max_t=9,
                reduction_factor=3,
            )
        ),
        run_config=run_config(),
    ).fit()
    assert results.num_terminated == 6
    assert lengths(results)[0] < lengths(results)[-1] == 9


def test_bohb(run_config):
    algo = TuneBOHB(metric="score", mode="max", seed=3)
    results = tune.Tuner(
        Slope,
        param_space={"slope": tune.uniform(1, 4)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            search_alg=ConcurrencyLimiter(algo, max_concurrent=4),
            scheduler=HyperBandForBOHB(time_attr="training_iteration", max_t=4, reduction_factor=2),
            num_samples=5,
        ),
        run_config=run_config(),
    ).fit()
    assert results.num_terminated == 5
    assert lengths(results)[-1] == 4


def test_median_stopping(run_config):
    results = tune.Tuner(
        climbing,
        param_space={"slope": tune.grid_search([4, 3, 2, 1])},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=MedianStoppingRule(
                time_attr="training_iteration", grace_period=2, min_samples_required=2
            ),
        ),
        run_config=run_config(),
    ).fit()
    assert lengths(results)[0] < 8
    assert results.get_best_result().config["slope"] == 4


def test_population_based_training_and_its_replay(run_config, tmp_path):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        resample_probability=0.25,
        hyperparam_mutations={"slope": tune.uniform(1, 4)},
        synch=True,
    )
    results = tune.Tuner(
        climbing,
        param_space={"slope": tune.grid_search([1, 4])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler),
        run_config=run_config(),
    ).fit()
    assert results.num_terminated == 2
    policies = sorted(Path(results.experiment_path).glob("pbt_policy_*.txt"))
    assert policies
    analysis = tune.run(
        Slope,
        scheduler=PopulationBasedTrainingReplay(str(policies[0])),
        stop={"training_iteration": 8},
        storage_path=str(tmp_path / "replayed"),
        verbose=0,
    )
    assert len(analysis.trials) == 1


def test_pb2(run_config):
    pytest.importorskip("scipy")
    results = tune.Tuner(
        climbing,
        param_space={"slope": tune.uniform(1, 4)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=3,
            scheduler=PB2(
                time_attr="training_iteration",
                perturbation_interval=2,
                hyperparam_bounds={"slope": [1, 4]},
            ),
        ),
        run_config=run_config(),
    ).fit()
    assert results.num_terminated == 3


def test_resources_that_change(run_config):
    def more_from_the_third_on(tune_controller, trial, result, scheduler):
        if result["training_iteration"] < 3:
            return None
        return tune.PlacementGroupFactory([{"CPU": 0.5}])

    class Telling(Slope):
        def step(self):
            return {**super().step(), "cpus": self.trial_resources.required_resources["CPU"]}

    results = tune.Tuner(
        tune.with_resources(Telling, tune.PlacementGroupFactory([{"CPU": 1}])),
        param_space={"slope": 1},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=ResourceChangingScheduler(
                base_scheduler=ASHAScheduler(max_t=6),
                resources_allocation_function=more_from_the_third_on,
            ),
        ),
        run_config=run_config(checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1)),
    ).fit()
    assert results[0].history[0]["cpus"] == 1
    assert results[0].metrics["cpus"] == 0.5


def test_an_allocation_function_like_that_of_ray_tunes_example(run_config):
    def equal_shares(tune_controller, trial, result, scheduler):
        first = scheduler._base_trial_resources
        least = first.required_resources.get("CPU", 0)
        cpus = tune_controller._resource_updater.get_num_cpus()
        gpus = tune_controller._resource_updater.get_num_gpus()
        share = max(least, cpus // len(tune_controller.get_live_trials()))
        return tune.PlacementGroupFactory([{"CPU": share, "GPU": gpus}])

    class Telling(Slope):
        def step(self):
            return {**super().step(), "cpus": self.trial_resources.required_resources["CPU"]}

    results = tune.Tuner(
        tune.with_resources(Telling, tune.PlacementGroupFactory([{"CPU": 0.5, "GPU": 0}])),
        param_space={"slope": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(
            scheduler=ResourceChangingScheduler(
                base_scheduler=FIFOScheduler(), resources_allocation_function=equal_shares
            ),
        ),
        run_config=run_config(
            stop={"training_iteration": 4},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    ).fit()
    assert [result.metrics["score"] for result in results] == [4, 8]
    # The first result is reported while both trials are live: each may have one of the two CPUs.
    assert {row["cpus"] for result in results for row in result.history} == {0.5, 1}


def test_distributed_resources_are_named_alike(run_config):
    from dasktune.schedulers import DistributeResources

    scheduler = ResourceChangingScheduler(
        base_scheduler=FIFOScheduler(), resources_allocation_function=DistributeResources()
    )
    results = tune.Tuner(
        Slope,
        param_space={"slope": 1},
        tune_config=tune.TuneConfig(scheduler=scheduler),
        run_config=run_config(stop={"training_iteration": 3}),
    ).fit()
    assert results[0].metrics["score"] == 3
