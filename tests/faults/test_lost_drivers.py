"""Drivers that die or freeze."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster_kit import Fleet, journal, kill, notes, results_so_far, trial_threads, until
from distributed import Client
from fault_kit import held, start_driver, stopped

pytestmark = pytest.mark.cluster


def begun(place: Path) -> list[int]:
    """Return the processes in which user code has begun."""
    return [int(text.split()[0]) for text in notes(place) if text.endswith("begins")]


def test_a_killed_driver_s_processes_end_and_their_resources_are_free(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    driver = start_driver(tmp_path, fleet.address, "process")
    until(lambda: len(begun(tmp_path)) == 2)
    assert len(client.run_on_scheduler(held)) == 2
    kill(driver)
    until(lambda: not any(map(psutil.pid_exists, begun(tmp_path))))
    until(lambda: not client.run_on_scheduler(held))
    until(lambda: not any(client.run(trial_threads).values()))


@pytest.mark.slow
@pytest.mark.parametrize("bundles", [1, 2])
def test_a_frozen_driver_loses_its_trials_and_resumes_when_it_thaws(
    fleet: Fleet, client: Client, tmp_path: Path, bundles: int
) -> None:
    fleet.keep(2)
    trials = 2 // bundles
    driver = start_driver(tmp_path, fleet.address, bundles=bundles)
    until(lambda: results_so_far(tmp_path) > 6)
    assert len(client.run_on_scheduler(held)) == 2
    with stopped(driver.pid):
        until(lambda: not any(client.run(trial_threads).values()))
        # Nor does it keep others from the workers.
        until(lambda: not client.run_on_scheduler(held))
        seen = len(notes(tmp_path))
        assert [one for one in notes(tmp_path) if one.endswith("leaves")]
    until(lambda: len(begun(tmp_path)) == 2 * trials)
    (tmp_path / "go").touch()
    # It has looked itself at what came of it.
    assert driver.wait(timeout=60) == 0, (tmp_path / "driver.log").read_text()
    lost: list[dict[str, Any]] = journal(tmp_path, event="TrialLost")
    assert (len(lost), seen) == (trials, 2 * trials)
    assert not any(one["charged"] for one in lost)
