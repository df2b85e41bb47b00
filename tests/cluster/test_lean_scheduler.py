"""A scheduler of a machine on which dasktune is not installed; its workers have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cluster_kit import (
    PATIENCE,
    WITHOUT_DASKTUNE,
    Fleet,
    assert_clean,
    fitting,
    histories,
    journal,
    run_config,
    statuses,
    steps,
    until,
)
from test_pauses import started, stored, tuner_of

import dasktune as tune

pytestmark = pytest.mark.cluster

#: 8 MB: too large to travel with the function.
NUMBERS = np.arange(1_000_000.0)


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("lean"), its_prelude=WITHOUT_DASKTUNE)
    yield fleet
    fleet.close()


def add(config: dict[str, float], numbers: np.ndarray) -> dict[str, float]:
    return {"sum": float(numbers.sum()) + config["x"]}


@pytest.mark.slow
def test_trials_share_large_objects(lean: Fleet, tmp_path: Path) -> None:
    lean.keep(2)
    results = tune.Tuner(
        tune.with_parameters(add, numbers=NUMBERS),
        param_space={"x": tune.grid_search([1.0, 2.0, 3.0])},
        run_config=run_config(tmp_path),
        client=lean.address,
    ).fit()
    assert histories(results, "sum") == [[NUMBERS.sum() + x] for x in (1.0, 2.0, 3.0)]


def test_paused_trials_resume_from_workers_memory(lean: Fleet, tmp_path: Path) -> None:
    lean.keep(1)
    with fitting(tuner_of(tmp_path, lean.address, trials=2)) as future:
        started(tmp_path, 3)
        until(lambda: len(journal(tmp_path, event="TrialPaused")) == 2)
        assert stored(tmp_path) == []
        lean.keep(2)
        started(tmp_path, 4)
        (tmp_path / "go").touch()
        results = future.result(PATIENCE)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4, 5]] * 2
    with lean.client() as client:
        assert_clean(client)


@pytest.mark.slow
def test_a_submitted_experiment_runs(lean: Fleet, tmp_path: Path) -> None:
    lean.keep(2)
    tuner = tune.Tuner(
        steps,
        param_space={"place": str(tmp_path), "steps": 3},
        run_config=run_config(tmp_path),
        client=lean.address,
    )
    with tuner.submit() as experiment:
        assert histories(experiment.result(PATIENCE)) == [[1, 2, 3]]
