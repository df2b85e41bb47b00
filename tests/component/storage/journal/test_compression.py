from __future__ import annotations

import gzip
import io
import logging
import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from dasktune.errors import StorageError
from dasktune.results.journal_repair import diagnose_journal
from dasktune.storage.fs import local_files
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal import compression
from dasktune.storage.journal.journal_follower import JournalFollower
from dasktune.storage.journal.journal_reader import JournalReader, read_journal
from dasktune.storage.journal.journal_writer import JournalLimits, JournalWriter
from dasktune.storage.journal.segments import next_epoch, segment_name
from dasktune.storage.leader.directory_watch import DirectoryWatch

SMALL = JournalLimits(segment_size=5_000)


def fill(writer: JournalWriter, first: int, last: int) -> None:
    for number in range(first, last):
        writer.append({"event": "TimePassed", "n": number, "time": 0.25, "text": "the same in each record"})
        writer.commit()


def numbers(storage: Storage, start: int = 0) -> list[int]:
    return [record["n"] for record in read_journal(storage, start=start)]


def write(storage: Storage, first: int, last: int, *, compress: bool = False) -> None:
    writer = JournalWriter(storage, next_epoch(storage), limits=SMALL, compress=compress)
    fill(writer, first, last)
    writer.close()


def paths(storage: Storage) -> list[Path]:
    """Return the paths of the segments; a compressor may be writing another file."""
    names = (name for name in storage.names("journal") if not name.startswith(local_files.TEMPORARY))
    return [Path(storage.path("journal", name)) for name in sorted(names)]


def is_compressed(path: Path) -> bool:
    return path.read_bytes()[:2] == b"\x1f\x8b"


