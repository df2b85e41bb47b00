from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from functools import partialmethod
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fake_object_store import FakeObjectStore

from dasktune.errors import CheckpointDamaged, CheckpointNotFound, ConfigError, StorageError
from dasktune.storage.checkpoints.checkpoint import Checkpoint, dict_files
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.fencing import fence_of
from dasktune.storage.checkpoints.source_files import CheckpointSource
from dasktune.storage.fs import local_files
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointRecord

FILES = {"weights": b"w" * 700_000, "deep/er/empty": b"", "odd *[?] \u00e4 name": b"odd"}


def commit(
    store: CheckpointStore,
    source: CheckpointSource = FILES,
    *,
    index: int = 3,
    incarnation: int = 2,
    fence: Callable[[], None] | None = None,
) -> CheckpointRecord:
    return store.commit(
        source,
        trial_dir="a_00000",
        index=index,
        incarnation=incarnation,
        iteration=7,
        metrics={"eval": {"acc": 0.5}},
        fence=fence,
    )


def content(checkpoint: Checkpoint) -> dict[str, bytes]:
    with checkpoint.as_directory() as directory:
        return {
            name: Path(directory, name).read_bytes()
            for name, _ in local_files.relative_files(directory)
            if name != ".manifest.json"
        }


@pytest.fixture
def store(storage: Storage) -> CheckpointStore:
    return CheckpointStore(storage)


def test_what_was_committed_is_loaded(store: CheckpointStore) -> None:
    record = commit(store)
    assert record == CheckpointRecord(
        path="trials/a_00000/checkpoint_000003_i02",
        index=3,
        iteration=7,
        metrics={"eval/acc": 0.5},
    )
    assert content(store.load(record)) == FILES


def test_a_directory_is_committed_from_wherever_it_lies(store: CheckpointStore, tmp_path: Path) -> None:
    here = tmp_path / "source"
    (here / "sub").mkdir(parents=True)
    (here / "sub" / "x").write_bytes(b"1")
    (here / "nothing").mkdir()
    (here / "link").symlink_to(here / "sub" / "x")
    sources: list[CheckpointSource] = [here, str(here), Checkpoint(here)]
    for index, source in enumerate(sources):
        record = commit(store, source, index=index)
        assert content(store.load(record)) == {"sub/x": b"1", "link": b"1"}


def test_a_name_may_have_two_lines(local: Storage, remote: Storage) -> None:
    # The S3 server of the tests cannot take such names; S3 can.
    files = {"one\ntwo": b"odd"}
    for storage in (local, remote):
        store = CheckpointStore(storage)
        assert content(store.load(commit(store, files))) == files


def test_an_empty_checkpoint_is_a_checkpoint(store: CheckpointStore) -> None:
    assert content(store.load(commit(store, {}))) == {}


def test_a_dict_is_committed_without_touching_a_disk_first(store: CheckpointStore) -> None:
    assert store.load(commit(store, dict_files({"epoch": 1}))).to_dict() == {"epoch": 1}


def test_a_committed_checkpoint_can_be_committed_again(store: CheckpointStore) -> None:
    first = commit(store)
    second = commit(store, store.load(first), index=4)
    third = commit(store, store.reference(second), index=5)
    store.delete(first)
    assert content(store.load(second)) == content(store.load(third)) == FILES


def test_metadata_may_change_after_the_commit(store: CheckpointStore) -> None:
    record = commit(store, {**FILES, ".metadata.json": b"{}"})
    store.reference(record).set_metadata({"epoch": 3})
    assert store.load(record).get_metadata() == {"epoch": 3}


def test_an_incarnation_commits_a_number_once(store: CheckpointStore) -> None:
    record = commit(store)
    with pytest.raises(StorageError, match="exists already"):
        commit(store, {"weights": b"other"})
    assert content(store.load(record)) == FILES


def test_of_many_writers_one_wins(storage: Storage) -> None:
    outcomes: list[object] = []

    def write(number: int) -> None:
        try:
            outcomes.append(commit(CheckpointStore(storage), {"x": b"%d" % number}))
        except StorageError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (record,) = [one for one in outcomes if isinstance(one, CheckpointRecord)]
    assert len(outcomes) == 4
    CheckpointStore(storage).load(record)


class Fenced(Exception):
    pass


