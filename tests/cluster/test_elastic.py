"""Clusters that grow with the trials that wait, and shrink when they have ended."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from cluster_kit import (
    Tally,
    assert_clean,
    assert_no_step_back,
    driver_settings,
    fitting,
    histories,
    journal,
    keys,
    note,
    notes,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from control_kit import told_client
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.diagnostics.plugin import SchedulerPlugin

import dasktune as tune
from dasktune.errors import PreflightError

pytestmark = [pytest.mark.cluster, pytest.mark.core]


def gated(config: dict[str, Any]) -> None:
    place = Path(config["place"])
    note(place, config["gate"])
    wait_for_file(place / config["gate"])
    tune.report({"step": 1})


def tuner(client: Any, place: Path, *gates: str, cpus: float = 1, **options: Any) -> tune.Tuner:
    return tune.Tuner(
        tune.with_resources(gated, {"cpu": cpus}),
        param_space={"place": str(place), "gate": tune.grid_search(list(gates))},
        run_config=run_config(place, **options),
        client=client,
    )


@pytest.fixture(scope="module")
def adaptive() -> Iterator[LocalCluster]:
    """Up to three single-threaded worker processes, none at first."""
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0") as cluster:
        cluster.adapt(minimum=0, maximum=3, interval="200ms", wait_count=5)
        yield cluster


def is_idle(dask_scheduler: Any) -> bool:
    """Say what the scheduler's `idle-timeout` goes by."""
    # Whatever has happened since it looked last makes it look again.
    dask_scheduler.check_idle()
    return dask_scheduler.check_idle() is not None


def size(cluster: LocalCluster) -> int:
    return len(cluster.scheduler.workers)


@pytest.mark.slow
@pytest.mark.parametrize("by_address", [False, True], ids=["object", "address"])
def test_an_adaptive_cluster_comes_for_the_trials_and_goes_with_them(
    adaptive: LocalCluster, tmp_path: Path, by_address: bool
) -> None:
    assert size(adaptive) == 0
    client = adaptive.scheduler_address if by_address else adaptive
    with (
        Client(adaptive, set_as_default=False) as observer,
        fitting(tuner(client, tmp_path, "long", "a", "b", "c", "d")) as future,
    ):
        # No trial ends before the third worker has come.
        until(lambda: len(notes(tmp_path)) == 3)
        assert size(adaptive) == 3
        for gate in "abcd":
            (tmp_path / gate).touch()
        until(lambda: len(notes(tmp_path)) == 5)
        # The idle ones go, the busy one stays.
        until(lambda: size(adaptive) == 1)
        assert not observer.run_on_scheduler(is_idle)
        assert not future.done()
        (tmp_path / "long").touch()
        assert statuses(future.result(timeout=60)) == {"TERMINATED"}
    until(lambda: size(adaptive) == 0)
    # None lost its worker to the scaling.
    assert not journal(tmp_path, event="TrialLost")
    with Client(adaptive, set_as_default=False) as observer:
        assert_clean(observer)
        until(lambda: observer.run_on_scheduler(is_idle))


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """A process for each processor that computes without an end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.slow
def test_an_adaptive_cluster_goes_and_comes_again_in_the_middle_of_an_experiment(
    adaptive: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], busy_machine: None
) -> None:
    until(lambda: size(adaptive) == 0)
    # The trials report all the time, because an order to pause takes effect at a result after it.
    trials = tune.Tuner(
        Tally,
        param_space={"place": str(tmp_path)},
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=run_config(tmp_path, server_port=True),
        client=adaptive,
    )
    with fitting(trials) as future:
        control = told_client(capsys, lambda: not future.done())

        def states() -> list[str]:
            return [one["status"] for one in control.get_all_trials()]

        until(lambda: states() == ["RUNNING"] * 2)
        ids = [one["trial_id"] for one in control.get_all_trials()]
        for starts in (4, 6):
            assert size(adaptive) == 2
            for trial_id in ids:
                control.pause_trial(trial_id)
            until(lambda: states() == ["PAUSED"] * 2)
            until(lambda: size(adaptive) == 0)
            assert not future.done()
            for trial_id in ids:
                control.unpause_trial(trial_id)
            until(lambda: states() == ["RUNNING"] * 2)
            # The driver may place a trial on a worker that has just left. Such a trial has not
            # begun, and starts elsewhere.
            assert len(journal(tmp_path, event="TrialStarted")) == starts
        (tmp_path / "enough").touch()
        results = future.result(timeout=120)
    for history in histories(results):
        assert history == list(range(1, len(history) + 1))
        assert len(history) >= 3
    assert_no_step_back(tmp_path)
    assert not any(loss["charged"] for loss in journal(tmp_path, event="TrialLost"))
    until(lambda: size(adaptive) == 0)
    with Client(adaptive, set_as_default=False) as observer:
        assert_clean(observer)


class SlowToLoad:
    """A trainable that takes longer to import than Dask lets a worker of these clusters be idle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_slowly, ()

    def __call__(self, config: dict[str, Any]) -> None:
        gated(config)


