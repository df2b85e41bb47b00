"""Clocks that jump and schedulers that freeze, by which no worker may be taken for dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import Fleet, readings_of_workers, until
from fault_kit import Bout, pid_of, stopped, walk

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

#: Puts the clock of a process forward or back as long as a file says so.
JUMPY = """
import time
from pathlib import Path
def jump(real=time.time, path=Path({path!r})):
    try:
        return real() + float(path.read_text() or 0)
    except FileNotFoundError:
        return real()
time.time = jump
"""


@pytest.fixture
def jumpy(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, JUMPY.format(path=str(tmp_path / "jump")))
    yield fleet
    fleet.close()


@pytest.fixture
def readings() -> Iterator[list[str]]:
    """Grows with each reading of the workers."""
    with readings_of_workers() as begun:
        yield begun


def test_clocks_may_jump(
    jumpy: Fleet, tmp_path: Path, readings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jumpy.keep(2)
    real = time.time
    bout = Bout(walk, tmp_path, jumpy.address, num_samples=2, heartbeat_timeout=20.0)
    with bout.fitting() as future:
        until(lambda: bout.is_walking(trials=2))
        for seconds in (200, -200, 0):
            monkeypatch.setattr(time, "time", lambda: real() + seconds)  # noqa: B023
            (tmp_path / "jump").write_text(str(seconds))
            seen = len(readings)
            # The last one may only have begun.
            until(lambda: len(readings) >= seen + 3)  # noqa: B023
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert not bout.losses


def test_an_idle_worker_is_not_taken_for_silent_when_the_clocks_are_put_back(
    jumpy: Fleet, tmp_path: Path, readings: list[str]
) -> None:
    jumpy.keep(2)
    bout = Bout(walk, tmp_path, jumpy.address, heartbeat_timeout=3.0, driver_ttl=60.0)
    with bout.fitting() as future, jumpy.client() as client:
        until(bout.is_walking)
        (tmp_path / "jump").write_text("-3600")
        # No reading counts for less than a second, and none brings a new heartbeat.
        seen = len(readings)
        until(lambda: len(readings) >= seen + 7)
        [first] = bout.where().values()
        os.kill(pid_of(client, first), signal.SIGKILL)
        until(lambda: bout.is_walking(incarnation=2))
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert bout.where() != {results[0].trial_id: first}


def test_a_frozen_scheduler_is_no_sign_of_dead_workers(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(2)
    bout = Bout(walk, tmp_path, fleet.address, num_samples=2, heartbeat_timeout=3.0, driver_ttl=60.0)
    with bout.fitting() as future:
        until(lambda: bout.is_walking(trials=2))
        begin = time.monotonic()
        with stopped(fleet.scheduler.pid):
            until(lambda: time.monotonic() > begin + 5)
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert not bout.losses
