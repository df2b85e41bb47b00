"""A journal whose storage fails for a while waits; it loses nothing and raises in the end."""

from __future__ import annotations

import builtins
import errno
import io
import logging
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from fake_object_store import FakeObjectStore

from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs import retry
from dasktune.storage.fs.storage import Storage
from dasktune.storage.fs.streams import PART
from dasktune.storage.journal import journal_writer
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.journal_writer import JournalLimits, JournalWriter


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        assert self.slept < 10_000
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(params=["local", "remote"])
def patient(request: pytest.FixtureRequest) -> Storage:
    storage: Storage = request.getfixturevalue(request.param)
    return storage.with_retry(300.0)


Break = Callable[[Exception | None], None]


@pytest.fixture
def breaks(patient: Storage, monkeypatch: pytest.MonkeyPatch) -> Break:
    """Let all writes of the journal fail with an exception, or none."""
    whole = os.pwrite

    def set_failure(failure: Exception | None) -> None:
        def pwrite(descriptor: int, data: bytes, offset: int) -> int:
            if failure is not None:
                whole(descriptor, data[:3], offset)
                raise type(failure)(*failure.args)
            return whole(descriptor, data, offset)

        monkeypatch.setattr(os, "pwrite", pwrite)
        FakeObjectStore.failures = [type(failure)(*failure.args) for _ in range(10_000)] if failure else []

    return set_failure


def make(storage: Storage, time: Time, **limits: int) -> JournalWriter:
    return JournalWriter(storage, 1, clock=time, sleep=time.sleep, limits=JournalLimits(**limits))


def numbers(storage: Storage) -> list[int]:
    return [record["n"] for record in read_journal(storage)]


def poll(writer: JournalWriter, time: Time, until: float, number: int = 0) -> None:
    """Append and commit as a runner does, every now and then."""
    while time.now < until:
        number += 1
        writer.append({"n": number})
        writer.commit()
        time.now += 0.25


