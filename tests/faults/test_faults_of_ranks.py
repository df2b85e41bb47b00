"""Distributed trials whose workers hang, or are cut off from each other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster_kit import Fleet, assert_clean, note, notes, until
from distributed import Client
from fault_kit import Bout, Proxy, add_and_meet, pid_of, stopped
from free_port import free_port

import dasktune as tune

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def march(config: dict[str, Any]) -> None:
    """Walk step by step, all ranks at once, until there is a file; rank 0 saves each step."""
    place, rank = Path(config["place"]), tune.get_context().get_world_rank()
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    note(place, f"{os.getpid()} begins as rank {rank} after {step}")
    while True:
        step += 1
        time.sleep(0.02)
        # Rank 0 decides for all: each may see the file at another step.
        done = (place / "go").exists()
        state = None if rank else tune.Checkpoint.from_dict({"step": step})
        tune.report({"step": step, "done": done}, checkpoint=state)


def processes(place: Path) -> list[int]:
    """Return the process ids of all ranks that have begun so far."""
    return [int(line.split()[0]) for line in notes(place)]


def all_gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def test_of_two_starts_of_a_trial_the_older_one_commits_nothing(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(0)
    # Both ranks run on one worker, so that the other one has room for their successors.
    for _ in range(2):
        add_and_meet(fleet, client, "--nthreads=2")
    limits = {"heartbeat_timeout": 4.0, "driver_ttl": 120.0}
    bout = Bout(tune.with_ranks(march, 2), tmp_path, fleet.address, **limits)
    with bout.fitting() as future:
        until(lambda: len(bout.events("ResultReported")) > 3)
        [before] = bout.where().values()
        older = processes(tmp_path)
        # The worker cannot see that it is lost. Its ranks run, and wait in `report` until their own
        # timers end them, after twice `heartbeat_timeout`.
        with stopped(pid_of(client, before)):
            until(lambda: len(bout.events("TrialStarted")) == 2)
        until(lambda: all_gone(older))
        seen = len(bout.events("ResultReported"))
        until(lambda: len(bout.events("ResultReported")) > seen + 3)
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert "no heartbeat" in bout.losses[0]["reason"]
    taken = {one["checkpoint"]["path"] for one in bout.events("ResultReported") if one["checkpoint"]}
    there = {path.parent.name for path in tmp_path.glob("run/trials/*/*_i01/.manifest.json")}
    # What was about to be committed when the worker was suspended may lie there, and is not used.
    assert len(there - {Path(path).name for path in taken}) <= 1
    assert_clean(client)


def test_ranks_that_are_cut_off_end_on_both_sides(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    fleet.keep(0)
    add_and_meet(fleet, client)
    outwards = Proxy(fleet.port)
    port = free_port()
    inwards = Proxy(port)
    far = f"tcp://127.0.0.1:{inwards.port}"
    options = [f"--listen-address=tcp://127.0.0.1:{port}", f"--contact-address={far}"]
    add_and_meet(fleet, client, *options, scheduler=f"tcp://127.0.0.1:{outwards.port}")
    bout = Bout(tune.with_ranks(march, 2), tmp_path, fleet.address, heartbeat_timeout=4.0, driver_ttl=120.0)
    with bout.fitting() as future:
        until(lambda: len(bout.events("ResultReported")) > 3)
        before = processes(tmp_path)
        assert len(before) == 2
        assert len({psutil.Process(pid).ppid() for pid in before}) == 2
        with outwards.cut(), inwards.cut():
            # No end of a connection tells either side.
            until(lambda: all_gone(before))
            until(lambda: bout.losses)
            fleet.add_worker()
            until(lambda: len(bout.events("TrialStarted")) == 2)
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
