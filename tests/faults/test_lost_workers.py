"""Workers that die in unusual ways, hang, or cannot be reached."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster_kit import Fleet, assert_clean, kill, note, notes, until, wait_for_file
from distributed import Client
from fault_kit import Bout, Proxy, add_and_meet, pid_of, stopped, walk
from free_port import free_port

import dasktune as tune

pytestmark = pytest.mark.cluster


def has_left(place: Path, pid: int) -> bool:
    """Whether user code has left a process, on its own feet or with the process."""
    return f"{pid} leaves" in notes(place) or not psutil.pid_exists(pid)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_worker_that_slept_too_long_wakes_up_to_no_effect(
    fleet: Fleet, client: Client, tmp_path: Path, isolation: str
) -> None:
    fleet.keep(2)
    limits = {"heartbeat_timeout": 3.0, "driver_ttl": 120.0, "stop_grace": 1.0}
    bout = Bout(walk, tmp_path, fleet.address, isolation=isolation, **limits)
    with bout.fitting() as future:
        until(bout.is_walking)
        [before] = bout.where().values()
        user_code = int(notes(tmp_path)[0].split()[0])
        with stopped(pid_of(client, before)):
            until(lambda: bout.losses)
            # Its successor walks on where it was seen last.
            until(lambda: bout.is_walking(incarnation=2))
        until(lambda: has_left(tmp_path, user_code))
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert "no heartbeat" in bout.losses[0]["reason"]
    assert bout.where() != {results[0].trial_id: before}
    # What was about to be committed when the worker stopped may lie there; no result names it.
    taken = {one["checkpoint"]["path"] for one in bout.events("ResultReported") if one["checkpoint"]}
    there = {path.parent.name for path in tmp_path.glob("run/trials/*/*_i01/.manifest.json")}
    assert len(there - {Path(path).name for path in taken}) <= 1
    assert_clean(client)


def test_a_worker_that_dies_with_its_nanny_is_replaced_by_another(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(1)
    nanny, address = add_and_meet(fleet, client, nanny=True)
    pid = pid_of(client, address)
    bout = Bout(walk, tmp_path, fleet.address, num_samples=2)
    with bout.fitting() as future:
        until(lambda: bout.is_walking(trials=2))
        kill(nanny)
        os.kill(pid, signal.SIGKILL)
        until(lambda: bout.losses)
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    [loss] = bout.losses
    assert (address in loss["reason"], loss["charged"]) == (True, True)


def gorge(config: dict[str, Any]) -> dict[str, int]:
    """Take more memory than there is, the first time."""
    place = Path(config["place"])
    note(place, "begins")
    if len(notes(place)) == 1:
        gorged = b"x" * (900 << 20)
        wait_for_file(place / "never")
        del gorged
    return {"step": 1}


@pytest.mark.slow
def test_a_worker_that_takes_too_much_memory_is_lost_for_that_reason(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(0)
    add_and_meet(fleet, client, "--memory-limit=600MB", nanny=True)
    bout = Bout(gorge, tmp_path, fleet.address)
    with bout.fitting() as future:
        results = future.result(timeout=60)
    bout.assert_exact(results)
    [loss] = bout.losses
    assert "memory" in loss["reason"]
    assert loss["charged"]


@pytest.mark.slow
def test_a_worker_that_hangs_holds_up_neither_the_beginning_nor_the_end(
    fleet: Fleet, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # No nannies, or one of those would be stopped and not its worker.
    fleet.keep(0)
    fleet.keep(2)
    # Who waits for the worker waits for a minute at the least, and for ten seconds at other times.
    limits = {"heartbeat_timeout": 120.0, "driver_ttl": 120.0}
    places = [tmp_path / name for name in ("whole", "late")]
    for place in places:
        place.mkdir()
    whole = Bout(walk, places[0], fleet.address, **limits)
    late = Bout(walk, places[1], fleet.address, num_samples=2, **limits)
    whole.go()
    with stopped(fleet.workers[0].pid):
        with whole.fitting() as future:
            whole.assert_exact(future.result(timeout=45))
        with late.fitting() as future:
            until(late.is_walking)
            os.kill(fleet.workers[0].pid, signal.SIGCONT)
            until(lambda: late.is_walking(trials=2))
            late.go()
            late.assert_exact(future.result(timeout=60))
    assert "1 of 2 workers did not answer" in caplog.text
    assert_clean(client)


def killer_among_innocents(config: dict[str, Any]) -> None:
    """Four trials begin together, twice, and number 2 kills the worker; later it does so alone."""
    place, number = Path(config["place"]), config["number"]
    note(place, f"{os.getpid()} {number}")
    starts = [line.split() for line in notes(place)]
    if sum(one[1] == str(number) for one in starts) <= 2:
        while number != 2 or sum(one[0] == str(os.getpid()) for one in starts) < 4:
            time.sleep(0.01)
            starts = [line.split() for line in notes(place)]
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    tune.report({"step": 1})


@pytest.mark.slow
def test_a_trial_that_kills_the_only_worker_is_found_out_and_no_other_pays_for_it(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(0)
    fleet.add_worker("--nthreads=4", nanny=True)
    bout = Bout(
        killer_among_innocents,
        tmp_path,
        fleet.address,
        space={"number": tune.grid_search([0, 1, 2, 3])},
        failure_config=tune.FailureConfig(max_worker_losses=1),
    )
    with bout.fitting() as future:
        results = future.result(timeout=120)
    ends = {result.config["number"]: result for result in results}
    killer = ends.pop(2)
    assert killer.status.value == "ERROR"
    assert "2 times without progress in between, and no other trial with it" in killer.reason
    assert {result.status.value for result in ends.values()} == {"TERMINATED"}
    assert [loss["shared"] for loss in bout.losses] == [True] * 8 + [False] * 2
    assert {loss["trial_id"] for loss in bout.losses[8:]} == {killer.trial_id}
    bout.assert_seen_once(results)


#: A preload that ends its worker as soon as that gets a certain kind of task.
DIES_OF = """
import os
from distributed import WorkerPlugin

