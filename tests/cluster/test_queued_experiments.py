"""Experiments in a queue: their drivers, runners and the scheduler die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Fleet, histories, journal, kill, notes, run_config, steps, until

import dasktune as tune
from dasktune.cli import main
from dasktune.control.issuer import this_user
from dasktune.errors import ConfigError, TuneError
from dasktune.storage.fs.storage import Storage
from dasktune.tuner.queue_runner import QueueRunner
from dasktune.tuner.queued_driver import GIVEN_BACK

pytestmark = pytest.mark.cluster


def submit(place: Path, name: str, trainable: Any = steps, **options: Any) -> tune.QueuedExperiment:
    """Submit an experiment of one trial with four steps, of which the third has a gate."""
    own = place / name
    own.mkdir()
    return tune.Tuner(
        trainable,
        param_space={"place": str(own), "steps": 4, "gates": (3,)},
        tune_config=tune.TuneConfig(metric="step", mode="max"),
        run_config=run_config(place / "results", name, driver_ttl=2.0, stop_grace=1.0, **options),
    ).submit(queue=place / "queue")


def kill_scheduler(fleet: Fleet, workers: int) -> None:
    """Kill the scheduler, and its workers with it, which would end by themselves at some time."""
    kill(fleet.scheduler)
    for worker in fleet.workers:
        kill(worker)
    fleet.start_scheduler()
    fleet.keep(workers)


def open_gate(place: Path, name: str) -> None:
    (place / name / "gate-3").touch()


def runner_of(place: Path, address: str, **options: Any) -> QueueRunner:
    return QueueRunner(Storage(str(place / "queue")), address, **options)


def has_begun(place: Path, name: str, times: int = 1) -> bool:
    return len(notes(place / name)) >= times


def waits_at_gate(place: Path, name: str) -> bool:
    """Whether the journal has the two results before the gate, which no death may cost."""
    is_there = (place / "results" / name / "journal").exists()
    return is_there and len(journal(place / "results", name, event="ResultReported")) >= 2


def assert_each_result_once(experiment: tune.QueuedExperiment) -> None:
    assert histories(experiment.result(timeout=0)) == [[1, 2, 3, 4]]
    # The history leaves out results that are reported again; the journal has them all.
    directory = Path(experiment.path or "")
    results = journal(directory.parent, directory.name, event="ResultReported")
    assert [one["metrics"]["training_iteration"] for one in results] == [1, 2, 3, 4]


def assert_one_directory_each(place: Path, names: list[str]) -> None:
    """No driver has begun an experiment a second time elsewhere."""
    assert sorted(path.name for path in (place / "results").iterdir()) == sorted(names)


def resumptions_of(place: Path, name: str) -> int:
    """Return how many drivers have resumed the experiment from its journal."""
    return len(journal(place / "results", name, event="SessionBegan"))


@pytest.mark.slow
def test_killed_drivers_and_a_killed_scheduler_cost_no_result(tmp_path: Path, fleet: Fleet):
    fleet.keep(1)
    experiments = [submit(tmp_path, f"run-{number}") for number in range(2)]
    assert [one.state for one in experiments] == ["queued"] * 2
    runner = runner_of(tmp_path, fleet.address)
    try:
        until(lambda: runner.step() or waits_at_gate(tmp_path, "run-0"))
        [driver] = runner.drivers.values()
        kill(driver)
        # The next driver continues from the last checkpoint.
        until(lambda: runner.step() or has_begun(tmp_path, "run-0", 2))
        kill_scheduler(fleet, 1)
        for number in range(2):
            open_gate(tmp_path, f"run-{number}")
        until(runner.step)
    finally:
        runner.close()
    for one in experiments:
        assert one.state == "finished"
        assert_each_result_once(one)
    assert_one_directory_each(tmp_path, ["run-0", "run-1"])
    assert resumptions_of(tmp_path, "run-0") == 1


def test_experiments_start_by_class_and_one_that_cannot_start_blocks_none(tmp_path: Path, fleet: Fleet):
    fleet.keep(1)
    late = submit(tmp_path, "late")
    bad = submit(tmp_path, "bad", priority=2, if_exists="error")
    (tmp_path / "results" / "bad" / "trials" / "old").mkdir(parents=True)
    first = submit(tmp_path, "first", priority=1)
    unwanted = submit(tmp_path, "unwanted", priority=3)
    unwanted.cancel()
    for name in ("late", "first"):
        open_gate(tmp_path, name)
    told: list[str] = []
    runner = runner_of(tmp_path, fleet.address, on_change=lambda one, text: told.append(f"{one.name} {text}"))
    runner.run(until_empty=True, poll_s=0.1)
    assert [text for text in told if "starts" in text] == ["bad starts", "first starts", "late starts"]
    assert (bad.state, unwanted.state) == ("failed", "cancelled")
    assert "name must be new" in bad.reason
    with pytest.raises(TuneError, match="bad has failed: StorageError: name must be new"):
        bad.result()
    for one in (first, late):
        assert_each_result_once(one)


@pytest.mark.slow
def test_the_end_of_a_runner_leaves_the_experiment_in_the_queue_and_cancel_ends_it(
    tmp_path: Path, fleet: Fleet
):
    fleet.keep(1)
    experiment = submit(tmp_path, "run")
    runner = runner_of(tmp_path, fleet.address)
    # Its second start may be cancelled before it reports, so the results are of the first one.
    until(lambda: runner.step() or waits_at_gate(tmp_path, "run"))
    assert experiment.state == "running"
    with pytest.raises(TimeoutError, match="still running"):
        experiment.wait(timeout=0)
    [driver] = runner.drivers.values()
    runner.close()
    assert driver.returncode == GIVEN_BACK
    assert (experiment.state, experiment.reason) == ("queued", "its driver was ended")
    try:
        until(lambda: runner.step() or has_begun(tmp_path, "run", 2))
        experiment.cancel()
        until(runner.step)
    finally:
        runner.close()
    assert experiment.wait() == "cancelled"
    [stop] = journal(tmp_path / "results", "run", event="StopRequested")
    [end] = journal(tmp_path / "results", "run", event="InterruptRequested")
    assert stop["by"] == end["by"] == f"{this_user()} (queue)"
    assert histories(experiment.result()) == [[1, 2]]


def test_the_command_line_lists_and_cancels(tmp_path: Path, capsys):
    experiment = submit(tmp_path, "run", weight=2.0)
    queue = str(tmp_path / "queue")
    assert main(["queue", "ls", queue]) == 0
    shown = capsys.readouterr().out
    assert experiment.entry_id in shown
    assert "queued" in shown
    assert main(["queue", "cancel", queue, "run"]) == 0
    assert experiment.state == "cancelled"
    assert main(["queue", "cancel", queue, "run"]) == 0
    assert "cancelled already" in capsys.readouterr().out
    assert main(["queue", "run", queue, "--until-empty"]) == 0
    assert main(["queue", "cancel", queue]) == 2


def test_a_queue_that_no_other_process_sees_is_refused(tmp_path: Path):
    tuner = tune.Tuner(steps, run_config=run_config(tmp_path))
    with pytest.raises(ConfigError, match="queue must be visible to other processes"):
        tuner.submit(queue="memory://queue")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_experiments_survive_five_deaths_of_drivers_and_five_of_the_scheduler(
    tmp_path: Path, fleet: Fleet
):
    fleet.keep(2)
    names = [f"run-{number}" for number in range(20)]
    experiments = [submit(tmp_path, name) for name in names]
    runner = runner_of(tmp_path, fleet.address, limit=2)
    kills = {"driver": 0, "scheduler": 0}
    try:
        # The trial of each of the first ten experiments waits before its third step until there
        # was a death: of its driver, or of the scheduler.
        for number, name in enumerate(names[:10]):
            until(lambda name=name: runner.step() or waits_at_gate(tmp_path, name), timeout=300)
            begun = len(notes(tmp_path / name))
            if number % 2 == 0:
                entry = experiments[number].entry_id
                kill(runner.drivers[entry])
                kills["driver"] += 1
                until(
                    lambda name=name, begun=begun: runner.step() or has_begun(tmp_path, name, begun + 1),
                    timeout=300,
                )
            else:
                kill_scheduler(fleet, 2)
                kills["scheduler"] += 1
            open_gate(tmp_path, name)
        for name in names[10:]:
            open_gate(tmp_path, name)
        until(runner.step, timeout=900)
    finally:
        runner.close()
    assert kills == {"driver": 5, "scheduler": 5}
    for one in experiments:
        assert one.state == "finished"
        assert_each_result_once(one)
    assert_one_directory_each(tmp_path, names)
    assert [resumptions_of(tmp_path, name) >= 1 for name in names[0:10:2]] == [True] * 5
