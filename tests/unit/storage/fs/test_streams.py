from __future__ import annotations

import threading
from typing import Any

import fsspec
import pytest
from fake_object_store import FakeObjectStore

from dasktune.errors import StorageError
from dasktune.storage.fs import filesystem, streams
from dasktune.storage.fs.retry import is_transient
from dasktune.storage.fs.storage import Storage
from dasktune.storage.fs.streams import Call, ObjectReader, ObjectWriter, within

LARGE = bytes(range(256)) * 400


PART = 1000


def writer(storage: Storage, name: str) -> ObjectWriter:
    """Return a writer with small parts."""
    fs, path = storage.fs, storage.path(name)
    return ObjectWriter(fs, path, lambda data, *, size: fs.pipe_file(path, data), part_size=PART)


def upload(storage: Storage, name: str, data: bytes, step: int = 300) -> None:
    with writer(storage, name) as stream:
        for start in range(0, len(data), step):
            stream.write(data[start : start + step])


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 50_000])
def test_objects_of_any_size_come_back(remote: Storage, size: int) -> None:
    upload(remote, "x", LARGE[:size])
    with remote.open_read("x") as stream:
        assert stream.read() == LARGE[:size]


def test_an_object_is_fetched_part_by_part() -> None:
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, end: int) -> bytes:
        fetched.append((start, end))
        return LARGE[start:end]

    stream = ObjectReader(fetch, 2500, part_size=PART)
    assert stream.readable()
    assert stream.read(10) == LARGE[:10]
    assert fetched == [(0, 1000)]
    assert stream.read() == LARGE[10:2500]
    assert fetched == [(0, 1000), (1000, 2000), (2000, 2500)]


def test_an_object_that_became_shorter_has_an_end() -> None:
    stream = ObjectReader(lambda start, end: LARGE[start : min(end, 1000)], 5000, part_size=PART)
    assert stream.read() == LARGE[:1000]


def test_a_part_is_read_again_where_it_failed(remote: Storage) -> None:
    size = 2 * streams.PART + 1
    remote.write_bytes("x", bytes(size))
    tries: list[int] = []

    def twice(attempt: Any) -> Any:
        tries.append(1)
        attempt()
        return attempt()

    with filesystem.open_read(remote.fs, remote.path("x"), twice) as stream:
        assert stream.read() == bytes(size)
    assert len(tries) == 4  # once for its size


@pytest.mark.parametrize("size", [10, 5000])
def test_what_ends_with_an_exception_does_not_become_visible(remote: Storage, size: int) -> None:

    def half() -> None:
        with writer(remote, "x") as stream:
            stream.write(LARGE[:size])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert remote.find() == []


