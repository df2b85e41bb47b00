"""Compressed segments of the journal: the same lines as a gzip file under the same name.

A segment is complete when its writer has begun the next one. From then on its lines never change,
and it may be replaced by a compressed file. Readers recognise such a file by its first two bytes,
with which no line of JSON begins. Its positions and sizes, as headers state them, are those of the
lines, compressed or not.
"""

# The orders that are possible while a segment is replaced on a disk:
#
# - The compressed file is written beside the segment under a temporary name, which readers ignore,
#   synced, read back and compared, and only then renamed over the segment. So at each moment the
#   name has one whole file. A crash before the rename leaves the segment as it was and a temporary
#   file, which the next driver deletes; a crash after it leaves the compressed one. A power cut
#   leaves one of the two, because the new file was synced before its rename.
# - There is never a second name for the same lines. With one, a reader that lists the directory
#   while a name is added and the other one removed could miss both.
# - A reader that has opened the segment before the rename reads the old file to its end. A reader
#   that follows the journal continues in the new file at the position of its lines.
# - A superseded driver may still hold the last segment of its epoch open. If it appends before the
#   rename, the segment stays as it is. What it appends after it goes to the old file and is lost.
#   These records are not part of the history: the header of the next epoch was written before, and
#   it states where that epoch ends.
# - A driver may be frozen, and a user may put a new experiment into the directory meanwhile, whose
#   files have the same names. So the driver notes the identity of each file, its size and its time
#   while it leads, and replaces no other file. It could only do so if it froze between the last
#   comparison and the rename.
# - Two drivers may compress the same segment, if one was frozen. Both write the same lines.
#
# An object store has no rename, and needs none: an object is compressed before it is put, and
# never changes.

from __future__ import annotations

import gzip
import io
import logging
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO, Final, cast
from uuid import uuid4

from dasktune.errors import StorageError
from dasktune.storage.fs import local_files

logger = logging.getLogger(__name__)

_MAGIC: Final = b"\x1f\x8b"
#: Beyond this level of zlib, writing takes several times as long and saves hardly any more bytes.
_LEVEL: Final = 3
#: Bytes that are compressed in one step. The thread can be stopped between two.
_STEP: Final = 1024**2
#: Bytes of lines of the largest compressed segment. A forged file may claim far more than it has.
_MOST: Final = 1024**3
#: Bytes of the smallest segment that is compressed.
_LEAST: Final = 1024


def compressed(content: bytes) -> bytes:
    r"""Return the content of a segment, compressed if that makes it smaller.

    Equal contents give equal results.

    Parameters
    ----------
    content : bytes
        Whole lines.

    Examples
    --------
    >>> small = compressed(b'{"event":"TimePassed"}\n' * 100)
    >>> len(small) < 100, len(list(lines("a", small)))
    (True, 100)
    """
    if not _LEAST <= len(content) <= _MOST:
        return content
    packed = gzip.compress(content, _LEVEL, mtime=0)
    return packed if len(packed) < len(content) else content


def lines(name: str, content: bytes, *, most: int = _MOST) -> Iterator[bytes]:
    """Return the lines of a segment, one at a time: together they may take many times the memory.

    Parameters
    ----------
    name : str
        The segment, for messages.
    content : bytes
        The whole file, compressed or not.
    most : int, default=1 GiB
        Bytes of lines that a compressed file may have.

    Raises
    ------
    StorageError
        While iterating: if the file is damaged, or has more than `most` bytes of lines.
    """
    stream = io.BytesIO(content)
    return _checked_lines(name, stream, most) if content[:2] == _MAGIC else iter(stream)


def beginning(content: bytes) -> bytes:
    """Return at least the first line of a segment, up to as many bytes as are given.

    Parameters
    ----------
    content : bytes
        The first bytes of the file, more than its first line has.

    Raises
    ------
    zlib.error
        If they are damaged.
    """
    if content[:2] != _MAGIC:
        return content
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(content, len(content))


def open_lines(stream: BinaryIO) -> BinaryIO:
    """Return a stream of the lines of a segment.

    Parameters
    ----------
    stream : binary stream
        The file at its beginning, which can seek.
    """
    begin = stream.read(len(_MAGIC))
    stream.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=stream, mode="rb")) if begin == _MAGIC else stream


def share_of_lines(content: bytes) -> float:
    """Return the bytes of a segment's file relative to those of its lines, at most 1.

    Parameters
    ----------
    content : bytes
        The whole file. If it is compressed, its last four bytes state the size of the lines.
    """
    size = int.from_bytes(content[-4:], "little") if content[:2] == _MAGIC else 0
    return min(1.0, len(content) / size) if size else 1.0


