"""Writing the journal: every event and action of an experiment, append-only.

A result is acknowledged to its worker only when it is in the journal, so :meth:`commit` is the
heartbeat of an experiment. On a local disk it is one ``write()``, which survives the death of the
process; a power cut can cost the last second. An object store cannot append, so there a commit is
one sealed object, and they are few.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from dasktune.errors import StorageError, check
from dasktune.storage import local_files
from dasktune.storage.folding import count_rows, is_foldable, lines_of
from dasktune.storage.journal_format import (
    Header,
    JournalEnd,
    next_epoch,
    segment_name,
)
from dasktune.storage.journal_reader import JournalReader, read_journal
from dasktune.storage.json_lines import encode
from dasktune.storage.location import Storage

__all__ = ["JournalEnd", "JournalReader", "JournalWriter", "next_epoch", "read_journal"]

#: Bytes after which a local segment is closed and the next one begun.
SEGMENT_SIZE: Final = 64 * 1024**2
#: Seconds that a record may wait for fsync on a disk, or for its object in a store.
PERIOD: Final = 1.0
#: Bytes that are put into an object store before the period is over.
OBJECT_SIZE: Final = 256 * 1024


class JournalWriter:
    """Writes one epoch of the journal; to be used by one thread.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    epoch : int
        Of :func:`next_epoch`.
    after : JournalEnd, optional
        ``end`` of the :class:`JournalReader` that this driver read the history with. What stands
        beyond it is no longer part of the history. If not given, the journal is read through now.
    clock : callable, default=time.monotonic
        Gives seconds.

    Raises
    ------
    StorageError
        If another driver has begun this epoch: it leads now.

    Examples
    --------
    >>> storage = Storage("memory://doctest-journal")
    >>> writer = JournalWriter(storage, next_epoch(storage))
    >>> writer.append({"event": "TrialAdded", "trial_id": "a"})
    1
    >>> writer.close()
    1
    >>> list(read_journal(storage))
    [{'event': 'TrialAdded', 'trial_id': 'a'}]
    """

    def __init__(
        self,
        storage: Storage,
        epoch: int,
        *,
        after: JournalEnd | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        end = _read_to_end(storage) if after is None else after
        check(epoch > end.epoch, "epoch", f"later than {end.epoch}", epoch)
        self.storage = storage
        self.epoch = epoch
        #: Results that may become one line.
        self._run: list[Mapping[str, Any]] = []
        self._buffer: list[bytes] = []
        self._size = 0
        #: Records of the whole journal that were appended, and that are durable.
        self._position = self._durable = end.position
        header = Header(epoch=epoch, after=end).encode()
        try:
            storage.claim(segment_name(epoch, 0), header, durable=True)
        except FileExistsError:
            raise StorageError(
                f"another driver has begun epoch {epoch} of the journal of {storage}. "
                "Only one may lead an experiment: stop the other one, or leave it the lead."
            ) from None
        self._segments: _Segments = (
            _LocalSegments(storage, epoch, len(header), clock)
            if storage.is_local
            else _ObjectSegments(storage, epoch, clock)
        )

    def append(self, record: Mapping[str, Any]) -> int:
        """Buffer a record and return its position: it is durable once `commit` returns as much.

        Parameters
        ----------
        record : mapping
            Any values; see :func:`dasktune.storage.json_lines.encode`. A result may be read as late
            as by `commit`, together with those that follow it.

        Returns
        -------
        int
            Number of records of the whole journal, this one included.
        """
        if is_foldable(record):
            self._run.append(record)
        else:
            self._end_run()
            self._add(encode(record))
        self._position += 1
        return self._position

    def _add(self, line: bytes) -> None:
        self._buffer.append(line)
        self._size += len(line)

    def _end_run(self) -> None:
        if self._run:
            for line in lines_of(self._run):
                self._add(line)
            self._run = []

    def commit(self, force: bool = False) -> int:
        """Make what was appended durable, as far as that is cheap now; to be called often.

        Parameters
        ----------
        force : bool, default=False
            Do it now even on an object store that got an object less than a second ago.

        Returns
        -------
        int
            Position up to which records are durable; on a local disk always the last one.

        Raises
        ------
        StorageError
            If the storage failed. Nothing is lost: call it again.
        """
        self._end_run()
        if not (force or self._segments.due(self._size)):
            return self._durable
        if self._buffer:
            self._buffer = [b"".join(self._buffer)]
        try:
            taken = self._segments.write(self._buffer[0] if self._buffer else b"")
        except FileExistsError as error:
            raise StorageError(
                f"somebody else writes to epoch {self.epoch} of the journal of {self.storage}"
            ) from error
        except Exception as error:
            raise StorageError(f"cannot write the journal of {self.storage}: {error!r}") from error
        return self._taken(taken)

    def _taken(self, size: int) -> int:
        """Forget the first `size` bytes of the buffer, which are durable now."""
        rest = b"".join(self._buffer)[size:]
        self._buffer = [rest] if rest else []
        self._size = len(rest)
        self._durable = self._position - sum(map(count_rows, rest.splitlines()))
        return self._durable

    def close(self) -> int:
        """Make everything durable, and return the last position. Nothing can be appended after.

        Raises
        ------
        StorageError
            If the storage failed. Nothing is lost: call it again.
        """
        while self._buffer or self._run:
            self.commit(force=True)
        try:
            self._segments.close()
        except OSError as error:
            raise StorageError(f"cannot close the journal of {self.storage}: {error!r}") from error
        return self._durable


def _read_to_end(storage: Storage) -> JournalEnd:
    reader = JournalReader(storage)
    for _ in reader:
        pass
    return reader.end


class _Segments(Protocol):
    """Where an epoch's bytes go."""

    def due(self, size: int) -> bool:
        """Whether `size` waiting bytes should be written now."""

    def write(self, data: bytes) -> int:
        """Write `data`, whole lines, and return how many bytes of its beginning are durable."""

    def close(self) -> None:
        """Let go of what is open."""


