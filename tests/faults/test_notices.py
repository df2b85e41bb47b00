"""Notices of preemption: trials save, leave their workers in time, and resume elsewhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cluster_kit
import fault_kit
import pytest
from cluster_kit import Fleet, Tally, journal, kill, note, notes, until
from distributed import Client
from fault_kit import Bout, add_and_meet

import dasktune as tune
from dasktune.cli.command_line import main

pytestmark = pytest.mark.cluster


def save_rarely(config: dict[str, Any]) -> None:
    """Save every 50 or `every` steps, and when the trial should; note each computed step."""
    place = Path(config["place"])
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while step < 75 or not (place / "go").exists():
        step += 1
        note(place, step)
        is_due = step % config.get("every", 50) == 0 or (config["asks"] and tune.should_checkpoint())
        if (notice := tune.get_notice()) is not None and config["asks"]:
            note(place, f"{notice.reason}, less than {notice.seconds // 10 * 10 + 10:.0f} s left")
        saved = tune.Checkpoint.from_dict({"step": step}) if is_due else None
        tune.report({"step": step}, checkpoint=saved)
        time.sleep(0.03)


def computed(place: Path) -> list[str]:
    return [line for line in notes(place) if line.isdigit()]


def repeated(place: Path) -> int:
    """Return how many computed steps were computed before."""
    return sum(count - 1 for count in Counter(computed(place)).values())


@pytest.fixture(autouse=True)
def without_noticed_workers(fleet: Fleet) -> None:
    """Begin without workers: those of an earlier test may have a notice for a long time."""
    fleet.keep(0)


def give_notice(fleet: Fleet, *options: str) -> int:
    return main(["notice", "--address", fleet.address, "--timeout", "60", *options])


def assert_moved(bout: Bout, address: str) -> None:
    """The trial has left this worker once, without a failure, and resumed on another one."""
    [loss] = bout.losses
    assert not loss["charged"]
    first, second = (one["worker"] for one in bout.events("TrialStarted"))
    assert (first, second != address) == (address, True)


@pytest.mark.parametrize("isolation", [pytest.param("thread", marks=pytest.mark.slow), "process"])
def test_a_function_that_asks_repeats_at_most_one_step_after_a_notice(
    fleet: Fleet, client: Client, tmp_path: Path, isolation: str
) -> None:
    fleet.keep(2)
    bout = Bout(save_rarely, tmp_path, fleet.address, space={"asks": True}, isolation=isolation)
    with bout.fitting() as future:
        until(lambda: len(computed(tmp_path)) >= 71)
        [address] = bout.where().values()
        assert give_notice(fleet, "--worker", address, "--in", "120", "--reason", "spot") == 0
        until(lambda: bout.losses)
        # The announced end is far away: the trial has left because it has saved.
        bout.go()
        results = future.result(timeout=90)
    bout.assert_exact(results)
    assert_moved(bout, address)
    assert "spot" in bout.losses[0]["reason"]
    assert repeated(tmp_path) <= 1
    assert "spot, less than 120 s left" in notes(tmp_path)


@pytest.mark.slow
def test_a_function_that_never_saves_leaves_before_the_end(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    bout = Bout(save_rarely, tmp_path, fleet.address, space={"asks": False})
    with bout.fitting() as future:
        until(lambda: len(computed(tmp_path)) >= 71)
        [address] = bout.where().values()
        # Step 100 comes later, so it leaves with the checkpoint of step 50.
        assert give_notice(fleet, "--worker", address, "--in", "0.4") == 0
        until(lambda: bout.losses)
        bout.go()
        results = future.result(timeout=90)
    bout.assert_exact(results)
    assert not bout.losses[0]["charged"]
    assert 20 <= repeated(tmp_path) < 50


@pytest.mark.slow
def test_a_class_is_saved_at_its_next_step_and_repeats_none(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    bout = Bout(Tally, tmp_path, fleet.address)
    with bout.fitting() as future:
        until(lambda: len(notes(tmp_path)) >= 5)
        assert give_notice(fleet, "--host", "127.0.0.1", "--in", "3") == 0
        until(lambda: bout.losses)
        (tmp_path / "enough").touch()
        # All workers have the notice, so the trial waits until its time has passed.
        results = future.result(timeout=90)
    bout.assert_exact(results)
    [loss] = bout.losses
    assert not loss["charged"]
    before, after = (one["time"] for one in journal(tmp_path, event="TrialStarted"))
    assert after - loss["time"] > 1.0
    assert before < loss["time"]
    assert len(notes(tmp_path)) == results[0].metrics["step"]


def test_a_worker_with_notice_gets_no_trials_of_a_later_experiment(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    noticed = sorted(client.scheduler_info()["workers"])[0]
    assert give_notice(fleet, "--worker", noticed, "--in", "60") == 0
    bout = Bout(Tally, tmp_path, fleet.address, num_samples=3)
    (tmp_path / "enough").touch()
    with bout.fitting() as future:
        bout.assert_exact(future.result(timeout=90))
    assert noticed not in {one["worker"] for one in bout.events("TrialStarted")}
    assert not bout.losses


@pytest.mark.slow
def test_the_death_of_a_worker_with_notice_counts_as_no_loss(
    fleet: Fleet, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.keep(1)
    # It saves nothing, because after the notice it would leave with its next checkpoint.
    bout = Bout(save_rarely, tmp_path, fleet.address, space={"asks": False, "every": 10**6})
    with bout.fitting() as future:
        until(lambda: len(computed(tmp_path)) >= 10)
        assert give_notice(fleet, "--all", "--in", "600") == 0
        # The notice comes by way of the scheduler, the death by the connection to the worker.
        until(lambda: "ends in 600 s (notice)" in caplog.text)
        kill(fleet.workers.pop())
        until(lambda: bout.losses)
        bout.go()
        fleet.keep(1)
        results = future.result(timeout=90)
    bout.assert_exact(results)
    assert not bout.losses[0]["charged"]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_function_that_asks_repeats_at_most_one_step_after_sigterm_to_its_nanny(
    fleet: Fleet, client: Client, tmp_path: Path, isolation: str
) -> None:
    fleet.keep(0)
    process, address = add_and_meet(fleet, client, nanny=True)
    bout = Bout(save_rarely, tmp_path, fleet.address, space={"asks": True}, isolation=isolation)
    with bout.fitting() as future:
        until(lambda: len(computed(tmp_path)) >= 71)
        fleet.keep(2)
        process.send_signal(signal.SIGTERM)
        until(lambda: bout.losses)
        bout.go()
        results = future.result(timeout=90)
    kill(process)
    bout.assert_exact(results)
    assert_moved(bout, address)
    assert repeated(tmp_path) <= 1


def test_a_notice_to_an_unknown_worker_is_refused_with_those_that_exist(
    fleet: Fleet, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.keep(1)
    assert give_notice(fleet, "--worker", "nowhere", "--in", "9") == 2
    assert f"got ['nowhere']. It has: {next(iter(client.scheduler_info()['workers']))}" in (
        capsys.readouterr().err
    )
    assert give_notice(fleet, "--host", "nowhere", "--in", "9") == 2
    assert "no worker of the cluster has taken the notice" in capsys.readouterr().err


def test_names_that_mean_no_worker_are_said_although_others_get_the_notice(
    fleet: Fleet, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.keep(1)
    [worker] = client.scheduler_info()["workers"]
    assert give_notice(fleet, "--worker", worker, "--worker", "nowhere", "--in", "9") == 0
    assert "the cluster has no workers of these names: nowhere" in caplog.text
    caplog.clear()
    assert give_notice(fleet, "--host", "127.0.0.1", "--host", "elsewhere", "--in", "9") == 0
    assert "no worker on these hosts has taken the notice: elsewhere" in caplog.text
    caplog.clear()
    assert give_notice(fleet, "--all", "--in", "9") == 0
    assert not [one for one in caplog.records if one.name == "dasktune.cluster.notices.send_notice"]


#: Runs a function that asks for notices, on one worker, until a signal ends it.
ASKING = """
import sys
sys.path[:0] = sys.argv[1:4]
from pathlib import Path
from fault_kit import Bout
from test_notices import save_rarely
if __name__ == "__main__":
    Bout(save_rarely, Path(sys.argv[4]), sys.argv[5], space={"asks": True}).tuner.fit()
"""


@pytest.mark.slow
def test_a_function_that_asks_saves_before_its_driver_ends(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(1)
    kits = [str(Path(module.__file__).parent) for module in (cluster_kit, fault_kit)]
    command = [sys.executable, "-c", ASKING, *kits, str(Path(__file__).parent), str(tmp_path), fleet.address]
    driver = subprocess.Popen(command)
    try:
        until(lambda: len(computed(tmp_path)) >= 71)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=90) == 143
    finally:
        kill(driver)
    (tmp_path / "go").touch()
    [result] = tune.Tuner.restore(tmp_path / "run", save_rarely, client=fleet.address).fit()
    assert [row["step"] for row in result.history] == list(range(1, len(result.history) + 1))
    assert repeated(tmp_path) <= 1
    assert "the experiment was interrupted, less than 10 s left" in notes(tmp_path)