def _load_slowly() -> SlowToLoad:
    time.sleep(3)
    return SlowToLoad()


class Removals(SchedulerPlugin):
    def __init__(self) -> None:
        self.addresses: list[str] = []

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        self.addresses.append(worker)


@pytest.mark.slow
def test_an_adaptive_cluster_keeps_new_workers_while_they_are_checked(
    adaptive: LocalCluster, tmp_path: Path
) -> None:
    until(lambda: size(adaptive) == 0)
    removals = Removals()
    adaptive.scheduler.add_plugin(removals, name="removals")
    trials = tune.Tuner(
        SlowToLoad(),
        param_space={"place": str(tmp_path), "gate": tune.grid_search(["a", "b"])},
        run_config=run_config(tmp_path),
        client=adaptive,
    )
    try:
        with fitting(trials) as future:
            until(lambda: len(notes(tmp_path)) == 2)
            assert not removals.addresses
            for gate in "ab":
                (tmp_path / gate).touch()
            assert statuses(future.result(timeout=60)) == {"TERMINATED"}
    finally:
        adaptive.scheduler.remove_plugin("removals")


def demanding(dask_scheduler: Any) -> set[str]:
    """Return the experiments that show a demand."""
    shown = [key for key in map(str, dask_scheduler.tasks) if key.startswith("dasktune-demand-")]
    return {key.rpartition("-")[0] for key in shown}


@pytest.mark.slow
def test_two_experiments_on_an_adaptive_cluster_both_get_workers_and_end(
    adaptive: LocalCluster, tmp_path: Path
) -> None:
    until(lambda: size(adaptive) == 0)
    places = tmp_path / "one", tmp_path / "two"
    for place in places:
        place.mkdir()
    with Client(adaptive, set_as_default=False) as observer:
        with fitting(tuner(adaptive, places[0], *"abcd")) as first:
            until(lambda: notes(places[0]))
            with fitting(tuner(adaptive, places[1], *"abc")) as second:
                # Three workers are the most, so both still wait.
                until(lambda: size(adaptive) == 3)
                until(lambda: len(observer.run_on_scheduler(demanding)) == 2)
                for gate in "abcd":
                    (places[0] / gate).touch()
                assert statuses(first.result(timeout=60)) == {"TERMINATED"}
                # The other one gets the workers of the first one. Then none shows a demand.
                until(lambda: len(notes(places[1])) == 3)
                until(lambda: not observer.run_on_scheduler(demanding))
                for gate in "abc":
                    (places[1] / gate).touch()
                assert statuses(second.result(timeout=60)) == {"TERMINATED"}
        until(lambda: size(adaptive) == 0)
        assert_clean(observer)


def count_on_ranks(config: dict[str, Any]) -> None:
    """Count until there is a file ``stop``; save each step, but none while there is ``keep``."""
    place, checkpoint = Path(config["place"]), tune.get_checkpoint()
    step = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    is_first = tune.get_context().get_world_rank() == 0
    while True:
        step += 1
        time.sleep(0.02)
        saves = is_first and not (place / "keep").exists()
        metrics = {"step": step, "done": (place / "stop").exists()}
        tune.report(metrics, checkpoint=tune.Checkpoint.from_dict({"step": step}) if saves else None)


@pytest.fixture
def two_at_most() -> Iterator[LocalCluster]:
    """Up to two single-threaded worker processes, none at first."""
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0") as cluster:
        cluster.adapt(minimum=0, maximum=2, interval="200ms", wait_count=5)
        yield cluster


