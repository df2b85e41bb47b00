"""The runner of a queue and the handle of a queued experiment, without drivers."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.queue.experiment_queue import ExperimentQueue
from dasktune.storage.queue.queue_state import QueueState
from dasktune.tuner.queue_runner import QueueRunner
from dasktune.tuner.queued import QueuedExperiment


@pytest.fixture
def queue(tmp_path) -> ExperimentQueue:
    return ExperimentQueue(Storage(str(tmp_path / "queue")))


def submit(queue: ExperimentQueue, name: str = "run") -> str:
    return queue.add(name, b"tuner", priority=0, weight=1.0, submitted=1e9)


@pytest.fixture
def fail_next_reads(monkeypatch) -> Callable[[int], None]:
    """Return a function that lets the next reads of an end fail, as a busy store does."""
    left = 0
    status = ExperimentQueue.status

    def fail(queue: ExperimentQueue, entry_id: str) -> object:
        nonlocal left
        if left > 0:
            left -= 1
            error = OSError(errno.EIO, "503 Slow Down")
            raise StorageError("cannot read end.json") from error
        return status(queue, entry_id)

    def set_left(number: int) -> None:
        nonlocal left
        left = number

    monkeypatch.setattr(ExperimentQueue, "status", fail)
    return set_left


def test_an_experiment_that_could_not_be_read_once_keeps_the_runner_at_work(queue, fail_next_reads):
    entry_id = submit(queue)
    runner = QueueRunner(queue.storage, None)
    fail_next_reads(1)
    assert not runner.step()
    assert not runner.drivers
    queue.end(entry_id, QueueState.FINISHED)
    assert runner.step()


def test_only_recorded_ends_are_not_read_again(queue, fail_next_reads):
    ended, cancelled = submit(queue), submit(queue)
    queue.end(ended, QueueState.FINISHED)
    queue.cancel(cancelled)
    runner = QueueRunner(queue.storage, None)
    assert runner.step()
    # A driver that seemed dead records the end.
    queue.end(cancelled, QueueState.FINISHED)
    fail_next_reads(1)
    assert not runner.step()  # the one read is that of the cancelled experiment
    assert runner.step()


def test_waiting_outlives_a_failed_read_and_not_a_damaged_file(queue, fail_next_reads):
    entry_id = submit(queue)
    experiment = QueuedExperiment(queue.storage.url, entry_id)
    queue.end(entry_id, QueueState.FINISHED)
    fail_next_reads(1)
    assert experiment.wait(timeout=60) == "finished"
    queue.storage.write_bytes(f"{entry_id}/end.json", b"[]")
    with pytest.raises(StorageError, match="damaged"):
        experiment.wait(timeout=60)
