"""Experiments to look at, each in a directory as a driver leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dasktune.cli import main
from dasktune.config import TuneConfig
from dasktune.schedulers import ASHAScheduler
from dasktune.space import choice, loguniform
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.testing import simulate
from dasktune.tuner.result_grid import ResultGrid

#: What a driver writes of itself when it begins.
SPEC = {
    "format": 1,
    "dasktune": "0.2.0",
    "name": "exp",
    "trainable": "train",
    "metric": "loss",
    "mode": "min",
    "num_samples": 12,
    "total_trials": 12,
    "scales": {"lr": "log"},
    "created": "2026-01-02T03:04:05+00:00",
}


def train(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
    for step in range(1, 10):
        if config["lr"] > 0.03:
            raise ValueError(f"lr {config['lr']:.2f} is too large")
        # It is best in the middle, so that the scopes differ.
        yield {"loss": config["lr"] * (1 + abs(step - 5)), "nested": {"step": step}}, 1.0


@pytest.fixture
def results(tmp_path: Path) -> ResultGrid:
    """A finished experiment of twelve trials, in ``tmp_path / "exp"``."""
    store = ExperimentStore(Storage(tmp_path / "exp"))
    store.create(SPEC)
    grid = simulate(
        train,
        param_space={"lr": loguniform(1e-4, 1e-1), "opt": choice(["sgd", "adam"])},
        tune_config=TuneConfig(
            metric="loss", mode="min", num_samples=12, scheduler=ASHAScheduler(max_t=9), seed=4
        ),
        slots=3,
        store=store,
    )
    store.close()
    return grid


@pytest.fixture
def path(results: ResultGrid, tmp_path: Path) -> str:
    """Where it is."""
    return str(tmp_path / "exp")


@pytest.fixture
def written() -> Callable[..., str]:
    """Write an experiment of these records, and return where it is."""

    def write(place: Path | str, *records: dict[str, Any], **spec: Any) -> str:
        storage = Storage(place)
        store = ExperimentStore(storage)
        store.create({**SPEC, **spec})
        for record in records:
            store.append(record)
        store.close()
        return storage.url

    return write


@pytest.fixture
def dasktune(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process; return its exit code, and what it wrote to where."""

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    return run
