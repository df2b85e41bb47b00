"""What the tests of all engines share: trials that wait for a test, and what this machine lacks."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import histories, journal, run_config, statuses

import dasktune as tune

STEPS = 5


def skip_unless(condition: bool, why: str) -> None:
    """Skip a test of what this machine lacks, and say what that is."""
    if not condition:
        pytest.skip(why)


def has_package(name: str) -> bool:
    """Whether a package can be imported."""
    return find_spec(name) is not None


def gated(config: dict[str, Any]) -> None:
    """Report steps, each with a checkpoint, and wait after the third for a file."""
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while step < STEPS:
        while step == 3 and not Path(config["place"], "go").exists():
            time.sleep(0.05)
        step += 1
        tune.report(
            {"step": step, "job": os.environ.get("SLURM_JOB_ID", ""), "uid": os.getuid()},
            checkpoint=tune.Checkpoint.from_dict({"step": step}),
        )


def walking(config: dict[str, Any]) -> None:
    """Report steps, each with a checkpoint, until there is a file."""
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while not Path(config["place"], "go").exists():
        step += 1
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        time.sleep(0.1)


def gated_tuner(
    place: Path, client: Any, trials: int = 2, *, trainable: Any = gated, **options: Any
) -> tune.Tuner:
    """Return an experiment of such trials."""
    return tune.Tuner(
        trainable,
        param_space={"place": str(place)},
        tune_config=tune.TuneConfig(metric="step", mode="max", num_samples=trials),
        run_config=run_config(place, **options),
        client=client,
    )


def waiting(place: Path, name: str = "run") -> set[str]:
    """Return the trials that have come to their third step."""
    reports = journal(place, name, event="ResultReported")
    return {one["trial_id"] for one in reports if one["metrics"]["step"] == 3}


def jobs_of(place: Path, name: str = "run") -> dict[str, str]:
    """Return the job in which each trial has reported last."""
    reports = journal(place, name, event="ResultReported")
    return {one["trial_id"]: one["metrics"]["job"] for one in reports}


def assert_complete(results: tune.ResultGrid) -> None:
    """Each trial has ended, and has reported each step exactly once."""
    assert statuses(results) == {"TERMINATED"}, [result.reason for result in results]
    assert histories(results) == [list(range(1, STEPS + 1))] * len(results)