@pytest.mark.slow
def test_an_adaptive_cluster_replaces_the_worker_of_a_trial_that_trains_with_fewer_ranks(
    two_at_most: LocalCluster, tmp_path: Path
) -> None:
    trainable = tune.with_ranks(count_on_ranks, 2, min_ranks=1, wait_for_ranks_s=0, grow_after_s=2)
    one = tune.Tuner(
        trainable,
        param_space={"place": str(tmp_path)},
        run_config=run_config(tmp_path),
        client=two_at_most,
    )

    def starts() -> list[int]:
        return [len(start["ranks"]) for start in journal(tmp_path, event="TrialStarted")]

    def num_results() -> int:
        return len(journal(tmp_path, event="ResultReported"))

    # The name of a dead worker is free again after this time.
    timeout = {"distributed.deploy.lost-worker-timeout": "1 s"}
    with dask.config.set(timeout), fitting(one) as future:
        # At first one worker may come before the other one. Without a checkpoint the trial might
        # never leave, and would request no workers.
        until(lambda: starts()[-1:] == [2] and num_results())
        before = len(starts())
        address, _ = journal(tmp_path, event="TrialStarted")[-1]["ranks"][1]
        [nanny] = [each for each in two_at_most.workers.values() if each.worker_address == address]
        # As if its machine was lost: the nanny starts no other worker.
        nanny.close_gracefully()
        os.kill(nanny.pid, signal.SIGKILL)
        until(lambda: len(starts()) > before)
        (tmp_path / "keep").touch()
        assert starts()[before] == 1
        asked = len(journal(tmp_path, event="RoomForRanks"))
        until(lambda: len(journal(tmp_path, event="RoomForRanks")) > asked)
        # The trial does not save now. The new worker is idle, but it is kept for the trial: Dask
        # looks each 0.2 s, and would retire it after five looks.
        then = num_results() + 150
        until(lambda: num_results() > then)
        assert size(two_at_most) == 2
        (tmp_path / "keep").unlink()
        until(lambda: starts()[-1] == 2 and len(starts()) > before + 1)
        (tmp_path / "stop").touch()
        assert statuses(future.result(timeout=60)) == {"TERMINATED"}
    # `max_failures` is 0. It has left with a checkpoint, so no step came twice.
    assert_no_step_back(tmp_path)
    steps = [record["metrics"]["step"] for record in journal(tmp_path, event="ResultReported")]
    assert steps == list(range(1, len(steps) + 1))
    until(lambda: size(two_at_most) == 0)


def test_a_request_that_no_new_worker_can_meet_is_refused(adaptive: LocalCluster, tmp_path: Path) -> None:
    refused = pytest.raises(PreflightError, match="every worker that it starts has CPU 1")
    with driver_settings(impossible_timeout=0.5), refused:
        tuner(adaptive, tmp_path, "a", cpus=2).fit()
    with Client(adaptive, set_as_default=False) as client:
        assert not client.run_on_scheduler(keys)


@pytest.mark.slow
def test_a_driver_that_waits_for_workers_logs_what_is_missing_and_then_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").touch()
    with (
        driver_settings(warning_interval=0.2),
        caplog.at_level(logging.WARNING, logger="dasktune"),
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
    ):
        waiting = tuner(cluster.scheduler_address, tmp_path, "a", cpus=2, queue_trials=True)
        with fitting(waiting) as future:
            until(lambda: "no worker has room for the next trial" in caplog.text)
            assert "CPU free/total" in caplog.text
            cluster.new_spec["options"]["nthreads"] = 2
            cluster.scale(2)
            assert statuses(future.result(timeout=60)) == {"TERMINATED"}


def test_a_worker_that_dies_during_the_broadcast_does_not_end_the_experiment(pair, tmp_path, monkeypatch):
    scheduler, broken = pair.scheduler, []
    broadcast = scheduler.broadcast

    async def dying(*args, msg, **options):
        if msg["op"] == "plugin-add" and len(broken) < 2:
            # Dask tells the others no further, and hangs up on the client.
            broken.append(msg["name"])
            raise CommClosedError("in the middle")
        return await broadcast(*args, msg=msg, **options)

    monkeypatch.setattr(scheduler, "broadcast", dying)
    (tmp_path / "open").touch()
    with Client(pair) as client:
        results = tuner(client, tmp_path, "open").fit()
        assert statuses(results) == {"TERMINATED"}
    assert len(broken) == 2


def say_where(config: dict[str, Any]) -> None:
    """Report how many ranks are on this host."""
    context = tune.get_context()
    tune.report({"local": context.get_local_world_size()})


@pytest.mark.slow
def test_an_adaptive_cluster_starts_the_workers_of_a_host_together(
    two_at_most: LocalCluster, tmp_path: Path
) -> None:
    # No worker has room for both ranks of the host.
    one = tune.Tuner(
        tune.with_ranks(say_where, 2, per_host=2),
        param_space={"place": str(tmp_path)},
        run_config=run_config(tmp_path),
        client=two_at_most,
    )
    with fitting(one) as future:
        [result] = future.result(timeout=120)
    assert result.metrics is not None
    assert result.metrics["local"] == 2