def test_a_fenced_worker_writes_no_file(remote: Storage) -> None:
    def fence() -> None:
        raise Fenced

    def refuse(operation: str, path: str) -> None:
        assert operation not in ("write", "remove")

    # If it dies now, there is nothing that a driver would have to delete.
    FakeObjectStore.before = refuse
    with pytest.raises(Fenced):
        commit(CheckpointStore(remote), fence=fence)
    assert remote.find() == []


def test_a_fenced_worker_leaves_nothing_and_may_try_again(store: CheckpointStore, storage: Storage) -> None:
    def fence() -> None:
        if "trials/a_00000/checkpoint_000003_i02/weights" in storage.find():
            raise Fenced

    with pytest.raises(Fenced):
        commit(store, fence=fence)
    assert storage.find() == []
    assert content(store.load(commit(store))) == FILES


def test_a_failure_to_clean_up_does_not_hide_the_first_one(
    remote: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        if remote.find():
            raise Fenced

    def refuse(operation: str, path: str) -> None:
        if operation == "remove":
            raise OSError("read-only")

    FakeObjectStore.before = refuse
    with pytest.raises(Fenced), caplog.at_level(logging.WARNING):
        commit(CheckpointStore(remote), fence=fail)
    assert "could not remove the incomplete checkpoint" in caplog.text


def test_without_a_manifest_there_is_no_checkpoint(store: CheckpointStore, storage: Storage) -> None:
    record = commit(store)
    storage.remove(f"{record.path}/.manifest.json")
    with pytest.raises(CheckpointNotFound, match=r"there is no committed checkpoint at .*_i02"):
        store.load(record)


@pytest.mark.parametrize("damage", [b"w" * 699_999, b"v" + b"w" * 699_999, None])
def test_a_damaged_checkpoint_is_never_loaded(
    store: CheckpointStore, storage: Storage, damage: bytes | None
) -> None:
    record = commit(store)
    name = f"{record.path}/weights"
    if damage is None:
        storage.remove(name)
    else:
        storage.write_bytes(name, damage)
    with pytest.raises(CheckpointDamaged, match=r"checkpoint .*_i02"):
        store.load(record)


@pytest.mark.parametrize("back_after", [1, 2])
def test_a_checkpoint_on_a_disk_that_is_away_is_waited_for(tmp_path: Path, back_after: int) -> None:
    mount, away = tmp_path / "mount", tmp_path / "away"
    record = commit(CheckpointStore(Storage(str(mount / "run"))))
    mount.rename(away)
    checks = count(1)

    def is_needed() -> bool:
        # It is called after each failed attempt.
        if next(checks) == back_after:
            away.rename(mount)
        return True

    store = CheckpointStore(Storage(str(mount / "run")).with_retry(60.0, is_needed))
    assert content(store.load(record)) == FILES
    assert next(checks) > back_after


def test_a_disk_that_stays_away_is_no_damage_of_the_checkpoint(tmp_path: Path) -> None:
    record = commit(CheckpointStore(Storage(str(tmp_path / "run"))))
    (tmp_path / "run").rename(tmp_path / "away")
    storage = Storage(str(tmp_path / "run")).with_retry(0.01)
    with pytest.raises(StorageError, match="may be away") as caught:
        CheckpointStore(storage).load(record)
    assert not isinstance(caught.value, CheckpointDamaged | CheckpointNotFound)


def test_a_checkpoint_that_is_gone_from_a_storage_that_is_there_is_not_waited_for(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "run")).with_retry(3600.0)
    record = commit(CheckpointStore(storage))
    storage.remove_tree(record.path)
    with pytest.raises(CheckpointNotFound):
        CheckpointStore(storage).load(record)


def test_what_the_manifest_does_not_list_is_ignored(store: CheckpointStore, storage: Storage) -> None:
    record = commit(store, {"x": b"1"})
    storage.write_bytes(f"{record.path}/.tmp-123", b"left over")
    assert content(store.load(record))["x"] == b"1"


def rewrite(storage: Storage, record: CheckpointRecord, change: Callable[[Any], None]) -> None:
    name = f"{record.path}/.manifest.json"
    manifest = json.loads(storage.read_bytes(name))
    change(manifest)
    storage.write_bytes(name, json.dumps(manifest).encode())


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", ""])
def test_a_manifest_cannot_lead_out_of_its_directory(
    store: CheckpointStore, storage: Storage, name: str
) -> None:
    record = commit(store)
    entry = {"size": 0, "crc32": "0"}
    rewrite(storage, record, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(StorageError, match="is outside the checkpoint"):
        store.load(record)


def test_another_format_is_refused_by_name(store: CheckpointStore, storage: Storage) -> None:
    record = commit(store)
    rewrite(storage, record, lambda manifest: manifest.update(format=99))
    with pytest.raises(StorageError, match=r"has format 99, and this dasktune reads format 1"):
        store.load(record)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"{torn"])
