"""The same seed gives the same journal, to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.schedulers import PB2, ASHAScheduler, PopulationBasedTraining, TrialScheduler
from dasktune.space import choice, grid_search, loguniform
from dasktune.testing import MemoryStore, simulate

LOSE = {70.0: 1, 200.0: 4, 201.0: 0, 330.0: 2}


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    for epoch in range(checkpoint or 0, 9):
        if config["lr"] > 0.9 and epoch == 4:
            raise ValueError("diverged")
        loss = config["depth"] * config["lr"] / (epoch + 1)
        yield {"loss": loss, "eval": {"names": {"b", "a", "c"}}}, 30.0 + epoch, epoch + 1


def scheduler_of(name: str) -> str | TrialScheduler:
    if name == "asha":
        return ASHAScheduler(max_t=9, reduction_factor=3, brackets=2)
    if "pb2" in name:
        return PB2(
            time_attr="training_iteration",
            perturbation_interval=3,
            hyperparam_bounds={"lr": loguniform(1e-3, 1.0)},
            synch=name == "synch-pb2",
        )
    if "pbt" not in name:
        return name
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": loguniform(1e-3, 1.0), "layer": ["a", "b", "c"]},
        synch=name == "synch-pbt",
    )


def journal(seed: int, scheduler: str = "asha") -> bytes:
    """Run an experiment with losses, failures, retention and a scheduler that stops trials."""
    store = MemoryStore()
    simulate(
        curve,
        param_space={
            "lr": loguniform(1e-3, 1.0),
            "depth": grid_search([1, 2]),
            "layer": choice(["a", "b", "c"]),
        },
        tune_config=TuneConfig(
            metric="loss",
            mode="min",
            num_samples=12,
            seed=seed,
            scheduler=scheduler_of(scheduler),
        ),
        run_config=RunConfig(
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss"),
            failure_config=FailureConfig(max_failures=1),
        ),
        slots=4,
        start_overhead=1.5,
        lose=LOSE,
        store=store,
    )
    return store.journal


@pytest.mark.parametrize(
    "scheduler",
    ["asha", "fifo", "hb_bohb", pytest.param("pb2", marks=pytest.mark.slow), "pbt", "synch-pb2", "synch-pbt"],
)
def test_one_seed_gives_one_journal(scheduler: str):
    assert journal(7, scheduler) == journal(7, scheduler)


def test_another_seed_gives_another_journal():
    assert journal(7) != journal(8)


@pytest.mark.slow
def test_a_population_exploits_here():
    for name in ("pb2", "pbt", "synch-pb2", "synch-pbt"):
        assert b'"do":"ExploitTrial"' in journal(7, name)
    for name in ("pb2", "synch-pb2"):
        assert b'"event":"Answered"' in journal(7, name)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["asha", "pb2", "pbt"])
def test_the_journal_does_not_depend_on_how_strings_are_hashed(scheduler: str):
    here = journal(7, scheduler).decode().splitlines()
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, __file__, scheduler],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        there = done.stdout.splitlines()
        differences = [pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]]
        # The first difference and the log tell the cause.
        assert not differences, (differences[0], done.stderr[-5000:])
        assert len(here) == len(there)


if __name__ == "__main__":
    sys.stdout.write(journal(7, sys.argv[1]).decode())
