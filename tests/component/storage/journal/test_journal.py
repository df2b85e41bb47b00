from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pytest
from fake_object_store import FakeObjectStore

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal import journal_writer
from dasktune.storage.journal.journal_reader import JournalReader, check_journal_exists, read_journal
from dasktune.storage.journal.journal_writer import JournalLimits, JournalWriter
from dasktune.storage.journal.segments import JournalEnd, next_epoch, segment_name

T = TypeVar("T")


def until(condition: Callable[[], T]) -> T:
    """Look until a condition holds, and return what it gave."""
    for _ in range(10_000):
        if value := condition():
            return value
        time.sleep(0.001)
    raise AssertionError("it has not come about")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def write(
    storage: Storage, *numbers: int, after: JournalEnd | None = None, cuts: bool = False
) -> JournalWriter:
    writer = JournalWriter(storage, next_epoch(storage), after=after, cuts=cuts)
    for number in numbers:
        writer.append({"n": number})
    writer.close()
    return writer


def numbers(storage: Storage, start: int = 0) -> list[int]:
    return [record["n"] for record in read_journal(storage, start=start)]


def test_epochs_make_one_history(storage: Storage) -> None:
    assert numbers(storage) == []
    assert next_epoch(storage) == 1
    write(storage, 0, 1)
    write(storage)
    write(storage, 2, 3)
    assert next_epoch(storage) == 4
    assert numbers(storage) == [0, 1, 2, 3]
    assert numbers(storage, start=3) == [3]


def test_positions_count_over_the_whole_journal(storage: Storage) -> None:
    write(storage, 0, 1)
    writer = JournalWriter(storage, 2)
    assert writer.append({"n": 2}) == 3
    assert writer.commit(force=True) == 3
    reader = JournalReader(storage)
    assert len(list(reader)) == len(list(reader)) == 3
    assert (reader.end.epoch, reader.end.records, reader.end.position) == (2, 1, 3)
    assert writer.close() == writer.close() == 3


def test_only_one_driver_begins_an_epoch(storage: Storage) -> None:
    first = JournalWriter(storage, 1)
    with pytest.raises(StorageError, match="another driver has started epoch 1"):
        JournalWriter(storage, 1, after=JournalEnd())
    with pytest.raises(ConfigError, match="epoch must be later than 1"):
        JournalWriter(storage, 1)
    first.close()


def test_a_frozen_driver_that_wakes_up_cannot_write_history(storage: Storage) -> None:
    frozen = JournalWriter(storage, 1)
    frozen.append({"n": 0})
    frozen.commit(force=True)
    reader = JournalReader(storage)
    assert list(reader) == [{"n": 0}]
    # It wrote between the reading and the beginning of the next epoch, and after that.
    frozen.append({"n": -1})
    frozen.commit(force=True)
    successor = JournalWriter(storage, next_epoch(storage), after=reader.end)
    successor.append({"n": 1})
    frozen.append({"n": -2})
    frozen.close()
    successor.close()
    write(storage, 2)
    assert numbers(storage) == [0, 1, 2]


def test_an_epoch_that_is_unread_is_no_history(storage: Storage) -> None:
    write(storage, 0)
    reader = JournalReader(storage)
    list(reader)
    write(storage, -1, after=reader.end)
    write(storage, 1, after=reader.end, cuts=True)
    assert numbers(storage) == [0, 1]


class Simultaneous(Storage):
    """Files of it are read four at a time, or not at all."""

    together = threading.Barrier(4)

    def open_read(self, *parts: str) -> BinaryIO:
        self.together.wait(60)
        return super().open_read(*parts)

    def read_bytes(self, *parts: str) -> bytes:
        self.together.wait(60)
        return super().read_bytes(*parts)


def test_the_epochs_of_many_drivers_are_read_several_at_a_time(remote: Storage) -> None:
    drivers = 8
    for number in range(drivers):
        write(remote, number)
    # Eight headers, then a header and a line of each driver: four at a time must be under way.
    assert numbers(Simultaneous(remote.url, remote.storage_options)) == list(range(drivers))