def gzip_or_plain(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if is_compressed(path) else path.read_bytes()


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[str]:
    """The paths of the files that are replaced, in order."""
    paths: SimpleQueue[str] = SimpleQueue()
    replace = os.replace

    def note(source: str, target: str) -> None:
        replace(source, target)
        paths.put(target)

    monkeypatch.setattr(os, "replace", note)
    return paths


def test_complete_segments_are_compressed_and_read_as_before(local: Storage, replaced: SimpleQueue[str]):
    write(local, 0, 500)
    plain = [path.read_bytes() for path in paths(local)]
    assert len(plain) > 3
    writer = JournalWriter(local, 2, limits=SMALL, compress=True)
    fill(writer, 500, 900)
    *complete, newest = paths(local)
    # Segments are compressed in their order, so the others are done.
    while replaced.get(timeout=60) != str(complete[-1]):
        pass
    # A short last segment of an earlier epoch would not become smaller.
    large = [path for path in complete if len(gzip_or_plain(path)) >= 1_024]
    assert len(large) >= len(complete) - 1
    assert [is_compressed(path) for path in large] == [True] * len(large)
    assert not is_compressed(newest)
    assert [gzip_or_plain(path) for path in complete[: len(plain)]] == plain
    # The driver continues to write, and so does its successor.
    fill(writer, 900, 910)
    writer.close()
    write(local, 910, 920)
    assert numbers(local) == list(range(920))
    assert numbers(local, start=777) == list(range(777, 920))
    assert sum(path.stat().st_size for path in complete[: len(plain)]) < sum(map(len, plain)) / 3


def test_objects_are_compressed_before_they_are_put(remote: Storage):
    writer = JournalWriter(remote, 1, compress=True)
    for first in range(0, 300, 100):
        for number in range(first, first + 100):
            writer.append({"n": number, "text": "the same in each record"})
        writer.commit(force=True)
    writer.close()
    write(remote, 300, 310)
    contents = [remote.read_bytes("journal", name) for name in sorted(remote.names("journal"))]
    assert [content[:2] == b"\x1f\x8b" for content in contents] == [False, True, True, True, False, False]
    assert numbers(remote) == list(range(310))
    assert [record["n"] for record in JournalFollower(remote).poll()[1]] == list(range(310))


def test_equal_objects_are_equal_when_compressed():
    content = b'{"event":"TimePassed"}\n' * 100
    assert compression.compressed(content) == compression.compressed(content)
    assert compression.compressed(b"{}\n") == b"{}\n"
    noise = os.urandom(5_000)
    assert compression.compressed(noise) == noise


@pytest.mark.parametrize("crash", ["write", "fsync", "read back", "replace"])
def test_an_error_at_any_point_leaves_the_segment_and_no_other_file(
    crash: str, local: Storage, monkeypatch: pytest.MonkeyPatch
):
    write(local, 0, 500)
    segment = paths(local)[1]
    before = segment.read_bytes()

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    where = {
        "write": (gzip.GzipFile, "write"),
        "fsync": (os, "fsync"),
        "read back": (gzip, "open"),
        "replace": (os, "replace"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*where[crash], fail)
        with pytest.raises(OSError, match="No space"):
            compression.compress_file(str(segment))
    assert segment.read_bytes() == before
    assert not [name for name in os.listdir(segment.parent) if name.startswith(local_files.TEMPORARY)]
    assert numbers(local) == list(range(500))
    assert compression.compress_file(str(segment))
    assert not compression.compress_file(str(segment))
    assert numbers(local) == list(range(500))


def test_a_compressor_that_dies_leaves_one_readable_segment(local: Storage):
    write(local, 0, 500)
    segment = paths(local)[1]
    # It died after it had written a part of the new file, or all of it.
    for part in (b"", b"\x1f\x8b\x08", gzip.compress(segment.read_bytes())):
        segment.with_name(f"{local_files.TEMPORARY}0123").write_bytes(part)
        assert numbers(local) == list(range(500))
        assert [record["n"] for record in JournalFollower(local).poll()[1]] == list(range(500))


def test_what_reads_back_differently_does_not_replace_the_segment(
    local: Storage, monkeypatch: pytest.MonkeyPatch
):
    write(local, 0, 500)
    segment = paths(local)[1]
    before = segment.read_bytes()
    monkeypatch.setattr(gzip, "open", lambda path: io.BytesIO(b"something else"))
    with pytest.raises(StorageError, match="reads back differently"):
        compression.compress_file(str(segment))
    assert segment.read_bytes() == before


def test_an_error_is_logged_once_and_the_driver_continues(
    local: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    write(local, 0, 500)
    tried = threading.Semaphore(0)

    def fail(*arguments: Any) -> Any:
        tried.release()
        raise OSError(28, "No space left on device")

    # What was written is read back with it, and nothing else.
    monkeypatch.setattr(gzip, "open", fail)
    with caplog.at_level(logging.WARNING):
        writer = JournalWriter(local, 2, limits=SMALL, compress=True)
        assert all(tried.acquire(timeout=60) for _ in range(3))
        fill(writer, 500, 510)
        writer.close()
    assert caplog.text.count("stay uncompressed") == 1
    assert numbers(local) == list(range(510))


def test_no_other_file_than_the_one_that_was_complete_is_replaced(
    local: Storage, monkeypatch: pytest.MonkeyPatch
):
    write(local, 0, 500)
    first, segment, *_ = paths(local)
    before, status = segment.read_bytes(), segment.stat()
    # The file of a new experiment has the same name.
    segment.unlink()
    segment.write_bytes(before)
    os.utime(segment, ns=(status.st_mtime_ns, status.st_mtime_ns + 1))
    assert not compression.compress_file(str(segment), status=status)
    assert segment.read_bytes() == before
    # A superseded driver appends to its segment, before it is opened and later.
    status = first.stat()
    with first.open("ab") as stream:
        stream.write(b"{}\n")
    assert not compression.compress_file(str(first), status=status)
    read_back = gzip.open

    def append(path: str) -> Any:
        with first.open("ab") as stream:
            stream.write(b"{}\n")
        return read_back(path)

    with monkeypatch.context() as patch:
        patch.setattr(gzip, "open", append)
        assert not compression.compress_file(str(first))
    assert not is_compressed(first)
    assert len(os.listdir(first.parent)) == len(paths(local))


def test_closing_stops_within_a_segment(local: Storage):
    write(local, 0, 500)
    segment = paths(local)[1]
    before = segment.read_bytes()
    assert not compression.compress_file(str(segment), lambda: True)
    assert segment.read_bytes() == before
    answers = iter([False, True, True])
    assert not compression.compress_file(str(segment), lambda: next(answers))
    assert segment.read_bytes() == before
    assert len(os.listdir(segment.parent)) == len(paths(local))


def test_a_reader_that_follows_continues_in_a_segment_that_was_compressed_meanwhile(local: Storage):
    writer = JournalWriter(local, 1, limits=SMALL)
    fill(writer, 0, 30)
    follower = JournalFollower(local)
    seen = [record["n"] for record in follower.poll()[1]]
    assert seen == list(range(30))
    fill(writer, 30, 400)
    for path in paths(local)[:-1]:
        assert compression.compress_file(str(path))
    changed, records = follower.poll()
    seen += [record["n"] for record in records]
    assert not changed
    assert seen == list(range(400))
    fill(writer, 400, 410)
    assert [record["n"] for record in follower.poll()[1]] == list(range(400, 410))
    writer.close()
    fresh = JournalFollower(local)
    records = fresh.poll()[1]
    next(records)
    assert fresh.share is not None
    assert fresh.share < 0.1
    assert len(list(records)) == 409
    assert fresh.share == pytest.approx(1, abs=0.01)


def test_a_damaged_compressed_segment_is_named_and_costs_what_is_behind_it(local: Storage):
    write(local, 0, 500)
    segment = paths(local)[1]
    compression.compress_file(str(segment))
    whole = segment.read_bytes()
    for damaged in (whole[:-5], whole[:100], whole[:60] + b"\0" * 20 + whole[80:]):
        segment.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"compressed segment journal/000001-000001.jsonl is damaged"):
            numbers(local)
        found = diagnose_journal(local)
        assert "000001-000001.jsonl is damaged" in found.damages[0]
        assert found.kept < 500
    segment.write_bytes(whole)
    assert diagnose_journal(local).damages == []
    assert diagnose_journal(local).total == 500


@pytest.mark.parametrize("forged", [b'{"n":1}\n' * 10_000, b" " * 1_000_000], ids=["lines", "one line"])
def test_a_forged_segment_cannot_fill_the_memory(forged: bytes):
    whole = b'{"n":0}\n' * 100
    lines = compression.lines("forged", gzip.compress(whole + forged), most=10_000)
    for line in whole.splitlines(keepends=True):
        assert next(lines) == line
    with pytest.raises(StorageError, match="forged has more than 10,000 bytes of lines"):
        list(lines)


def test_a_compressed_header_is_read(local: Storage):
    write(local, 0, 100)
    write(local, 100, 200)
    for path in paths(local):
        compression.compress_file(str(path))
    assert [header.epoch for header, _ in JournalReader(local).chain()] == [1, 2]
    write(local, 200, 210)
    assert numbers(local) == list(range(210))
    name = segment_name(1, 0)
    Path(local.path(name)).write_bytes(b"\x1f\x8b" + b"\0" * 50)
    with pytest.raises(StorageError, match="000001-000000"):
        numbers(local)


def test_a_segment_that_was_compressed_is_no_loss_of_the_directory(local: Storage):
    writer = JournalWriter(local, 1, limits=SMALL)
    watch = DirectoryWatch(local)
    fill(writer, 0, 10)
    assert watch.find_change() == ""
    fill(writer, 10, 400)
    for path in paths(local)[:-1]:
        compression.compress_file(str(path))
    assert watch.find_change() == ""
    # The newest segment is not compressed, so what replaces it is a loss.
    newest = paths(local)[-1]
    newest.rename(newest.with_name("kept"))
    newest.write_bytes(b"")
    assert f"was renamed to {newest.with_name('kept')}" in watch.find_change()
    watch.close()
    writer.close()