def _checked_lines(name: str, stream: BinaryIO, most: int) -> Iterator[bytes]:
    size = 0
    try:
        with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
            while line := unpacked.readline(most + 1 - size):
                size += len(line)
                if size > most:
                    raise StorageError(f"{name} has more than {most:,} bytes of lines")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"the compressed segment {name} is damaged: {error}") from error


class SegmentCompressor:
    """Replaces complete segments on a disk by compressed ones, in a thread, one after the other.

    An error leaves the segment as it is, is logged once, and has no other effect.

    Parameters
    ----------
    paths : iterable of str
        Segments that are complete already, in the order in which they are to be compressed.

    Raises
    ------
    OSError
        If one of them is missing.
    """

    # The driver's thread calls `add` and `close`, the thread `_run`. A file is appended before the
    # condition is notified, so the thread never misses it. `close` waits for the thread, which ends
    # after the current step and removes its temporary file.

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._files = deque((path, os.stat(path, follow_symlinks=False)) for path in paths)
        self._changed = threading.Condition()
        self._is_closed = self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="dasktune-compress", daemon=True)
        self._thread.start()

    def add(self, path: str, status: os.stat_result) -> None:
        """Compress one more segment.

        Parameters
        ----------
        path : str
            A segment to which nothing is appended any more.
        status : os.stat_result
            Its status after the last write.
        """
        with self._changed:
            self._files.append((path, status))
            self._changed.notify()

    def close(self) -> None:
        """Stop, and wait for the thread. Segments that are left stay as they are."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._files and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                path, status = self._files.popleft()
            try:
                compress_file(path, lambda: self._is_closed, status)
            except FileNotFoundError:  # the directory is taken away just now
                logger.debug("cannot compress %s", path, exc_info=True)
            except Exception as error:
                self._warn(path, error)

    def _warn(self, path: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s and perhaps others stay uncompressed: %r. No record is lost", path, error)


def compress_file(
    path: str, is_stopped: Callable[[], bool] = lambda: False, status: os.stat_result | None = None
) -> bool:
    """Replace a segment by a compressed one; return whether it was replaced.

    Parameters
    ----------
    path : str
        A segment on a disk, to which nothing is appended any more.
    is_stopped : callable, optional
        Returns whether to stop. The segment then stays as it is.
    status : os.stat_result, optional
        The status of the segment when it was complete. If it is another file now, or was changed,
        it stays as it is.

    Raises
    ------
    OSError, StorageError
        If it cannot be read or replaced. It stays as it is.
    """
    with local_files.open_plain(path) as source:
        opened = os.fstat(source.fileno())
        size = opened.st_size
        if status is not None and _identity(opened) != _identity(status):
            return False
        if not _LEAST <= size <= _MOST or source.read(len(_MAGIC)) == _MAGIC:
            return False
        source.seek(0)
        temporary = os.path.join(os.path.dirname(path), f"{local_files.TEMPORARY}{uuid4().hex}")
        try:
            expected = _write_compressed(source, temporary, is_stopped)
            if expected is None or os.stat(temporary).st_size >= size:
                return False
            if _checksum(temporary, is_stopped) != expected:
                if is_stopped():
                    return False
                raise StorageError(f"what was written to compress {path} reads back differently")
            if _identity(os.stat(path, follow_symlinks=False)) != _identity(opened):
                return False
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
    local_files.sync_directory(os.path.dirname(path))
    return True


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _write_compressed(source: io.FileIO, path: str, is_stopped: Callable[[], bool]) -> tuple[int, int] | None:
    """Write a compressed file; return size and checksum of the lines, or None if it was stopped."""
    size = checksum = 0
    with open(local_files.open_new(path), "wb") as target:
        with gzip.GzipFile("", "wb", _LEVEL, target, mtime=0) as packed:
            while step := source.read(_STEP):
                if is_stopped():
                    return None
                packed.write(step)
                size, checksum = size + len(step), zlib.crc32(step, checksum)
        target.flush()
        os.fsync(target.fileno())
    return size, checksum


def _checksum(path: str, is_stopped: Callable[[], bool]) -> tuple[int, int]:
    size = checksum = 0
    with gzip.open(path) as unpacked:
        while (step := unpacked.read(_STEP)) and not is_stopped():
            size, checksum = size + len(step), zlib.crc32(step, checksum)
    return size, checksum