def test_what_is_read_ahead_is_read_once(remote: Storage) -> None:
    for number in range(5):
        write(remote, number)
    requests: Counter[tuple[str, str]] = Counter()
    FakeObjectStore.before = lambda kind, path: requests.update([(kind, path[-len("000001-000000.jsonl") :])])
    assert numbers(remote) == [0, 1, 2, 3, 4]
    lines = {("read", f"00000{epoch}-000001.jsonl"): 1 for epoch in range(1, 6)}
    # The chain of the epochs is known before their lines are read.
    headers = {("read", f"00000{epoch}-000000.jsonl"): 2 for epoch in range(1, 6)}
    assert {one: count for one, count in requests.items() if one[0] == "read"} == lines | headers


def test_large_segments_of_a_store_are_not_read_together(remote: Storage) -> None:
    JournalWriter(remote, 1).close()
    lengths = [400, 400, 400, 5_000, 400, 400, 400, 400, 5_000, 5_000]
    for number, length in enumerate(lengths, 1):
        line = b'{"n":%d,"text":"%s","$n":%d}\n' % (number, b"x" * length, number)
        remote.write_bytes(segment_name(1, number), line)
    sizes = remote.sizes("journal")
    since_the_last: list[str] = []
    FakeObjectStore.before = lambda kind, path: (
        since_the_last.append(path.rpartition("/")[2]) if kind == "read" else None
    )
    read, together = [], []
    for record in JournalReader(remote, batch_bytes=1_000):
        read.append(record["n"])
        if since_the_last:
            together.append(sum(sizes[name] for name in since_the_last))
            since_the_last.clear()
    assert read == list(range(1, len(lengths) + 1))
    # Two at a time, or a large one alone.
    assert max(size for size in together if size < 5_000) in range(800, 1_001)
    assert sum(5_000 < size < 5_100 for size in together) == 3


def test_an_epoch_outside_of_the_history_may_be_unreadable(remote: Storage) -> None:
    write(remote, 0)
    reader = JournalReader(remote)
    list(reader)
    write(remote, -1, after=reader.end)
    write(remote, 1, after=reader.end, cuts=True)

    def vanish(kind: str, path: str) -> None:
        if kind != "list" and "/000002-" in path:
            raise FileNotFoundError(path)

    FakeObjectStore.before = vanish
    assert numbers(remote) == [0, 1]


def test_a_store_that_fails_while_reading_ahead_raises(remote: Storage) -> None:
    write(remote, 0)
    write(remote, 1)

    def fail(kind: str, path: str) -> None:
        if kind == "read" and path.endswith("000002-000001.jsonl"):
            raise ConnectionResetError(path)

    FakeObjectStore.before = fail
    with pytest.raises(StorageError, match="ConnectionResetError"):
        numbers(remote)


def test_a_reader_knows_whether_the_journal_has_grown_since_another_one(storage: Storage) -> None:
    assert JournalReader(storage).ends_at(JournalEnd())
    write(storage, 0)
    assert not JournalReader(storage).ends_at(JournalEnd())
    writer = JournalWriter(storage, 2)
    writer.append({"n": 1})
    writer.commit(force=True)
    reader = JournalReader(storage)
    list(reader)
    assert JournalReader(storage).ends_at(reader.end)
    writer.append({"n": 2})
    writer.close()
    assert not JournalReader(storage).ends_at(reader.end)
    list(reader)
    assert JournalReader(storage).ends_at(reader.end)
    write(storage)
    assert not JournalReader(storage).ends_at(reader.end)


def test_a_driver_that_slept_cannot_erase_the_epoch_of_its_successor(storage: Storage) -> None:
    write(storage, 0)
    reader = JournalReader(storage)
    list(reader)
    # While this driver sleeps, another one reads the same history and leads.
    write(storage, 1)
    with pytest.raises(StorageError, match=r"another driver has started epoch 2 .* since this one read it"):
        JournalWriter(storage, next_epoch(storage), after=reader.end)
    assert numbers(storage) == [0, 1]


