"""Workers, drivers and schedulers that die, hang or leave while trials run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    DRIVER,
    Fleet,
    assert_clean,
    assert_no_step_back,
    fitting,
    histories,
    journal,
    keys,
    kill,
    note,
    notes,
    plugins,
    restarts,
    results_so_far,
    run_config,
    statuses,
    steps,
    trial_threads,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster

import dasktune as tune

pytestmark = pytest.mark.cluster


def tuner_of(trainable: Any, place: Path, address: Any, **options: Any) -> tune.Tuner:
    space = {"place": str(place), **options.pop("space", {})}
    search = tune.TuneConfig(num_samples=options.pop("num_samples", 1))
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=search,
        run_config=run_config(place, **options),
        client=address,
    )


@pytest.mark.slow
@pytest.mark.core
def test_three_killed_workers_cost_time_and_no_result(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(2)
    # Each kill strikes while trials wait at a gate of the step that they are at.
    space = {"steps": 4, "gates": [2, 3, 4]}
    with fitting(tuner_of(steps, tmp_path, fleet.address, space=space, num_samples=20)) as future:
        for number, gate in enumerate((2, 3, 4)):
            strike(fleet, tmp_path, number, gate)
        results = future.result(timeout=120)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4]] * 20
    assert_no_step_back(tmp_path)
    lost = journal(tmp_path, event="TrialLost")
    assert len(lost) == 3
    assert all("died" in one["reason"] and one["charged"] for one in lost)
    assert sum(iteration > 0 for _, iteration in restarts(tmp_path)) == 3
    with fleet.client() as client:
        assert_clean(client)


def strike(fleet: Fleet, place: Path, number: int, gate: int) -> None:
    """Kill the longest-serving worker while both trials stand at a gate, then let them through."""
    until(lambda: results_so_far(place) >= 2 * (gate - 1))
    kill(fleet.workers.pop(0))
    fleet.add_worker()
    until(lambda: len(journal(place, event="TrialLost")) > number)
    # The one that was lost is back where it was.
    until(lambda: len(notes(place)) >= 3 + number)
    (place / f"gate-{gate}").touch()


def zombie(config: dict[str, Any]) -> None:
    place = Path(config["place"])
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    try:
        for step in range(done + 1, 5):
            if step == 3:
                note(place, f"{os.getpid()} waits")
                # A stopped process looks at the file when it resumes.
                wait_for_file(place / "go")
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
    finally:
        note(place, f"{os.getpid()} leaves")


@pytest.mark.slow
def test_a_hung_worker_is_replaced_and_commits_nothing_when_it_wakes_up(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(2)
    with fitting(
        tuner_of(zombie, tmp_path, fleet.address, heartbeat_timeout=3.0, driver_ttl=120.0)
    ) as future:
        [first] = until(lambda: notes(tmp_path))
        pid = int(first.split()[0])
        # The driver resumes the trial from the last checkpoint that it knows.
        until(lambda: results_so_far(tmp_path) == 2)
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: len(notes(tmp_path)) == 2)
        finally:
            os.kill(pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        results = future.result(timeout=60)
        # Its thread is stopped, too.
        until(lambda: f"{pid} leaves" in notes(tmp_path))
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4]]
    [lost] = journal(tmp_path, event="TrialLost")
    assert "no heartbeat" in lost["reason"]
    # What the zombie began after the end of its time is no checkpoint.
    committed = sorted(path.parent.name for path in tmp_path.glob("run/trials/*/*/.manifest.json"))
    assert [name[-3:] for name in committed] == ["i01", "i01", "i02", "i02"]
    with fleet.client() as client:
        assert_clean(client)


def test_a_worker_that_is_scaled_away_lets_its_trial_move(tmp_path: Path) -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        tuner = tuner_of(leave_between, tmp_path, cluster, space={"number": tune.grid_search([0, 1])})
        with fitting(tuner) as future:
            until(lambda: both_are_under_way(tmp_path))
            cluster.scale(1)
            until(lambda: journal(tmp_path, event="TrialLost"))
            (tmp_path / "go").touch()
            results = future.result(timeout=120)
    assert_moved(results, tmp_path)


def leave_between(config: dict[str, Any]) -> None:
    """Report until told to go, so that there is a result at which a trial can leave."""
    place = Path(config["place"])
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while step < 5 or not (place / "go").exists():
        step += 1
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        time.sleep(0.05)


def both_are_under_way(place: Path) -> bool:
    reports = Counter(one["trial_id"] for one in journal(place, event="ResultReported"))
    return len(reports) == 2 and min(reports.values()) >= 2


def assert_moved(results: tune.ResultGrid, place: Path) -> None:
    assert statuses(results) == {"TERMINATED"}
    for history in histories(results):
        assert history == list(range(1, len(history) + 1))
    lost = journal(place, event="TrialLost")
    assert lost
    assert not any(one["charged"] for one in lost)
    assert "stopped the trial" in lost[0]["reason"]
    assert_no_step_back(place)
    # Nothing was done twice: the trial left after a result that is in the journal.
    rows = [(one["trial_id"], one["metrics"]["step"]) for one in journal(place, event="ResultReported")]
    assert len(rows) == len(set(rows))


def test_a_worker_that_is_terminated_lets_its_trial_move(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(1)
    nanny = fleet.add_worker(nanny=True)
    with fleet.client() as client:
        until(lambda: len(client.scheduler_info()["workers"]) == 2)
    tuner = tuner_of(leave_between, tmp_path, fleet.address, space={"number": tune.grid_search([0, 1])})
    with fitting(tuner) as future:
        until(lambda: both_are_under_way(tmp_path))
        nanny.send_signal(signal.SIGTERM)
        until(lambda: journal(tmp_path, event="TrialLost"))
        (tmp_path / "go").touch()
        results = future.result(timeout=120)
    nanny.wait(timeout=60)
    assert_moved(results, tmp_path)


def test_a_dead_driver_leaves_no_trial_and_no_harm(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(2)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), fleet.address])
    with fleet.client() as client:
        until(lambda: len(journal(tmp_path, event="TrialStarted")) == 2)
        assert all(client.run(trial_threads).values())
        kill(driver)
        # At once, and not after the 30 seconds that a silent driver has.
        until(lambda: not any(client.run(trial_threads).values()), timeout=25)
        until(lambda: not [key for key in client.run_on_scheduler(keys) if "-actor-" in key])
        # Its plugin is still there, and reaches workers that know nothing of us.
        assert any(client.run(plugins).values())
        assert runs_foreign_tasks(client, fleet)
        results = tuner_of(steps, tmp_path, fleet.address, space={"steps": 2}, name="next").fit()
        assert histories(results) == [[1, 2]]
        # The next driver has swept what the dead one left, besides what is its own.
        assert_clean(client)


def runs_foreign_tasks(client: Client, fleet: Fleet) -> bool:
    """Start a worker that cannot import dasktune, and have it work for somebody else."""
    before = set(client.scheduler_info()["workers"])
    process = fleet.add_worker(dasktune=False)
    [address] = until(lambda: set(client.scheduler_info()["workers"]) - before)
    answer = client.submit(sum, [1, 2], workers=[address], pure=False).result(timeout=30)
    fleet.workers.remove(process)
    kill(process)
    until(lambda: address not in client.scheduler_info()["workers"])
    return bool(answer == 3)


def test_a_worker_without_dasktune_can_join_during_a_run_and_after_it(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(1)
    tuner = tuner_of(steps, tmp_path, fleet.address, space={"steps": 2, "gates": [2]})
    with fleet.client() as client:
        with fitting(tuner) as future:
            until(lambda: results_so_far(tmp_path))
            assert runs_foreign_tasks(client, fleet)
            (tmp_path / "gate-2").touch()
            assert statuses(future.result(timeout=60)) == {"TERMINATED"}
        assert_clean(client)
        assert runs_foreign_tasks(client, fleet)


@pytest.mark.core
def test_a_broken_connection_costs_no_loss(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(2)
    tuner = tuner_of(steps, tmp_path, fleet.address, space={"steps": 4, "gates": [3]}, num_samples=2)
    with fitting(tuner) as future:
        until(lambda: results_so_far(tmp_path) == 4)
        # The driver's own connection breaks, while scheduler and workers live on.
        [ours] = [one for one in Client._instances if one.status == "running"]
        ours.loop.add_callback(ours.scheduler_comm.comm.abort)
        until(lambda: len(journal(tmp_path, event="TrialLost")) == 2)
        (tmp_path / "gate-3").touch()
        results = future.result(timeout=60)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4]] * 2
    assert not any(one["charged"] for one in journal(tmp_path, event="TrialLost"))
    assert_no_step_back(tmp_path)
    with fleet.client() as client:
        assert_clean(client)


@pytest.mark.slow
def test_a_scheduler_that_comes_back_costs_time(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(2)
    tuner = tuner_of(steps, tmp_path, fleet.address, space={"steps": 4, "gates": [3]}, num_samples=3)
    with fitting(tuner) as future:
        until(lambda: results_so_far(tmp_path) == 4)
        kill(fleet.scheduler)
        until(lambda: len(journal(tmp_path, event="TrialLost")) == 2)
        for worker in fleet.workers:
            worker.wait(timeout=60)
        fleet.start_scheduler()
        fleet.keep(2)
        (tmp_path / "gate-3").touch()
        results = future.result(timeout=120)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4]] * 3
    assert not any(one["charged"] for one in journal(tmp_path, event="TrialLost"))
    assert_no_step_back(tmp_path)
    with fleet.client() as client:
        assert_clean(client)


def test_a_scheduler_that_stays_away_ends_the_run_and_keeps_the_journal(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(1)
    tuner = tuner_of(steps, tmp_path, fleet.address, space={"steps": 2, "gates": [2]}, scheduler_wait=1.0)
    with fitting(tuner) as future:
        until(lambda: results_so_far(tmp_path))
        kill(fleet.scheduler)
        with pytest.raises(tune.ClusterLost, match="has not come back within 1 s"):
            future.result(timeout=60)
    [row] = journal(tmp_path, event="ResultReported")
    assert row["metrics"]["step"] == 1
    assert [one["charged"] for one in journal(tmp_path, event="TrialLost")] == [False]
