from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fake_object_store import FakeObjectStore

from dasktune.errors import PreflightError, StorageError
from dasktune.storage.experiment import experiment_store
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.probe import probe
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import JournalReader, read_journal
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.trial.checkpoint_record import CheckpointRecord


@pytest.fixture
def store(storage: Storage) -> ExperimentStore:
    return ExperimentStore(storage)


def checkpoint(store: ExperimentStore, index: int = 0) -> CheckpointRecord:
    return store.checkpoints.commit(
        {"x": b"1"}, trial_dir="a", index=index, incarnation=1, iteration=1, metrics={}
    )


def test_the_specification_is_kept_without_secrets(store: ExperimentStore, storage: Storage) -> None:
    run = {"name": "exp", "storage_options": {"key": "hunter2"}}
    store.create({"run": run, "list": [run], "best": math.nan})
    assert "hunter2" not in storage.read_bytes("experiment.json").decode()
    spec = ExperimentStore(storage).spec()
    assert spec["run"] == {"name": "exp"}
    assert spec["list"] == [{"name": "exp"}]
    assert math.isnan(spec["best"])


def test_an_experiment_is_not_overwritten(store: ExperimentStore) -> None:
    with pytest.raises(StorageError, match="no experiment is stored at"):
        store.spec()
    store.create({})
    with pytest.raises(StorageError, match=r"Resume it with Tuner.restore"):
        store.create({})


def test_a_driver_recognises_its_own_specification_when_the_answer_was_lost(remote: Storage) -> None:
    FakeObjectStore.failures, FakeObjectStore.answer_lost = [OSError("reset")], True
    FakeObjectStore.attempts = 2
    ExperimentStore(remote).create({"name": "run"})
    with pytest.raises(StorageError, match=r"Resume it with Tuner.restore"):
        ExperimentStore(remote).create({"name": "run"})


def test_each_driver_begins_an_epoch(store: ExperimentStore, storage: Storage) -> None:
    assert store.append({"n": 0}) == 1
    store.close()
    reader = JournalReader(storage)
    list(reader)
    successor = ExperimentStore(storage)
    assert successor.begin(reader.end) == 2
    assert successor.append({"n": 1}) == 2
    assert successor.commit(force=True) == 2
    successor.close()
    assert [record["n"] for record in read_journal(storage)] == [0, 1]


def test_params_are_plain_json(store: ExperimentStore, storage: Storage) -> None:
    store.write_params("a", {"lr": 0.1, "layers": (1, 2)})
    store.close()
    assert json.loads(storage.read_bytes("trials/a/params.json")) == {"lr": 0.1, "layers": [1, 2]}