@pytest.mark.parametrize("cut", [1, 5])
def test_a_torn_last_line_is_dropped(storage: Storage, cut: int) -> None:
    write(storage, 0, 1)
    name = segment_name(1, 0 if storage.is_local else 1)
    storage.write_bytes(name, storage.read_bytes(name)[:-cut])
    assert numbers(storage) == [0]
    write(storage, 1)
    assert numbers(storage) == [0, 1]


def test_a_torn_line_in_the_middle_raises(storage: Storage) -> None:
    write(storage, 0)
    storage.create(segment_name(1, 1 if storage.is_local else 2), b'{"n":1}\n')
    name = segment_name(1, 0 if storage.is_local else 1)
    storage.write_bytes(name, storage.read_bytes(name)[:-1])
    with pytest.raises(StorageError, match=rf"line \d of {name} .* is torn"):
        numbers(storage)


@pytest.mark.parametrize(("line", "words"), [(b"{broken}", "strict JSON"), (b"3", "is not a record")])
def test_a_malformed_line_raises_with_its_place(local: Storage, line: bytes, words: str) -> None:
    write(local, 0, 1, 2)
    name = segment_name(1, 0)
    local.write_bytes(name, local.read_bytes(name).replace(b'{"n":1,"$n":2}', line))
    with pytest.raises(StorageError, match=f"line 3 of {name} .*{words}"):
        numbers(local)


def test_another_format_is_refused_by_name(storage: Storage) -> None:
    write(storage, 0)
    name = segment_name(1, 0)
    storage.write_bytes(name, storage.read_bytes(name).replace(b'"format":1', b'"format":7'))
    with pytest.raises(StorageError, match="has format 7, and this dasktune reads format 1"):
        numbers(storage)


def test_a_history_that_was_changed_or_lost_raises(local: Storage) -> None:
    write(local, 0, 1)
    write(local, 2)
    name = segment_name(1, 0)
    content = local.read_bytes(name)
    local.write_bytes(name, content.replace(b'{"n":1,"$n":2}\n', b""))
    with pytest.raises(StorageError, match=r"epoch 1 .* has changed since its successor read it"):
        numbers(local)
    local.remove(name)
    with pytest.raises(StorageError, match="lacks its epoch 1"):
        numbers(local)


def test_a_lost_segment_raises(local: Storage) -> None:
    write(local, 0)
    local.create(segment_name(1, 2), b"")
    with pytest.raises(StorageError, match=r"lacks a segment: \[0, 2\]"):
        numbers(local)
    local.create(segment_name(2, 1), b"")
    with pytest.raises(StorageError, match=r"lacks journal/000002-000000.jsonl"):
        numbers(local)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"$journal", b"journal", "is not a header"),
        (b'"format":1,"epoch":2', b'"format":1,"epoch":3', "says that it is of epoch 3"),
        (b'"after":{"epoch":1', b'"after":{"epoch":2', "comes after a later epoch"),
    ],
)
def test_a_header_that_cannot_be_raises(local: Storage, old: bytes, new: bytes, words: str) -> None:
    write(local, 0)
    write(local, 1)
    name = segment_name(2, 0)
    content = local.read_bytes(name)
    assert old in content
    local.write_bytes(name, content.replace(old, new))
    with pytest.raises(StorageError, match=words):
        numbers(local)


def test_other_files_do_not_disturb(storage: Storage) -> None:
    write(storage, 0)
    storage.write_bytes("journal/.tmp-1", b"x")
    storage.write_bytes("journal/notes.txt", b"x")
    assert numbers(storage) == [0]