def test_a_damaged_manifest_is_no_manifest(store: CheckpointStore, storage: Storage, data: bytes) -> None:
    record = commit(store)
    storage.write_bytes(f"{record.path}/.manifest.json", data)
    with pytest.raises(StorageError, match=r"manifest of checkpoint .* is damaged"):
        store.load(record)
    # Neither would it be taken for ours when the directory is committed again.
    with pytest.raises(ConfigError, match=r"free of a file '.manifest.json'"):
        commit(store, store.reference(record), index=9)


def test_deleting_can_be_repeated(store: CheckpointStore, storage: Storage) -> None:
    record = commit(store)
    kept = commit(store, index=4)
    store.delete(record)
    store.delete(record)
    assert content(store.load(kept)) == FILES
    assert storage.names("trials", "a_00000") == ["checkpoint_000004_i02"]


def test_the_manifest_is_deleted_first(remote: Storage) -> None:
    store = CheckpointStore(remote)
    record = commit(store)

    def dies(operation: str, path: str) -> None:
        if operation == "remove" and not path.endswith("/.manifest.json"):
            raise OSError("killed here")

    FakeObjectStore.before = dies
    with pytest.raises(OSError, match="killed here"):
        store.delete(record)
    with pytest.raises(CheckpointNotFound):
        store.load(record)


def test_the_sweep_takes_only_what_dead_incarnations_left_half_written(
    store: CheckpointStore, storage: Storage
) -> None:
    done = commit(store, index=0, incarnation=1)
    for name in ("checkpoint_000001_i01", "checkpoint_000001_i02", "notes"):
        storage.write_bytes(f"trials/a_00000/{name}/weights", b"half")
    assert store.remove_stale("a_00000", incarnation=2, first_index=2) == [
        "trials/a_00000/checkpoint_000001_i01"
    ]
    names = storage.names("trials", "a_00000")
    assert names == [".incarnation-000002", "checkpoint_000000_i01", "checkpoint_000001_i02", "notes"]
    assert content(store.load(done)) == FILES
    assert store.remove_stale("unknown", incarnation=9, first_index=9) == []


def test_the_sweep_takes_whole_checkpoints_of_which_the_driver_never_knew(
    store: CheckpointStore, storage: Storage
) -> None:
    told = commit(store, index=4, incarnation=1)
    untold = commit(store, index=5, incarnation=1)
    own = commit(store, index=5, incarnation=2)
    assert store.remove_stale("a_00000", incarnation=2, first_index=5) == [untold.path]
    with pytest.raises(CheckpointNotFound):
        store.load(untold)
    for record in (told, own):
        assert content(store.load(record)) == FILES


def test_a_start_that_was_superseded_while_it_wrote_removes_its_checkpoint(
    store: CheckpointStore, storage: Storage
) -> None:
    def is_overtaken() -> None:
        # After the check of the fence the worker sleeps, and its successor looks and finds nothing.
        store.remove_stale("a_00000", incarnation=2, first_index=0)

    with pytest.raises(StorageError, match="start 2 has taken over"):
        commit(store, index=0, incarnation=1, fence=is_overtaken)
    assert storage.names("trials", "a_00000") == [".incarnation-000002"]
    commit(store, index=0, incarnation=2, fence=lambda: None)


def test_a_successor_that_starts_just_before_the_manifest_is_written_is_noticed(remote: Storage) -> None:
    def start_successor(operation: str, path: str) -> None:
        # The successor finds no manifest now, so nothing else would remove the checkpoint.
        if operation == "write" and path.endswith("/.manifest.json"):
            FakeObjectStore.objects["bucket/exp/trials/a_00000/.incarnation-000002"] = b"2\n"

    FakeObjectStore.before = start_successor
    with pytest.raises(StorageError, match="start 2 has taken over"):
        commit(CheckpointStore(remote), index=0, incarnation=1, fence=lambda: None)
    assert remote.names("trials", "a_00000") == [".incarnation-000002"]


def test_what_the_driver_has_written_is_not_fenced(store: CheckpointStore) -> None:
    store.remove_stale("a_00000", incarnation=2, first_index=0)
    assert content(store.load(commit(store, incarnation=1))) == FILES


