from __future__ import annotations

import logging
from typing import Any

import pytest

from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import JournalReader
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.journal.snapshots import Snapshot, Snapshots

STATE: dict[str, Any] = {"prefix": "ab", "trials": [{"id": 1, "loss": float("inf")}, {"id": 2}]}


@pytest.fixture
def storage(tmp_path: Any) -> Storage:
    return Storage(str(tmp_path))


def grow(storage: Storage, epoch: int, records: int) -> None:
    journal = JournalWriter(storage, epoch)
    for number in range(records):
        journal.append({"event": "TimePassed", "time": number})
    journal.close()


def snapshot(storage: Storage, epoch: int, position: int) -> Snapshot:
    return Snapshot(epoch, position, STATE, JournalReader(storage).chain()[0][0].journal)


def positions(storage: Storage) -> list[tuple[int, int]]:
    return [(one.epoch, one.position) for one in Snapshots(storage).newest_first()]


def test_a_snapshot_comes_back_as_it_was(storage: Storage):
    grow(storage, 1, 5)
    Snapshots(storage).write(snapshot(storage, 1, 5))
    assert list(Snapshots(storage).newest_first()) == [snapshot(storage, 1, 5)]


def test_the_newest_two_are_kept_and_read_newest_first(storage: Storage):
    grow(storage, 1, 9)
    for position in (3, 5, 9):
        Snapshots(storage).write(snapshot(storage, 1, position))
    assert positions(storage) == [(1, 9), (1, 5)]
    assert len(storage.names("snapshots")) == 2


def test_what_a_driver_wrote_after_its_loss_is_left_out(storage: Storage):
    grow(storage, 1, 4)
    # Its successor has read four records; those that follow are no part of the history.
    grow(storage, 2, 3)
    for epoch, position in ((1, 6), (2, 6)):
        Snapshots(storage).write(snapshot(storage, epoch, position))
    assert positions(storage) == [(2, 6)]
    Snapshots(storage).write(snapshot(storage, 3, 7))
    assert positions(storage) == [(2, 6)]


def test_without_a_journal_there_is_none(storage: Storage):
    Snapshots(storage).write(Snapshot(1, 0, STATE))
    assert positions(storage) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not enough values"),
        (b"{", "not a line of strict JSON"),
        (b"[]\n", "is not a snapshot"),
        (b'{"format":7}\n', "has format 7, and this dasktune reads format 1"),
        (b'{"format":1,"epoch":1,"position":5,"trials":2,"state":{}}\n', "is incomplete"),
        (b'{"format":1,"epoch":1,"position":4,"trials":0,"state":{}}\n', "another position"),
        (b'{"format":1,"epoch":1,"position":5,"trials":0,"state":3}\n', "is not a snapshot"),
    ],
)
def test_a_damaged_one_is_left_out_with_a_warning(
    storage: Storage, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
):
    grow(storage, 1, 5)
    Snapshots(storage).write(snapshot(storage, 1, 3))
    storage.write_bytes("snapshots/000001-000000005.jsonl", content)
    storage.write_bytes("snapshots/notes.txt", b"left alone")
    with caplog.at_level(logging.WARNING):
        assert positions(storage) == [(1, 3)]
    assert reason in caplog.text


def test_one_of_another_journal_is_left_out(storage: Storage, caplog: pytest.LogCaptureFixture):
    grow(storage, 1, 5)
    Snapshots(storage).write(snapshot(storage, 1, 3))
    # A new journal takes the place of the old one, and has as many records.
    storage.remove_tree("journal")
    grow(storage, 1, 5)
    assert positions(storage) == []
    assert "snapshots/000001-000000003.jsonl belongs to another journal" in caplog.text
