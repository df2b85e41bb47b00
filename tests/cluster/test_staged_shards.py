"""Checkpoints of several ranks that are uploaded while these train on, and what dies meanwhile."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import disk_store
import psutil
import pytest
from cluster_kit import (
    Fleet,
    fitting,
    histories,
    journal,
    kill,
    note,
    notes,
    restarts,
    results_so_far,
    statuses,
    until,
    wait_for_file,
)
from control_kit import told_client

import dasktune as tune

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

STEPS = 4


@pytest.fixture(scope="module")
def remote_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A cluster whose workers know the store."""
    fleet = Fleet(tmp_path_factory.mktemp("staged-shards"))
    yield fleet
    fleet.close()


@pytest.fixture
def workers(remote_fleet: Fleet) -> list[Any]:
    """Two workers; a test may kill one of them."""
    remote_fleet.workers = [worker for worker in remote_fleet.workers if worker.poll() is None]
    while len(remote_fleet.workers) < 2:
        add_worker(remote_fleet)
    with remote_fleet.client() as client:
        until(lambda: len(client.scheduler_info()["workers"]) == 2)
    return remote_fleet.workers


def add_worker(fleet: Fleet) -> Any:
    return fleet.add_worker(f"--preload={disk_store.__file__}")


def save_in_all_ranks(config: dict[str, Any]) -> None:
    """Let each rank save a file at the first two steps.

    The upload of the second checkpoint takes until the test lets it through. Before the last step
    the ranks wait for a file, if they are to.
    """
    place, rank = Path(config["place"]), tune.get_context().get_world_rank()
    checkpoint = tune.get_checkpoint()
    done = 0 if checkpoint is None else int(Path(checkpoint.path, f"step_{rank}").read_text())
    note(place, f"{rank} {os.getpid()}")
    for step in range(done + 1, STEPS + 1):
        if step == STEPS and config["waits"]:
            wait_for_file(place / "end")
        saved = None
        with tempfile.TemporaryDirectory() as directory:
            if step <= 2:
                Path(directory, f"step_{rank}").write_text(str(step))
                if step == 2 and rank == 1:
                    Path(directory, "slow").write_text("s" * 1000)
                saved = tune.Checkpoint.from_directory(directory)
            tune.report({"step": step}, checkpoint=saved)
            # The files may change when it has returned.
            for path in Path(directory).iterdir():
                path.write_text("changed")
        if rank == 0:
            note(place, f"reported {step}")


def tuner_of(place: Path, fleet: Fleet, *, waits: bool, **options: Any) -> tune.Tuner:
    trainable = tune.with_ranks(
        save_in_all_ranks,
        2,
        # The ranks open the store, too.
        preload=["disk_store"],
        env={"PYTHONPATH": str(Path(disk_store.__file__).parent)},
    )
    return tune.Tuner(
        trainable,
        param_space={"place": str(place), "waits": waits},
        run_config=tune.RunConfig(
            storage_path=f"disk://{place}",
            storage_options={"gate": str(place / "gate")},
            name="run",
            verbose=0,
            **options,
        ),
        client=fleet.address,
    )


def ranks(place: Path) -> list[int]:
    """Return the process ids of the ranks of all starts."""
    return [int(line.split()[1]) for line in notes(place) if line[0].isdigit()]


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def whole_checkpoints(place: Path) -> list[list[str]]:
    """Return the contents of the ranks' files in each checkpoint; each must have a manifest."""
    found = []
    for directory in sorted(place.glob("run/trials/*/checkpoint_*")):
        if not any(directory.iterdir()):
            continue  # an object store has no empty directories
        assert (directory / ".manifest.json").exists(), sorted(directory.iterdir())
        found.append([(directory / f"step_{rank}").read_text() for rank in range(2)])
    return found