def test_of_a_trial_that_has_ended_only_what_is_known_is_kept(
    store: CheckpointStore, storage: Storage
) -> None:
    known = [commit(store, index=at, incarnation=at) for at in (1, 2)]
    untold = commit(store, index=1, incarnation=2)
    storage.write_bytes("trials/a_00000/checkpoint_000009_i01/weights", b"half")
    removed = store.remove_all_but("a_00000", 2, {record.path for record in known})
    assert sorted(removed) == [untold.path, "trials/a_00000/checkpoint_000009_i01"]
    for record in known:
        assert content(store.load(record)) == FILES
    with pytest.raises(StorageError, match="start 3 has taken over"):
        commit(store, index=3, incarnation=2, fence=lambda: None)


def test_an_older_start_does_not_lower_the_fence(store: CheckpointStore) -> None:
    store.remove_stale("a_00000", incarnation=3, first_index=0)
    store.remove_stale("a_00000", incarnation=2, first_index=0)
    with pytest.raises(StorageError, match="start 3 has taken over"):
        commit(store, incarnation=2, fence=lambda: None)


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_starts_that_cross_do_not_lower_the_fence(storage: Storage, moment: int) -> None:
    """Start 2 hangs before one of its three requests, and start 3 takes over meanwhile."""
    store = CheckpointStore(storage)
    store.remove_stale("a_00000", incarnation=1, first_index=0)
    requests: list[str] = []

    class Slow(Storage):
        def request(self, name: str, *args: Any, **options: Any) -> Any:
            requests.append(name)
            if len(requests) == moment:
                store.remove_stale("a_00000", incarnation=3, first_index=0)
            return getattr(super(), name)(*args, **options)

        read_bytes = partialmethod(request, "read_bytes")
        write_bytes = partialmethod(request, "write_bytes")
        names = partialmethod(request, "names")
        remove = partialmethod(request, "remove")

    slow = CheckpointStore(Slow(storage.url, storage.storage_options))
    slow.remove_stale("a_00000", incarnation=2, first_index=0)
    assert len(requests) >= moment
    assert fence_of(storage, "a_00000") == 3
    with pytest.raises(StorageError, match="start 3 has taken over"):
        commit(store, incarnation=2, fence=lambda: None)


def test_a_start_needs_three_requests_for_its_fence(remote: Storage) -> None:
    CheckpointStore(remote).remove_stale("a_00000", incarnation=1, first_index=0)
    requests: list[str] = []
    FakeObjectStore.before = lambda operation, path: requests.append(operation)
    CheckpointStore(remote).remove_stale("a_00000", incarnation=2, first_index=0)
    assert requests == ["write", "list", "remove"]
    assert remote.names("trials", "a_00000") == [".incarnation-000002"]


def test_links_to_directories_and_pipes_are_refused(
    store: CheckpointStore, storage: Storage, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "loop").symlink_to(source)
    with pytest.raises(ConfigError, match="'loop'"):
        commit(store, source)
    (source / "loop").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(ConfigError, match="'pipe'"):
        commit(store, source)
    assert storage.find() == []


def test_what_is_missing_or_would_escape_is_refused(
    store: CheckpointStore, storage: Storage, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="an existing directory"):
        commit(store, tmp_path / "gone")
    with pytest.raises(ConfigError, match="relative names"):
        commit(store, {"../x": b""})
    with pytest.raises(ConfigError, match="trial_dir must be one name"):
        store.commit({}, trial_dir="a/b", index=0, incarnation=1, iteration=1, metrics={})
    with pytest.raises(ConfigError, match="directory with files"):
        commit(store, Checkpoint("memory://nothing/here"))


def test_a_durable_store_syncs_files_and_directories(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    record = commit(CheckpointStore(local, durable=True), {"a": b"1", "deep/b": b"2"})
    here = local.path(record.path)
    directories = {os.path.dirname(here), here, f"{here}/deep"}
    assert {f"{here}/a", f"{here}/deep/b"} | directories <= set(synced)
    synced.clear()
    commit(CheckpointStore(local), index=9)
    assert synced == []


def test_a_remote_upload_that_fails_is_no_checkpoint(remote: Storage) -> None:
    FakeObjectStore.failures = [None, OSError("reset")]
    with pytest.raises(OSError, match="reset"):
        commit(CheckpointStore(remote), {"x": b"1"})
    assert remote.find() == []
