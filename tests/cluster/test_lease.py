"""While a trial runs, Dask's own books say so, and it ends with the trial, whatever ends that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    DRIVER,
    Fleet,
    assert_clean,
    available,
    driver_settings,
    fitting,
    histories,
    journal,
    kill,
    leased_of_only_worker,
    note,
    notes,
    run_config,
    statuses,
    steps,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster
from free_port import free_port
from test_fair_share_on_cluster import WhenThereIsAFile

import dasktune as tune

pytestmark = [pytest.mark.cluster, pytest.mark.core]

FREE = {"scheduler": {"CPU": 0}, "worker": {"CPU": 2}, "long running": 0}
FULL = {"scheduler": {"CPU": 2}, "worker": {"CPU": 0}, "long running": 2}


def books(client: Client) -> dict[str, Any]:
    """What the only worker holds, as its scheduler and as it sees it itself."""
    used, long_running = client.run_on_scheduler(leased_of_only_worker)
    [left] = client.run(available).values()
    return {"scheduler": used, "worker": left, "long running": long_running}


def gated(config: dict[str, Any]) -> None:
    place = Path(config["place"])
    note(place, "runs")
    wait_for_file(place / "go")
    tune.report({"step": 1})


def tuner_of(trainable: Any, place: Path, client: Any, **options: Any) -> tune.Tuner:
    space = {"place": str(place), **options.pop("space", {})}
    search = tune.TuneConfig(num_samples=options.pop("num_samples", 2), **options.pop("tune_config", {}))
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=search,
        run_config=run_config(place, **options),
        client=client,
    )


@pytest.fixture(scope="module")
def declared() -> Iterator[LocalCluster]:
    """A worker process that declares two CPUs."""
    with LocalCluster(
        n_workers=1, threads_per_worker=2, resources={"CPU": 2}, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(declared: LocalCluster) -> Iterator[Client]:
    with Client(declared, set_as_default=False) as client:
        yield client
        assert_clean(client)
        until(lambda: books(client) == FREE)


def test_both_books_show_what_a_trial_holds_until_it_ends(client: Client, tmp_path: Path) -> None:
    with fitting(tuner_of(gated, tmp_path, client, num_samples=4)) as future:
        until(lambda: len(notes(tmp_path)) == 2)
        assert books(client) == FULL
        (tmp_path / "go").touch()
        assert statuses(future.result(timeout=60)) == {"TERMINATED"}
    # The fixture looks after the rest.


def test_another_client_s_task_waits_for_what_a_trial_holds(client: Client, tmp_path: Path) -> None:
    with fitting(tuner_of(gated, tmp_path, client)) as future:
        until(lambda: len(notes(tmp_path)) == 2)
        asks = client.submit(note, tmp_path, "foreign", resources={"CPU": 1}, pure=False)
        # A task that asks for nothing finds a thread, and its answer comes after the other one was
        # looked at.
        assert client.submit(sum, [1, 2], pure=False).result(timeout=30) == 3
        assert notes(tmp_path) == ["runs", "runs"]
        (tmp_path / "go").touch()
        asks.result(timeout=30)
        assert statuses(future.result(timeout=60)) == {"TERMINATED"}
    assert notes(tmp_path) == ["runs", "runs", "foreign"]


def test_trials_wait_for_what_another_client_s_task_holds(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asks = client.submit(wait_for_file, tmp_path / "foreign", resources={"CPU": 2}, pure=False)
    until(lambda: books(client)["worker"] == {"CPU": 0})
    (tmp_path / "go").touch()
    with driver_settings(warning_interval=0.2), fitting(tuner_of(gated, tmp_path, client)) as future:
        # The driver has looked for room for some time, and a trial would have noted its start.
        until(lambda: "no worker has room for the next trial" in caplog.text)
        assert not notes(tmp_path)
        (tmp_path / "foreign").touch()
        asks.result(timeout=30)
        assert statuses(future.result(timeout=60)) == {"TERMINATED"}


def counted(config: dict[str, Any]) -> None:
    place = Path(config["place"])
    note(place, 1)
    for step in range(5):
        # Work, so that the drivers get into each other's way.
        time.sleep(0.01)
        tune.report({"step": step})
    note(place, -1)


def test_two_drivers_never_run_more_than_the_worker_has(client: Client, tmp_path: Path) -> None:
    first = tuner_of(counted, tmp_path, client, name="first", num_samples=20)
    second = tuner_of(counted, tmp_path, client, name="second", num_samples=20)
    with fitting(first) as one, fitting(second) as other:
        for future in (one, other):
            assert statuses(future.result(timeout=120)) == {"TERMINATED"}
    running, most = 0, 0
    for change in notes(tmp_path):
        running += int(change)
        most = max(most, running)
    assert running == 0
    assert most <= 2


@pytest.fixture
def unhurried() -> Iterator[None]:
    """Let slots and leases take their time: on a busy machine they are not refused for that."""
    with driver_settings(lease_timeout=300.0, open_timeout=300.0):
        yield


@pytest.mark.usefixtures("unhurried")
def test_trials_of_changing_size_are_packed_by_what_they_hold(client: Client, tmp_path: Path) -> None:
    trainable = tune.with_resources(steps, lambda config: {"cpu": config["cpus"]})
    space = {"steps": 2, "cpus": tune.grid_search([1, 2, 0.5, 0.1, 2, 1, 0.1, 0])}
    results = tuner_of(trainable, tmp_path, client, space=space, num_samples=2).fit()
    assert statuses(results) == {"TERMINATED"}
    assert not journal(tmp_path, event="StartFailed")


@pytest.mark.usefixtures("unhurried")
def test_ten_tenths_fit_into_one_however_often(client: Client, tmp_path: Path) -> None:
    trainable = tune.with_resources(steps, {"cpu": 0.1})
    results = tuner_of(trainable, tmp_path, client, space={"steps": 1}, num_samples=60).fit()
    assert statuses(results) == {"TERMINATED"}
    # The number of trials that an actor gets ahead may fall between the question for room and the
    # reservation. Such a start is not charged, and is tried again.
    assert not [record for record in journal(tmp_path, event="StartFailed") if record["charged"]]


def leases_so_far(dask_scheduler: Any = None) -> set[str]:
    """The keys of all leases that Dask's scheduler has ever seen."""
    return {key for key, *_ in dask_scheduler.transition_log if "-lease-" in str(key)}