def test_a_local_commit_is_one_write_and_is_synced_within_a_second(
    local: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(local, 1, clock=clock)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert [writer.append({"n": 0}), writer.append({"n": 1}), writer.commit()] == [1, 2, 2]
    assert numbers(local) == [0, 1]
    assert not synced
    clock.now = 1.0
    assert writer.commit() == 2
    assert len(synced) == 1
    assert writer.commit() == 2
    assert len(synced) == 1
    writer.close()
    assert len(synced) == 2


def test_local_segments_rotate(local: Storage) -> None:
    writer = JournalWriter(local, 1, limits=JournalLimits(segment_size=200))
    for number in range(60):
        writer.append({"n": number})
        writer.commit()
    writer.close()
    assert len(local.names("journal")) > 2
    assert numbers(local) == list(range(60))


def test_a_full_disk_loses_nothing(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(local, 1)
    writer.append({"n": 0})
    pwrite = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 3:
            return pwrite(descriptor, data[:3], offset)
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="cannot write the journal"):
            writer.commit()
    assert numbers(local) == []
    assert writer.append({"n": 1}) == 2
    assert writer.commit() == 2
    assert numbers(local) == [0, 1]

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StorageError, match="cannot close the journal"):
            writer.close()
    assert writer.close() == 2


def test_an_object_store_gets_few_objects(remote: Storage, clock: Clock) -> None:
    writer = JournalWriter(remote, 1, clock=clock)
    assert writer.append({"n": 0}) == 1
    assert writer.commit() == 0
    clock.now = 1.0
    assert until(lambda: writer.commit()) == 1
    writer.append({"n": 1})
    assert writer.commit() == 1
    assert writer.commit(force=True) == 2
    writer.append({"n": 2, "big": "x" * journal_writer.OBJECT_SIZE})
    assert until(lambda: writer.commit() == 3)
    assert writer.commit(force=True) == writer.close() == 3
    assert len(remote.names("journal")) == 4
    assert numbers(remote) == [0, 1, 2]


@pytest.mark.parametrize("carried_out", [False, True])
def test_an_object_whose_put_failed_is_tried_again_as_it_was(remote: Storage, carried_out: bool) -> None:
    writer = JournalWriter(remote, 1)
    FakeObjectStore.failures, FakeObjectStore.answer_lost = [OSError("reset")], carried_out
    writer.append({"n": 0})
    with pytest.raises(StorageError, match="reset"):
        writer.commit(force=True)
    writer.append({"n": 1})
    assert writer.commit(force=True) == writer.close() == 2
    # What came later stands in an object of its own.
    assert len(remote.names("journal")) == 3
    assert numbers(remote) == [0, 1]


def test_a_rival_in_the_same_epoch_raises(remote: Storage) -> None:
    writer = JournalWriter(remote, 1)
    remote.create(segment_name(1, 1), b'{"n":-1}\n')
    writer.append({"n": 0})
    with pytest.raises(StorageError, match="another process writes to epoch 1"):
        writer.commit(force=True)


def test_strange_values_come_back(storage: Storage) -> None:
    writer = JournalWriter(storage, 1)
    record: dict[str, Any] = {"loss": float("inf"), "$k": [1, {"a": None}], "text": "\n\r\u2028"}
    writer.append(record)
    writer.close()
    assert list(read_journal(storage)) == [record]


def change_line(storage: Storage, name: str, number: int, *lines: bytes | None) -> None:
    """Replace a line by `lines`; None stands for the line itself."""
    content = storage.read_bytes(name).splitlines(keepends=True)
    content[number - 1 : number] = [content[number - 1] if one is None else one for one in lines]
    storage.write_bytes(name, b"".join(content))


def test_a_line_that_is_missing_raises_with_its_place(storage: Storage) -> None:
    write(storage, 0, 1, 2, 3)
    name, first = (segment_name(1, 0), 2) if storage.is_local else (segment_name(1, 1), 1)
    change_line(storage, name, first + 1)
    words = rf"line {first + 1} of {name} .* 1 records are missing before it\. `dasktune repair DIR"
    with pytest.raises(StorageError, match=words):
        numbers(storage)