def test_params_that_cannot_be_written_cost_a_warning(
    remote: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    def full(operation: str, path: str) -> None:
        if operation == "write":
            raise OSError("disk full")

    store = ExperimentStore(remote)
    FakeObjectStore.before = full
    store.write_params("a", {"lr": 0.1})
    store.close()
    assert "disk full" in caplog.text


def test_failures_are_numbered(store: ExperimentStore, storage: Storage) -> None:
    store.write_error("a", "ValueError: one\n")
    store.write_error("a", "ValueError: two")
    store.close()
    lines = storage.read_bytes("trials/a/error.txt").decode().splitlines()
    assert lines[0].startswith("Failure # 1 (occurred at ")
    assert lines[1] == "ValueError: one"
    assert lines[3].startswith("Failure # 2 (occurred at ")
    assert lines[4] == "ValueError: two"


def test_a_checkpoint_is_deleted_only_when_the_journal_is_durable(
    store: ExperimentStore, storage: Storage
) -> None:
    record = checkpoint(store)
    store.append({"event": "CheckpointExpired"})
    store.delete_checkpoint(record)
    store.checkpoints.load(record)
    store.close()
    assert storage.find("trials") == []


def test_what_lost_workers_left_of_an_ended_trial_is_removed(
    store: ExperimentStore, storage: Storage
) -> None:
    kept, _ = checkpoint(store, 0), checkpoint(store, 1)
    store.remove_stale_checkpoints("a", 1, {kept.path})
    store.close()
    store.checkpoints.load(kept)
    assert sorted(storage.names("trials", "a")) == [".incarnation-000002", kept.path.rpartition("/")[2]]


def test_what_could_not_be_removed_is_removed_at_the_end(
    remote: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    store = ExperimentStore(remote)
    checkpoint(store, 0)
    FakeObjectStore.failures = [OSError("reset")]
    with caplog.at_level(logging.WARNING):
        store.remove_stale_checkpoints("a", 1, ())
        store.close()
    assert FakeObjectStore.failures == []
    assert remote.names("trials", "a") == [".incarnation-000002"]
    assert caplog.text == ""


def test_what_cannot_be_removed_is_logged_and_no_error(
    remote: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(operation: str, path: str) -> None:
        raise PermissionError("forbidden")

    store = ExperimentStore(remote)
    checkpoint(store, 0)
    FakeObjectStore.before = fail
    with caplog.at_level(logging.WARNING):
        store.remove_stale_checkpoints("a", 1, ())
        store.close()
    assert "could not remove the checkpoints that lost workers of trial a left" in caplog.text


def test_old_files_are_deleted_in_the_background(storage: Storage) -> None:
    storage.write_bytes(f".preflight-{0:032x}", b"1")
    store = ExperimentStore(storage)
    store.remove_stale_files()
    store.close()
    assert storage.find() == []


def test_after_a_long_run_old_files_are_looked_for_again(
    remote: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed = threading.Event()

    def fail(operation: str, path: str) -> None:
        FakeObjectStore.before = None
        has_failed.set()
        raise OSError("reset")

    caplog.set_level(logging.INFO)
    store = ExperimentStore(remote)
    FakeObjectStore.before = fail
    store.remove_stale_files()
    assert has_failed.wait(60)
    remote.write_bytes(f".preflight-{0:032x}", b"1")
    monkeypatch.setattr(experiment_store, "STALE", -1.0)
    store.close()
    assert "could not remove old files" in caplog.text
    assert remote.find() == []


def test_without_a_journal_closing_deletes_too(store: ExperimentStore, storage: Storage) -> None:
    store.delete_checkpoint(checkpoint(store))
    store.close()
    assert storage.find("trials") == []


def test_closing_an_unused_store_writes_nothing(store: ExperimentStore, storage: Storage) -> None:
    store.close()
    assert storage.find() == []


def test_a_deletion_that_failed_is_tried_again_at_the_end(
    remote: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    store = ExperimentStore(remote)
    first, second = checkpoint(store, 0), checkpoint(store, 1)
    store.append({"n": 0})
    store.commit(force=True)
    FakeObjectStore.failures = [OSError("reset")]
    store.delete_checkpoint(first)
    store.delete_checkpoint(second)
    with caplog.at_level(logging.WARNING):
        store.commit()
        store.close()
    assert caplog.text.count("could not delete checkpoint") == 1
    assert remote.find("trials") == []


@contextmanager
def superseded(storage: Storage) -> Iterator[ExperimentStore]:
    """Yield the store of a driver that has not noticed yet that another one has taken the lead."""
    clock = iter(range(0, 10**9, 10))
    with LeaderLock(storage, ttl_s=3600, clock=lambda: float(next(clock))) as lock:
        store = ExperimentStore(storage, lock)
        store.append({"n": 0})
        storage.write_bytes("driver/000002.json", b"")
        yield store
        store.close()
    storage.remove_tree("driver")


def test_a_superseded_driver_deletes_no_checkpoint(storage: Storage) -> None:
    with superseded(storage) as store:
        first, second = checkpoint(store, 0), checkpoint(store, 1)
        store.delete_checkpoint(first)
    with superseded(storage) as store:
        store.remove_stale_checkpoints("a", 1, {first.path})
    for record in (first, second):
        store.checkpoints.load(record)


def test_a_superseded_driver_writes_no_snapshot(storage: Storage) -> None:
    with superseded(storage) as store:
        store.save_snapshot(lambda rows: {"trials": []})
    assert storage.names("snapshots") == []


def test_a_checkpoint_is_deleted_when_it_is_known_again_who_leads(
    remote: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "list":
            FakeObjectStore.before = None
            raise OSError("reset")

    clock = iter(range(0, 10**9, 10))
    with LeaderLock(remote, ttl_s=3600, clock=lambda: float(next(clock))) as lock:
        store = ExperimentStore(remote, lock)
        store.append({"n": 0})
        record = checkpoint(store)
        store.commit(force=True)
        FakeObjectStore.before = fail
        store.delete_checkpoint(record)
        store.close()
    assert "could not delete checkpoint" in caplog.text
    assert remote.find("trials") == []


def test_closing_waits_for_an_object_whose_put_had_failed(remote: Storage) -> None:
    store = ExperimentStore(remote)
    store.append({"n": 0})
    FakeObjectStore.failures = [OSError("reset")]
    with pytest.raises(StorageError, match="reset"):
        store.commit(force=True)
    store.append({"n": 1})
    store.close()
    assert [record["n"] for record in read_journal(remote)] == [0, 1]


def test_the_probe_leaves_nothing(storage: Storage) -> None:
    probe(storage)
    assert storage.find() == []


def test_a_storage_that_cannot_be_written_is_named(local: Storage) -> None:
    with pytest.raises(PreflightError, match=r"storage_path must be writable .*/proc/nope"):
        probe(Storage("/proc/nope"))
    with pytest.raises(PreflightError, match="fsspec can open here, got 'nosuch://x'"):
        probe(Storage("nosuch://x"))


def test_a_storage_that_gives_something_else_back_is_refused(remote: Storage) -> None:
    def stale(operation: str, path: str) -> None:
        if operation == "read":
            FakeObjectStore.objects[path] = b"stale"

    FakeObjectStore.before = stale
    with pytest.raises(PreflightError, match="must give back what was written"):
        probe(remote)


def test_a_storage_that_overwrites_is_refused(remote: Storage) -> None:
    def overwrite(operation: str, path: str) -> None:
        if operation == "write":
            FakeObjectStore.objects.pop(path, None)

    FakeObjectStore.before = overwrite
    with pytest.raises(PreflightError, match="must be able to refuse to overwrite"):
        probe(remote)


def test_a_storage_that_loses_the_answer_to_a_write_passes_the_check(remote: Storage) -> None:
    FakeObjectStore.failures, FakeObjectStore.answer_lost = [OSError("reset")], True
    FakeObjectStore.attempts = 2
    probe(remote)
    assert remote.find() == []


def test_a_checkpoint_outlives_a_decision_that_is_not_durable_yet(remote: Storage) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "write" and "/journal/" in path:
            raise OSError("down")

    store = ExperimentStore(remote.with_retry(300.0))
    record = checkpoint(store)
    store.append({"n": 0})
    assert store.commit(force=True) == 1
    FakeObjectStore.before = fail
    store.append({"event": "CheckpointExpired"})
    store.delete_checkpoint(record)
    assert store.commit() == 1
    # The store works on one thing after the other: when this is done, a deletion would be, too.
    store.write_error("a", "ValueError: bad")
    while not remote.exists("trials/a/error.txt"):
        time.sleep(0.001)
    store.checkpoints.load(record)
    FakeObjectStore.before = None
    store.close()
    assert not remote.exists(record.path)