def test_what_was_recorded_during_an_outage_is_written_after_it(
    patient: Storage, time: Time, breaks: Break, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make(patient, time)
    writer.append({"n": 0})
    assert writer.commit(force=True) == 1
    assert writer.failing_since is None
    breaks(OSError(errno.ENOSPC, "full"))
    poll(writer, time, until=100.0)
    while writer.failing_since is None:  # a thread may not have come to it yet
        writer.commit()
    assert numbers(patient) == [0]
    breaks(None)
    assert writer.commit(force=True) == 401
    assert writer.failing_since is None
    assert numbers(patient) == list(range(401))
    assert writer.close() == 401
    assert caplog.text.count("Writing the journal of") == 1
    assert "retried until" in caplog.text
    assert "works again after" in caplog.text


def test_a_commit_that_waits_comes_back_when_the_storage_does(
    patient: Storage, time: Time, breaks: Break
) -> None:
    def until_it_works(seconds: float) -> None:
        time.sleep(seconds)
        if time.now > 60:
            breaks(None)

    writer = JournalWriter(patient, 1, clock=time, sleep=until_it_works)
    breaks(ConnectionRefusedError("refused"))
    writer.append({"n": 0})
    assert writer.commit(force=True) == 1
    assert 60 < time.now < 90
    assert numbers(patient) == [0]


def test_it_raises_when_its_patience_is_over_and_says_what_to_do(
    patient: Storage, time: Time, breaks: Break
) -> None:
    writer = make(patient, time)
    breaks(ConnectionRefusedError("refused"))
    writer.append({"n": 0})
    with pytest.raises(StorageError, match=r"refused.*tried for 300 s.*storage_patience=") as told:
        writer.commit(force=True)
    assert 300 <= time.now < 301
    assert isinstance(pickle.loads(pickle.dumps(told.value)), StorageError)
    # Who tries to save what can be saved does not wait as long again.
    with pytest.raises(StorageError):
        writer.close()
    assert time.now < 301
    breaks(None)
    assert writer.close() == 1
    assert numbers(patient) == [0]


def test_what_cannot_be_stored_holds_up_its_writer(patient: Storage, time: Time, breaks: Break) -> None:
    writer = make(patient, time, backlog=1000, write_size=500)
    breaks(ConnectionRefusedError("refused"))
    poll(writer, time, until=50.0)
    # A little at a time, so that an interrupt is heeded soon. A try that is due is no wait.
    before, slept = time.now, time.slept
    while time.slept == slept:
        writer.commit()
    assert time.slept == slept + 1
    assert 0 < time.now - before <= journal_writer.PAUSE
    breaks(None)
    count = writer.append({"n": -1})
    assert writer.close() == count
    assert numbers(patient) == [*range(1, count), -1]
    if not patient.is_local:
        sizes = [len(patient.read_bytes("journal", name)) for name in patient.names("journal")]
        assert max(sizes) < 2000
        assert len(sizes) > 3


def test_positions_count_rows_when_a_backlog_is_parted(remote: Storage, time: Time) -> None:
    writer = make(remote, time, write_size=300)
    for number in range(50):
        metrics = {"training_iteration": number, "loss": number / 3}
        writer.append({"event": "ResultReported", "trial_id": "a", "metrics": metrics, "n": number})
        if number % 7 == 6:
            writer.append({"n": number})
    assert writer.commit(force=True) == 57
    assert len(list(read_journal(remote))) == 57


def test_a_sync_that_fails_writes_nothing_twice(
    local: Storage, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make(local.with_retry(300.0), time)
    writer.append({"n": 0})
    writer.commit()
    time.now = 2.0

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        writer.append({"n": 1})
        assert writer.commit() == 1
    time.now = 4.0
    assert writer.commit() == 2
    writer.close()
    assert numbers(local) == [0, 1]


def test_a_mute_store_does_not_hold_up_the_writer(remote: Storage, time: Time) -> None:
    writer = make(remote.with_retry(300.0), time)
    FakeObjectStore.mute = True
    poll(writer, time, until=1000.0)  # a single put that waited would take 30 real seconds
    assert writer.commit() == 0
    assert time.slept == 0
    assert writer.failing_since is None


def test_a_rival_raises_at_once(remote: Storage, time: Time) -> None:
    writer = make(remote.with_retry(300.0), time)
    remote.create("journal/000001-000001.jsonl", b'{"n":-1}\n')
    writer.append({"n": 0})
    with pytest.raises(StorageError, match="another process writes to epoch 1"):
        writer.commit(force=True)
    assert time.now == 0.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Let the wait between two attempts take no time."""
    time = Time()
    defaults = {**retry.retry.__kwdefaults__, "clock": time, "sleep": time.sleep}
    monkeypatch.setattr(retry.retry, "__kwdefaults__", defaults)
    return time


def test_a_checkpoint_is_committed_through_an_outage(
    remote: Storage, quick: Time, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(remote.with_retry(300.0))
    # The claim, the file and the manifest fail in turn, some after they were carried out.
    FakeObjectStore.failures = [OSError("1"), None, OSError("2"), OSError("3"), None, OSError("4")]
    FakeObjectStore.answer_lost = True
    record = store.commit({"x": b"1"}, trial_dir="a", index=0, incarnation=1, iteration=1, metrics={})
    assert remote.read_bytes(record.path, "x") == b"1"
    with store.load(record).as_directory() as directory:
        assert os.path.exists(f"{directory}/x")
    assert quick.slept == 4
    assert caplog.text.count("retried until") == 3


def test_a_large_checkpoint_is_committed_although_the_answer_to_its_upload_was_lost(
    remote: Storage, quick: Time
) -> None:
    content = bytes(PART + 1)
    store = CheckpointStore(remote.with_retry(300.0))
    FakeObjectStore.failures = [None, FileNotFoundError("NoSuchUpload")]
    FakeObjectStore.answer_lost = True
    record = store.commit({"x": content}, trial_dir="a", index=0, incarnation=1, iteration=1, metrics={})
    assert quick.slept == 1
    assert remote.read_bytes(record.path, "x") == content


def test_the_specification_is_written_again_when_the_answer_was_lost(remote: Storage, quick: Time) -> None:
    FakeObjectStore.failures, FakeObjectStore.answer_lost = [OSError("reset")], True
    ExperimentStore(remote.with_retry(60.0)).create({"name": "run"})
    assert quick.slept == 1
    assert ExperimentStore(remote).spec()["name"] == "run"


def test_a_checkpoint_fails_within_the_patience_of_one_operation(remote: Storage, quick: Time) -> None:
    store = CheckpointStore(remote.with_retry(60.0))
    FakeObjectStore.failures = [OSError("down")] * 1000
    with pytest.raises(StorageError, match=r"down.* for 60 s.*storage_patience="):
        store.commit({"x": b"1"}, trial_dir="a", index=0, incarnation=1, iteration=1, metrics={})
    assert quick.now == 60.0


def test_a_full_disk_under_a_checkpoint_is_waited_for(
    local: Storage, quick: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.ENOSPC, "full")] * 3
    whole = open

    class FullDisk(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(b"half")
            raise failures.pop()

    def open_file(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if failures and mode == "wb" and str(path).endswith("/x"):
            return FullDisk(path, "w")
        return whole(path, mode, *args, **options)

    monkeypatch.setattr(builtins, "open", open_file)
    store = CheckpointStore(local.with_retry(300.0))
    record = store.commit({"x": b"1"}, trial_dir="a", index=0, incarnation=1, iteration=1, metrics={})
    monkeypatch.undo()
    assert not failures
    assert store.load(record)
    assert local.read_bytes(record.path, "x") == b"1"


def test_secrets_do_not_come_out_with_the_errors_of_a_storage() -> None:
    options = {"key": "hunter2hunter2", "client_kwargs": {"aws": ["token-of-mine"]}, "short": "ab"}
    storage = Storage("memory://x", {**options, "endpoint_url": "http://me:pass@host:1"})
    error = OSError("hunter2hunter2 at http://me:pass@host:1 with token-of-mine, abroad")
    assert storage.explain(error) == "OSError('*** at *** with ***, abroad')"


def test_patience_is_no_part_of_the_value_and_travels(remote: Storage) -> None:
    patient = remote.with_retry(12.0)
    assert patient == remote
    assert patient.fs is remote.fs
    assert patient.child("a").retry_seconds == 12.0
    assert pickle.loads(pickle.dumps(patient)).retry_seconds == 12.0
    assert remote.retry_seconds == 0.0


def test_small_files_that_failed_are_written_at_the_end(
    remote: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    store = ExperimentStore(remote)
    store.append({"n": 0})
    store.commit(force=True)
    for number in range(3):
        store.write_params(f"t{number}", {"n": number})
    FakeObjectStore.failures = [OSError("reset")]
    store.commit()
    with caplog.at_level(logging.WARNING):
        store.close()
    assert remote.find("trials") == [f"t{number}/params.json" for number in range(3)]
    assert not caplog.records


def test_an_error_that_cannot_be_written_costs_a_warning(
    remote: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    store = ExperimentStore(remote)
    FakeObjectStore.failures = [OSError("reset")]
    store.write_error("a", "ValueError: bad")
    store.close()
    assert "could not write trials/a/error.txt" in caplog.text
    assert "reset" in caplog.text