def test_ranks_train_on_while_their_shards_are_uploaded(
    remote_fleet: Fleet, workers: list[Any], tmp_path: Path
) -> None:
    with fitting(tuner_of(tmp_path, remote_fleet, waits=True)) as future:
        until(lambda: "reported 3" in notes(tmp_path))
        # A result counts when its checkpoint has arrived. The journal comes there once a second.
        until(lambda: results_so_far(tmp_path) == 1)
        (tmp_path / "end").touch()
        until(lambda: all(map(is_gone, ranks(tmp_path))))
        # The ranks have ended, the trial has not.
        assert not future.done()
        assert results_so_far(tmp_path) == 1
        (tmp_path / "gate").touch()
        results = future.result(timeout=120)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4]]
    assert len(restarts(tmp_path)) == 1
    assert whole_checkpoints(tmp_path) == [["1", "1"], ["2", "2"]]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_loses_no_checkpoint_that_is_being_uploaded(
    remote_fleet: Fleet, workers: list[Any], tmp_path: Path, rank: int
) -> None:
    failures = tune.FailureConfig(max_failures=1)
    with fitting(tuner_of(tmp_path, remote_fleet, waits=True, failure_config=failures)) as future:
        until(lambda: "reported 3" in notes(tmp_path))
        before = ranks(tmp_path)
        [killed] = [int(line.split()[1]) for line in notes(tmp_path) if line.startswith(f"{rank} ")]
        os.kill(killed, signal.SIGKILL)
        # No rank waits for the upload.
        until(lambda: all(map(is_gone, before)))
        until(lambda: results_so_far(tmp_path) == 1)
        assert journal(tmp_path, event="TrialFailed") == []
        (tmp_path / "gate").touch()
        (tmp_path / "end").touch()
        results = future.result(timeout=120)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4]]
    assert [iteration for _, iteration in restarts(tmp_path)] == [0, 2]
    assert whole_checkpoints(tmp_path) == [["1", "1"], ["2", "2"]]


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_killed_in_the_middle_of_an_upload_leaves_no_result_without_its_checkpoint(
    remote_fleet: Fleet, workers: list[Any], tmp_path: Path, which: int
) -> None:
    with fitting(tuner_of(tmp_path, remote_fleet, waits=True)) as future:
        until(lambda: "reported 3" in notes(tmp_path))
        until(lambda: results_so_far(tmp_path) == 1)
        kill(workers[which])
        until(lambda: all(map(is_gone, ranks(tmp_path)[:2])))
        (tmp_path / "gate").touch()
        (tmp_path / "end").touch()
        add_worker(remote_fleet)
        results = future.result(timeout=120)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4]]
    assert [iteration for _, iteration in restarts(tmp_path)] == [0, 1]
    assert len(journal(tmp_path, event="TrialLost")) == 1
    assert whole_checkpoints(tmp_path) == [["1", "1"], ["2", "2"]]


@pytest.mark.parametrize("in_time", [True, False])
def test_a_stopped_trial_finishes_its_upload_within_its_grace_period(
    remote_fleet: Fleet,
    workers: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    in_time: bool,
) -> None:
    # With a stopper each result would wait for its decision, and so for its checkpoint.
    options = {"server_port": True, "stop_grace": 60.0 if in_time else 0.2}
    with fitting(tuner_of(tmp_path, remote_fleet, waits=True, **options)) as future:
        client = told_client(capsys, lambda: not future.done())
        until(lambda: "reported 3" in notes(tmp_path))
        until(lambda: results_so_far(tmp_path) == 1)
        client.stop_experiment()
        if in_time:
            (tmp_path / "end").touch()
            until(lambda: all(map(is_gone, ranks(tmp_path))))
            assert not future.done()
            (tmp_path / "gate").touch()
        results = future.result(timeout=120)
    (tmp_path / "gate").touch()
    assert statuses(results) == {"TERMINATED"}
    assert all(map(is_gone, ranks(tmp_path)))
    [steps] = histories(results)
    if in_time:
        assert steps[:3] == [1, 2, 3]
        assert whole_checkpoints(tmp_path) == [["1", "1"], ["2", "2"]]
    else:
        assert steps == [1]