class Parts:
    """A stream of fsspec that hangs in a write until it is released."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.hang_at = -1
        self.release = threading.Event()
        self.ended = threading.Event()
        self.completed = False

    def open(self, path: str, mode: str, block_size: int) -> Parts:
        assert (mode, block_size) == ("wb", PART)
        return self

    def write(self, data: bytes) -> None:
        if len(self.written) == self.hang_at:
            self.release.wait(30)
        self.written.append(data)

    def close(self) -> None:
        self.completed = not self.ended.is_set()
        self.ended.set()


def no_put(data: bytes, *, size: int) -> None:
    raise AssertionError("it is sent in parts")


def test_a_large_object_is_written_in_parts() -> None:
    parts = Parts()
    with ObjectWriter(parts, "x", no_put, part_size=PART) as stream:
        assert stream.writable()
        for start in range(0, 3100, 100):
            assert stream.write(LARGE[start : start + 100]) == 100
    assert [len(part) for part in parts.written] == [1000, 1000, 1000, 100]
    assert b"".join(parts.written) == LARGE[:3100]
    assert parts.completed


def test_an_upload_that_is_over_for_the_store_may_be_repeated(remote: Storage) -> None:
    # The store has completed it, and refuses that the client completes it again.
    FakeObjectStore.failures, FakeObjectStore.answer_lost = [FileNotFoundError("NoSuchUpload")], True
    with pytest.raises(StorageError, match="has no upload of bucket/exp/x any more") as told:
        upload(remote, "x", LARGE[:2500])
    assert is_transient(told.value)
    upload(remote, "x", LARGE[:2500])
    assert remote.read_bytes("x") == LARGE[:2500]


@pytest.mark.parametrize("failing", ["write", "close"])
def test_an_upload_that_fails_at_its_end_is_discarded(failing: str) -> None:
    discarded: list[str] = []

    class Failing(Parts, streams.AbstractBufferedFile):
        def write(self, data: bytes) -> None:
            super().write(data)
            if failing == "write" and len(self.written) == 3:
                raise OSError("broken")

        def close(self) -> None:
            if failing == "close":
                raise OSError("broken")

        def discard(self) -> None:
            discarded.append(failing)

    def write() -> None:
        with ObjectWriter(Failing(), "x", no_put, part_size=PART) as stream:
            for start in range(0, 2500, 100):
                stream.write(LARGE[start : start + 100])

    with pytest.raises(OSError, match="broken"):
        write()
    assert discarded == [failing]


def test_a_write_that_hangs_is_left_behind_and_thrown_away_when_it_ends() -> None:
    parts = Parts()
    parts.hang_at = 1

    def patience(size: int) -> float:
        # What comes before the write that hangs may take its time.
        return 0.05 if parts.written else 30.0

    def write() -> None:
        with ObjectWriter(parts, "x", no_put, part_size=PART, timeout=patience) as stream:
            stream.write(LARGE[:1500])
            stream.write(LARGE[:1500])

    with pytest.raises(StorageError, match=r"no answer within 0.05 s to write x"):
        write()
    assert not parts.ended.is_set()
    parts.release.set()
    assert parts.ended.wait(30)


def test_a_stream_of_fsspec_that_is_thrown_away_never_completes() -> None:
    fs = fsspec.filesystem("memory", skip_instance_cache=True)

    class Buffered(streams.AbstractBufferedFile):
        discarded = False

        def _upload_chunk(self, final: bool = False) -> bool:
            raise AssertionError("it must not be sent")

        def discard(self) -> None:
            self.discarded = True

    stream = Buffered(fs, "x", "wb")
    stream.write(b"half")
    streams.discard(stream)
    stream.close()
    del stream


def test_a_call_gives_what_the_function_gave() -> None:
    assert within(30.0, lambda: 3, "count") == 3
    with pytest.raises(ZeroDivisionError):
        within(30.0, lambda: 1 // 0, "divide")
    call = Call(lambda: 4)
    assert call.wait(30.0)
    assert call.result() == 4


def test_a_call_that_takes_too_long_is_left_behind() -> None:
    release, late = threading.Event(), threading.Event()
    with pytest.raises(StorageError, match=r"no answer within 0.01 s to count"):
        within(0.01, lambda: release.wait(30), "count", late=late.set)
    assert not late.is_set()
    release.set()
    assert late.wait(30)


class Plain(fsspec.AbstractFileSystem):
    """A filesystem that is neither local nor asynchronous."""

    release = threading.Event()

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.value = value

    def cat_file(self, path: str, **_: Any) -> bytes:
        if path == "slow":
            self.release.wait(30)
        return self.value


def test_a_store_that_knows_no_deadlines_gets_one() -> None:
    fs = Plain()
    filesystem.write_bytes(fs, "x", b"1")
    assert filesystem.read_bytes(fs, "x") == b"1"
    with pytest.raises(StorageError, match=r"no answer within 0.01 s to cat_file of slow"):
        filesystem.read_bytes(fs, "slow", timeout=lambda size: 0.01)
    fs.release.set()


def test_deadlines_grow_with_what_is_moved() -> None:
    assert streams.deadline(0) == 30.0
    assert streams.deadline(10_000_000) == 130.0


class Sizeless(FakeObjectStore):
    """Does not know the sizes of its objects."""

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": None}

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **_: Any) -> Any:
        return "its own stream"


def test_an_object_of_unknown_size_is_left_to_its_filesystem() -> None:
    assert filesystem.open_read(Sizeless(), "bucket/x") == "its own stream"