@pytest.mark.parametrize("at", [0, 2], ids=["first", "last"])
def test_a_line_that_stands_twice_raises_with_its_place(local: Storage, at: int) -> None:
    write(local, 0, 1, 2)
    change_line(local, segment_name(1, 0), at + 2, None, None)
    with pytest.raises(StorageError, match=f"line {at + 3} of .* it repeats record {at + 1}"):
        numbers(local)
    with pytest.raises(StorageError, match="it repeats record"):
        write(local, 3)


def report(seq: int, **more: Any) -> dict[str, Any]:
    return {"event": "ResultReported", "trial_id": "a", "incarnation": 1, "seq": seq, **more}


def test_packed_lines_are_numbered_too(local: Storage) -> None:
    writer = JournalWriter(local, 1)
    for first in (1, 5):
        for seq in range(first, first + 4):
            writer.append(report(seq, metrics={"loss": 1 / seq}))
        writer.commit()
    writer.close()
    name = segment_name(1, 0)
    assert local.read_bytes(name).count(b"\n") == 3
    assert [one["seq"] for one in read_journal(local)] == list(range(1, 9))
    change_line(local, name, 2)
    with pytest.raises(StorageError, match=r"line 2 of .* 4 records are missing before it"):
        list(read_journal(local))


def test_files_of_two_journals_are_not_mixed(local: Storage, tmp_path: Path) -> None:
    write(local, 0)
    other = Storage(str(tmp_path / "other"))
    write(other, 0)
    write(other, 1)
    local.write_bytes(segment_name(2, 0), other.read_bytes(segment_name(2, 0)))
    with pytest.raises(StorageError, match=r"belongs to another journal than journal/000001-000000.jsonl"):
        numbers(local)


def test_what_stands_behind_a_cut_is_not_looked_at(local: Storage) -> None:
    write(local, 0, 1)
    reader = JournalReader(local)
    list(reader)
    name = segment_name(1, 0)
    local.write_bytes(name, local.read_bytes(name) + b"{torn\n{torn")
    local.write_bytes(segment_name(1, 2), b"{torn")
    with pytest.raises(StorageError, match="lacks a segment"):
        numbers(local)
    write(local, 2, after=reader.end)
    assert numbers(local) == [0, 1, 2]


def test_an_experiment_without_its_journal_is_named(storage: Storage) -> None:
    check_journal_exists(storage, may_be_new=True)
    with pytest.raises(StorageError, match="has lost its journal: no file journal/"):
        check_journal_exists(storage)
    storage.write_bytes("trials/a/params.json", b"{}")
    with pytest.raises(StorageError, match=r"though it has trials/\. The results stand only"):
        check_journal_exists(storage, may_be_new=True)
    write(storage, 0)
    check_journal_exists(storage)


def test_records_of_a_killed_driver_are_synced_before_the_next_epoch_counts_them(
    local: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = JournalWriter(local, 1, clock=clock, limits=JournalLimits(segment_size=100))
    for number in range(3):
        killed.append({"n": number, "text": "x" * 100})
        killed.commit()
    last = local.path("journal", local.names("journal")[-1])
    assert last == local.path(segment_name(1, 3))
    synced: list[str] = []

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        assert not os.path.exists(local.path(segment_name(2, 0))) or last in synced

    monkeypatch.setattr(os, "fsync", sync)
    JournalWriter(local, 2, clock=clock).close()
    assert synced[0] == last


def test_a_journal_that_cannot_be_synced_is_not_continued(
    local: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    JournalWriter(local, 1, clock=clock).close()

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageError, match="cannot sync the journal of"):
        JournalWriter(local, 2, clock=clock)
    assert next_epoch(local) == 2


def test_a_segment_is_synced_before_the_next_one_begins(
    local: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(local, 1, clock=clock, limits=JournalLimits(segment_size=1000))
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    writer.append({"big": "x" * 1000})
    writer.commit()
    assert synced == []
    writer.append({"n": 1})
    writer.commit()
    assert synced == [local.path(segment_name(1, 0)), local.path("journal")]
    writer.close()