class Dies(WorkerPlugin):
    def transition(self, key, start, finish, **facts):
        if finish == "executing" and "-actor-" in str(key) and ("-lease-" in str(key)) is {lease}:
            os._exit(1)

async def dask_setup(worker):
    await worker.plugin_add(Dies())
"""


@pytest.mark.slow
@pytest.mark.parametrize("lease", [True, False])
def test_a_worker_that_dies_before_a_trial_begins_costs_the_trial_nothing(
    fleet: Fleet, client: Client, tmp_path: Path, lease: bool
) -> None:
    fleet.keep(0)
    preload = tmp_path / "dies.py"
    preload.write_text(DIES_OF.format(lease=lease))
    frail, _ = add_and_meet(fleet, client, f"--preload={preload}")
    failures = tune.FailureConfig(max_worker_losses=0)
    bout = Bout(walk, tmp_path, fleet.address, failure_config=failures)
    bout.go()
    with bout.fitting() as future:
        frail.wait(timeout=60)
        fleet.keep(1)
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert not any(one["charged"] for one in bout.losses)
    assert len(notes(tmp_path)) == 2


@pytest.mark.slow
def test_a_worker_that_is_cut_off_is_lost_only_if_that_lasts(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(0)
    outwards = Proxy(fleet.port)
    port = free_port()
    inwards = Proxy(port)
    far = f"tcp://127.0.0.1:{inwards.port}"
    options = [f"--listen-address=tcp://127.0.0.1:{port}", f"--contact-address={far}"]
    add_and_meet(fleet, client, *options, scheduler=f"tcp://127.0.0.1:{outwards.port}")
    bout = Bout(walk, tmp_path, fleet.address, heartbeat_timeout=6.0, driver_ttl=120.0)
    with bout.fitting() as future:
        until(bout.is_walking)
        seen = len(bout.events("ResultReported"))
        with outwards.cut(), inwards.cut():
            until(lambda: ages(client)[far] > 1.5)
        until(lambda: len(bout.events("ResultReported")) > seen)
        assert not bout.losses
        with outwards.cut(), inwards.cut():
            until(lambda: bout.losses)
            fleet.add_worker()
            until(lambda: bout.is_walking(incarnation=2))
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert "no heartbeat" in bout.losses[0]["reason"]


def ages(client: Client) -> dict[str, float]:
    """Return how long ago the scheduler heard each worker, in seconds."""

    def look(dask_scheduler: Any) -> dict[str, float]:
        from distributed.metrics import time

        workers = dask_scheduler.workers.values()
        return {worker.address: time() - worker.last_seen for worker in workers}

    return dict(client.run_on_scheduler(look))


def test_a_worker_that_takes_no_tasks_gets_no_trial(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    fleet.keep(2)
    paused = min(client.scheduler_info()["workers"])

    def set_status(name: str) -> None:
        def work(dask_worker: Any) -> None:
            from distributed.core import Status

            dask_worker.status = Status[name]

        client.run(work, workers=[paused])

    # As Dask does at 80 % of the memory.
    set_status("paused")
    bout = Bout(walk, tmp_path, fleet.address, num_samples=3)
    with bout.fitting() as future:
        until(bout.is_walking)
        assert len(bout.where()) == 1
        set_status("running")
        until(lambda: bout.is_walking(trials=2))
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    first, second = list(bout.where().values())[:2]
    assert (first, second) == (next(iter({*bout.where().values()} - {paused})), paused)
    assert not bout.losses