def test_a_lease_is_taken_once_for_a_slot_that_is_used_again(client: Client, tmp_path: Path) -> None:
    before = client.run_on_scheduler(leases_so_far)
    # However busy the machine is, no slot has a rest between two trials.
    with driver_settings(idle_time=300.0, idle_lease_time=300.0):
        results = tuner_of(steps, tmp_path, client, space={"steps": 2}, num_samples=40).fit()
    assert statuses(results) == {"TERMINATED"}
    # One for each of the two workers' slots.
    assert len(client.run_on_scheduler(leases_so_far) - before) == 2


def stubborn(config: dict[str, Any]) -> None:
    """Obey no stop, not even an interrupt, until a file is there."""
    place = Path(config["place"])
    note(place, "runs")
    while not (place / "go").exists():
        try:
            wait_for_file(place / "go")
        except BaseException:
            note(place, "interrupted")


def test_a_thread_that_does_not_leave_keeps_its_resources(client: Client, tmp_path: Path) -> None:
    options = {"stop": WhenThereIsAFile(tmp_path / "stop"), "stop_grace": 0.2}
    with fitting(tuner_of(stubborn, tmp_path, client, num_samples=1, **options)) as future:
        until(lambda: "runs" in notes(tmp_path))
        (tmp_path / "stop").touch()
        assert len(future.result(timeout=60)) == 1
    # The driver may leave the thread behind before that has noted its interrupt.
    until(lambda: "interrupted" in notes(tmp_path))
    # The driver has gone; the worker knows better than the scheduler.
    assert books(client) == {**FREE, "worker": {"CPU": 1}}
    (tmp_path / "go").touch()


