"""The runner of a queue and the handle of a queued experiment, without drivers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lease import LeaderLease, lease_name
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.storage.queue.experiment_queue import ExperimentQueue
from dasktune.storage.queue.queue_state import QueueState
from dasktune.tuner.queue_runner import QueueRunner
from dasktune.tuner.queued import QueuedExperiment
from dasktune.tuner.queued_driver import GIVEN_BACK


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


#: Waits until the runner closes its input; the order that it writes there may contain line breaks.
WAITS = "import sys; sys.stdin.buffer.read()"


class Drivers:
    """Starts processes in place of drivers, each of which runs a line of Python."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.code = "pass"
        self.error: OSError | None = None
        self._start = subprocess.Popen

    def __call__(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if self.error is not None:
            raise self.error
        process = self._start([sys.executable, "-c", self.code], **options)
        self.started.append(process)
        return process


@pytest.fixture
def drivers(monkeypatch) -> Drivers:
    drivers = Drivers()
    monkeypatch.setattr(subprocess, "Popen", drivers)
    return drivers


class Clock:
    """Time that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Clock:
    return Clock()


def collect(runner: QueueRunner) -> None:
    """Wait for the only driver, and let the runner collect it."""
    [process] = runner.drivers.values()
    process.wait(timeout=60)
    assert not runner.step()
    assert not runner.drivers


def test_an_end_that_cannot_be_read_ends_neither_the_runner_nor_its_other_drivers(
    queue, drivers, fail_next_reads, time, caplog
):
    entry_id, other = submit(queue), submit(queue, "other")
    drivers.code = WAITS  # until the runner closes its input
    runner = QueueRunner(queue.storage, None, limit=2, clock=time)
    try:
        runner.step()
        assert set(runner.drivers) == {entry_id, other}
        killed = runner.drivers[entry_id]
        killed.kill()
        killed.wait(timeout=60)
        fail_next_reads(3)  # two when all are read, and one at the end of the driver
        assert not runner.step()
        assert set(runner.drivers) == {other}
        assert "cannot read end.json" in caplog.text
        runner.step()
        assert set(runner.drivers) == {other}
        time.now += 1.0
        runner.step()
        assert set(runner.drivers) == {entry_id, other}
    finally:
        runner.close()


def test_a_runner_that_ends_says_that_its_experiments_stay_in_the_queue(queue, drivers, caplog):
    submit(queue)
    drivers.code = WAITS  # until the runner closes its input
    runner = QueueRunner(queue.storage, None)
    runner.step()
    runner.close()
    assert "1 of its experiments save and stay in the queue. Press Ctrl-C to leave at once" in caplog.text
    caplog.clear()
    runner.close()
    assert not caplog.records


def test_an_experiment_whose_driver_cannot_be_started_stays_queued(queue, drivers, time, caplog):
    entry_id = submit(queue)
    drivers.error = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    runner = QueueRunner(queue.storage, None, clock=time)
    assert not runner.step()
    assert "stays queued" in caplog.text
    assert queue.status(entry_id).state is QueueState.QUEUED
    drivers.error = None
    time.now += 1.0
    try:
        runner.step()
        assert set(runner.drivers) == {entry_id}
    finally:
        runner.close()


def test_only_the_first_killed_driver_in_a_row_is_replaced_at_once(queue, drivers, time):
    submit(queue)
    drivers.code = "import os; os.kill(os.getpid(), 9)"
    runner = QueueRunner(queue.storage, None, clock=time)

    def pause() -> float:
        """Let a driver die, and return after which time the next one starts."""
        if not runner.drivers:
            runner.step()
        collect(runner)
        begin = time.now
        runner.step()
        while not runner.drivers:
            time.now += 1.0
            runner.step()
        return time.now - begin

    try:
        assert [pause() for _ in range(5)] == [0, 2, 4, 8, 16]
        time.now += 60.0
        assert [pause() for _ in range(2)] == [0, 2]  # that driver has worked for a minute
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit(3)", "is queued again: its driver has ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "is queued again: its driver was killed by signal 9"),
        (f"raise SystemExit({GIVEN_BACK})", "is queued again: another driver runs it"),
    ],
)
def test_a_runner_says_how_a_driver_has_ended(queue, drivers, time, code, told):
    submit(queue)
    drivers.code = code
    texts: list[str] = []
    runner = QueueRunner(queue.storage, None, clock=time, on_change=lambda _, text: texts.append(text))
    runner.step()
    collect(runner)
    assert texts == ["starts", told]


def test_an_experiment_that_another_driver_runs_is_not_said_to_be_over(queue, drivers, time):
    entry_id = submit(queue)
    texts: list[str] = []
    runner = QueueRunner(queue.storage, None, clock=time, on_change=lambda _, text: texts.append(text))
    runner.step()
    with LeaderLock(queue.entry(entry_id)):
        collect(runner)
    assert texts == ["starts", "is run by another driver"]


@pytest.mark.parametrize("over", [False, True])
def test_a_frozen_driver_does_not_keep_its_place(queue, drivers, time, caplog, over):
    entry_id = submit(queue)
    drivers.code = WAITS  # it takes no lock, and does not end
    runner = QueueRunner(queue.storage, None, clock=time)
    try:
        runner.step()
        if over:
            queue.end(entry_id, QueueState.FINISHED)
        runner.step()
        time.now += 590.0
        runner.step()
        assert "frozen" not in caplog.text
        time.now += 20.0
        runner.step()
        [process] = drivers.started
        assert process.wait(timeout=60) == -signal.SIGKILL
        assert "seems frozen, and is killed" in caplog.text
    finally:
        runner.close()


def test_a_driver_that_holds_its_lock_again_is_not_frozen(queue, drivers, time, caplog):
    entry_id = submit(queue)
    drivers.code = WAITS  # until the runner closes its input
    runner = QueueRunner(queue.storage, None, clock=time)
    try:
        for _ in range(3):
            runner.step()
            with LeaderLock(queue.entry(entry_id)):
                runner.step()
            runner.step()
            time.now += 400.0
        assert "frozen" not in caplog.text
        [process] = drivers.started
        assert process.poll() is None
    finally:
        runner.close()


def test_a_driver_whose_machine_died_with_a_clock_ahead_is_replaced_after_a_ttl(queue, drivers, time):
    entry_id = submit(queue)
    drivers.code = WAITS  # until the runner closes its input
    # Another machine, whose clock is a day ahead.
    lock = LeaderLock(queue.entry(entry_id), ttl_s=30.0, machine="other")
    runner = QueueRunner(queue.storage, None, clock=time)
    with lock:
        name = f"{entry_id}/{lease_name(lock.epoch)}"

        def renew(number: int) -> None:
            lease = LeaderLease.decode(queue.storage.read_bytes(name))
            assert lease is not None
            later = replace(lease, expires="2999-01-01T00:00:00+00:00", renewals=1000 + number)
            queue.storage.write_bytes(name, later.encode())

        for number in range(3):
            renew(number)
            assert not runner.step()
            time.now += 29.0
        assert not runner.step()
        assert drivers.started == []
        time.now += 2.0
        try:
            runner.step()
            assert set(runner.drivers) == {entry_id}
        finally:
            runner.close()


@pytest.mark.parametrize("until_empty", [True, False])
def test_what_would_fail_all_experiments_is_refused_before_the_first_driver(
    queue, drivers, tmp_path, until_empty
):
    entry_id = submit(queue)
    scheduler_file = tmp_path / "scheduler.json"
    scheduler_file.write_text("{}")
    for address in ("no address", str(scheduler_file)):
        with pytest.raises(ConfigError, match="client must be"):
            QueueRunner(queue.storage, address).run(until_empty=until_empty)
    os.chmod(queue.storage.path(), 0o777)
    with pytest.raises(StorageError, match="only you can change"):
        QueueRunner(queue.storage, None).run(until_empty=until_empty)
    assert drivers.started == []
    assert queue.status(entry_id).state is QueueState.QUEUED


def test_a_scheduler_file_may_be_missing_yet(queue, tmp_path):
    QueueRunner(queue.storage, str(tmp_path / "scheduler.json")).run(until_empty=True)
