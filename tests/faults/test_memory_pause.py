"""A worker that Dask pauses because its memory is nearly full."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Fleet, until
from distributed import Client
from fault_kit import Bout, add_and_meet, pid_of, walk

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")]

#: Takes memory at SIGUSR1, and releases it at SIGUSR2.
GORGES = """
import signal

async def dask_setup(worker):
    def gorge(number, frame):
        worker.gorged = b"x" * (1200 << 20) if number == signal.SIGUSR1 else None

    signal.signal(signal.SIGUSR1, gorge)
    signal.signal(signal.SIGUSR2, gorge)
"""


@pytest.mark.slow
def test_a_worker_whose_memory_is_nearly_full_keeps_its_trial_and_gets_no_other(
    fleet: Fleet, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.keep(0)
    preload = tmp_path / "gorges.py"
    preload.write_text(GORGES)
    # Without a nanny: it would kill the worker at 95 %.
    _, full = add_and_meet(fleet, client, "--memory-limit=1500MB", f"--preload={preload}")
    add_and_meet(fleet, client)
    pid = pid_of(client, full)
    bout = Bout(walk, tmp_path, fleet.address, num_samples=3)
    with caplog.at_level(logging.WARNING, logger="dasktune"), bout.fitting() as future:
        until(lambda: bout.is_walking(trials=2))
        os.kill(pid, signal.SIGUSR1)
        until(lambda: status(client, full) == "paused")
        until(lambda: f"worker {full} is paused" in caplog.text)
        seen = steps_in(bout, pid)
        until(lambda: steps_in(bout, pid) > seen + 3)
        first = dict(bout.where())
        bout.go()
        results = future.result(timeout=90)
        assert status(client, full) == "paused"
    os.kill(pid, signal.SIGUSR2)
    bout.assert_exact(results)
    assert not bout.losses
    assert full in first.values()
    [third] = set(bout.where()) - set(first)
    assert bout.where()[third] != full
    assert caplog.text.count("is paused") == 1


def status(client: Client, address: str) -> str:
    """Return the status of a worker, as the scheduler knows it."""

    def look(dask_scheduler: Any) -> str:
        return str(dask_scheduler.workers[address].status.name)

    return str(client.run_on_scheduler(look))


def steps_in(bout: Bout, pid: int) -> int:
    """Return how many results came from a process."""
    return sum(one["metrics"]["pid"] == pid for one in bout.events("ResultReported"))