@pytest.mark.slow
def test_a_killed_driver_gives_everything_back(client: Client, tmp_path: Path) -> None:
    address = client.scheduler.address
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), address])
    until(lambda: len(journal(tmp_path, event="TrialStarted")) == 2)
    assert books(client) == FULL
    kill(driver)
    until(lambda: books(client) == FREE, timeout=25)
    # What only the driver itself can take away.
    for name in client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.worker_plugins]):
        if name.startswith("dasktune"):
            client.sync(client.unregister_worker_plugin, name)


def test_a_lost_worker_s_leases_are_taken_elsewhere_and_none_comes_back(fleet: Fleet, tmp_path: Path) -> None:
    # The nanny brings the worker back at the very same address.
    port = free_port()
    fleet.add_worker(f"--worker-port={port}", "--resources=CPU=1", nanny=True)
    address = f"tcp://127.0.0.1:{port}"
    with fleet.client() as client:
        until(lambda: address in client.scheduler_info()["workers"])
        space = {"steps": 3, "gates": [2]}
        with fitting(tuner_of(steps, tmp_path, fleet.address, space=space, num_samples=1)) as run:
            until(lambda: journal(tmp_path, event="ResultReported"))
            assert client.run_on_scheduler(leased_of_only_worker) == ({"CPU": 1}, 1)
            [pid] = client.run(os.getpid, workers=[address]).values()
            os.kill(pid, signal.SIGKILL)
            until(lambda: journal(tmp_path, event="TrialLost"))
            until(lambda: len(notes(tmp_path)) == 2)
            # One lease, and not the first one once more.
            until(lambda: client.run_on_scheduler(leased_of_only_worker) == ({"CPU": 1}, 1))
            (tmp_path / "gate-2").touch()
            results = run.result(timeout=90)
        assert histories(results) == [[1, 2, 3]]
        assert_clean(client)
        until(lambda: client.run_on_scheduler(leased_of_only_worker) == ({"CPU": 0}, 0))


@pytest.mark.slow
def test_adaptive_scaling_leaves_busy_workers_alone(tmp_path: Path) -> None:
    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster:
        with fitting(tuner_of(gated, tmp_path, cluster)) as future:
            until(lambda: len(journal(tmp_path, event="TrialStarted")) == 2)
            busy = {one["worker"] for one in journal(tmp_path, event="TrialStarted")}
            adaptive = cluster.adapt(minimum=0, maximum=3, interval="100ms", wait_count=2)
            # It has looked often enough to end the third one, and so to end the others.
            until(lambda: set(cluster.scheduler.workers) == busy)
            looks = Counter[str]()
            recommend = adaptive.recommendations

            async def counting(target: int) -> Any:
                looks["seen"] += 1
                return await recommend(target)

            adaptive.recommendations = counting
            until(lambda: looks["seen"] >= 10)
            assert set(cluster.scheduler.workers) == busy
            (tmp_path / "go").touch()
            results = future.result(timeout=60)
        assert statuses(results) == {"TERMINATED"}
        assert not journal(tmp_path, event="TrialLost")
        until(lambda: not cluster.scheduler.workers)


def test_a_dask_that_cannot_do_it_costs_the_books_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As in a Dask that has no such event.
    monkeypatch.delattr("distributed.worker_state_machine.SecedeEvent")
    with LocalCluster(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        results = tuner_of(steps, tmp_path, cluster, space={"steps": 2}, num_samples=6).fit()
    assert histories(results) == [[1, 2]] * 6
    [warning] = [one for one in caplog.records if one.name == "dasktune.cluster.driver.actor_pool"]
    assert "without leases" in warning.message
    assert "a task cannot secede by itself: ImportError" in warning.message


def test_leases_can_be_left_out(client: Client, tmp_path: Path) -> None:
    with driver_settings(leases=False), fitting(tuner_of(gated, tmp_path, client)) as future:
        until(lambda: len(notes(tmp_path)) == 2)
        assert books(client) == FREE
        (tmp_path / "go").touch()
        assert statuses(future.result(timeout=60)) == {"TERMINATED"}