class _LocalSegments:
    """Appends to an open file; the operating system has the bytes when `write` returns."""

    def __init__(self, storage: Storage, epoch: int, size: int, clock: Callable[[], float]) -> None:
        self._storage, self._epoch, self._clock = storage, epoch, clock
        self._sequence, self._size = 0, size
        self._descriptor = os.open(storage.path(segment_name(epoch, 0)), os.O_WRONLY)
        self._synced, self._synced_at = size, clock()

    def due(self, size: int) -> bool:
        return size > 0 or self._must_sync()

    def _must_sync(self) -> bool:
        return self._synced < self._size and self._clock() - self._synced_at >= PERIOD

    def write(self, data: bytes) -> int:
        if self._size >= SEGMENT_SIZE and data:
            self._rotate()
        done = 0
        while done < len(data):
            # At its place, not at the end: after a full disk the retry covers the torn line.
            done += os.pwrite(self._descriptor, data[done:], self._size + done)
        self._size += len(data)
        if self._must_sync():
            self._sync()
        return len(data)

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced, self._synced_at = self._size, self._clock()

    def _rotate(self) -> None:
        self._sync()
        path = self._storage.path(segment_name(self._epoch, self._sequence + 1))
        descriptor = local_files.open_new(path)
        os.close(self._descriptor)
        self._descriptor, self._size, self._synced = descriptor, 0, 0
        self._sequence += 1
        local_files.sync_directory(os.path.dirname(path))

    def close(self) -> None:
        if self._descriptor >= 0:
            self._sync()
            os.close(self._descriptor)
            self._descriptor = -1


class _ObjectSegments:
    """Puts one object after the other."""

    def __init__(self, storage: Storage, epoch: int, clock: Callable[[], float]) -> None:
        self._storage, self._epoch, self._clock = storage, epoch, clock
        self._sequence = 0
        self._put_at = clock()
        self._sealed = b""

    def due(self, size: int) -> bool:
        return size >= OBJECT_SIZE or (size > 0 and self._clock() - self._put_at >= PERIOD)

    def write(self, data: bytes) -> int:
        # An object whose put failed may be there all the same: it is tried again as it was, and
        # what came since goes into the next one.
        self._sealed = self._sealed or data
        if self._sealed:
            name = segment_name(self._epoch, self._sequence + 1)
            self._storage.claim(name, self._sealed)
            self._sequence += 1
        self._put_at = self._clock()
        taken, self._sealed = len(self._sealed), b""
        return taken

    def close(self) -> None:
        """Nothing is open."""
