"""Writes the journal: every event and action of an experiment, append-only.

The driver acknowledges a result to its worker only when it is durable in the journal. On a local
disk a commit is one ``write()``, which survives the death of the process; a power cut can lose the
last second. An object store cannot append, so there each commit that is due writes one object. A
thread writes it, so a slow store does not block the driver.

A failing storage is retried for its retry time; records wait in memory meanwhile.
"""

# What is durable when:
#
# - `append` only buffers: nothing is durable before `commit` returns a position that covers it.
# - Local disk: `commit` returns when the operating system has the bytes. They survive a crash of
#   the process, but not a power cut before the fsync, which follows within `PERIOD`. A crash in the
#   middle of a write leaves a torn last line; readers drop it. After a failed write the same bytes
#   are written at the same offset, so the retry overwrites the torn line.
# - Object store: an object is durable when its put has succeeded. `commit` returns the position of
#   the last such object. A crash before that loses buffered records; none was acknowledged.
# - One object is put at a time, and its content is fixed (`_sealed`) before the first attempt. A
#   put that failed may have been carried out, or may arrive later than its retry. Both write the
#   same name and content, and the first one wins: the retry then finds its own content there.
# - The thread of a put touches no field of the writer. The writer reads the outcome when the call
#   has ended. So all fields are used by one thread.
# - A driver that was killed may leave records that were never synced. The header of the next epoch
#   counts them and is durable at once, so they are synced before it is written. Otherwise a power
#   cut could keep the header and lose records that it counts.
# - A driver that was superseded may still append to its epoch. The header of the next epoch says
#   how many of its records count.

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol
from uuid import uuid4

from dasktune.errors import StorageError, check
from dasktune.storage.fs import filesystem, local_files
from dasktune.storage.fs.retry import RetrySchedule, warn_of_outage
from dasktune.storage.fs.storage import Storage
from dasktune.storage.fs.streams import Call
from dasktune.storage.journal.columnar import can_pack_columns, count_rows, lines_of, numbered
from dasktune.storage.journal.compression import SegmentCompressor, compressed
from dasktune.storage.journal.journal_reader import JournalReader
from dasktune.storage.journal.json_lines import encode
from dasktune.storage.journal.segments import (
    Header,
    JournalEnd,
    segment_name,
    segments,
)

logger = logging.getLogger(__name__)

#: Seconds that a record may wait for fsync on a disk, or for its object in a store.
PERIOD: Final = 1.0
#: Bytes in the buffer from which an object is put before `PERIOD` is over.
OBJECT_SIZE: Final = 256 * 1024
#: Longest time in seconds that one `commit` waits while the backlog is too large.
PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLimits:
    """Size limits of a :class:`JournalWriter`, in bytes.

    Parameters
    ----------
    segment_size : int, default=64 MiB
        Size at which a local segment is closed and the next one is started.
    backlog : int, default=64 MiB
        If more bytes than this wait for the storage, each `commit` waits up to `PAUSE` seconds. So
        a driver cannot record faster than the storage can write, and still handles interrupts.
    write_size : int, default=4 MiB
        Approximate size of one write: an object of that size is still read in one request.
    """

    segment_size: int = 64 * 1024**2
    backlog: int = 64 * 1024**2
    write_size: int = filesystem.SMALL


class JournalWriter:
    """Writes one epoch of the journal; used by one thread.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    epoch : int
        The result of :func:`next_epoch`.
    after : JournalEnd, optional
        ``end`` of the :class:`JournalReader` with which this driver has read the history. Records
        beyond it are no longer part of the history. By default the whole journal is read now.
    clock, sleep : callable
        Return the time in seconds, and wait for a number of seconds; by default those of
        :mod:`time`.
    limits : JournalLimits, optional
        Sizes of segments, writes and the backlog.
    compress : bool, default=False
        Whether to compress objects before they are put, and segments on a disk when they are
        complete, also those of earlier drivers.
    cuts : bool, default=False
        Whether epochs between `after` and this one may exist. Their records are then no longer part
        of the history: this is how a damaged journal is repaired. A driver must never do it.

    Raises
    ------
    StorageError
        If another driver has started this epoch, or one since `after`: it leads now.

    Examples
    --------
    >>> from dasktune.storage.journal.journal_reader import read_journal
    >>> from dasktune.storage.journal.segments import next_epoch
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
        sleep: Callable[[float], None] = time.sleep,
        limits: JournalLimits | None = None,
        compress: bool = False,
        cuts: bool = False,
    ) -> None:
        end = _read_to_end(storage) if after is None else after
        check(epoch > end.epoch, "epoch", f"later than {end.epoch}", epoch)
        if not cuts:
            _check_none_between(storage, end.epoch, epoch)
        self.storage = storage
        self.epoch = epoch
        self._clock, self._sleep = clock, sleep
        self._limits = limits or JournalLimits()
        self._retries = RetrySchedule(storage.retry_seconds)
        #: Consecutive results that may become one line.
        self._results: list[Mapping[str, Any]] = []
        self._buffer: list[bytes] = []
        self._size = 0
        #: The bytes being written, fixed before the first attempt, and the position at their end.
        self._sealed: tuple[bytes, int] | None = None
        #: Number of records of the whole journal that were appended, and that are durable.
        self._position = self._durable = end.position
        #: Position of the last record in a line of the buffer.
        self._numbered = end.position
        if storage.is_local and end.epoch:
            _sync_last_segment(storage, end.epoch)
        #: The identity of the journal, which a new journal gets here.
        self.identity = end.journal or uuid4().hex
        header = Header(epoch=epoch, after=end, journal=self.identity).encode()
        try:
            storage.claim(segment_name(epoch, 0), header, durable=True)
        except FileExistsError:
            raise StorageError(
                f"another driver has started epoch {epoch} of the journal of {storage}. "
                "Only one driver may lead an experiment: stop this one or the other one."
            ) from None
        self._segments: _Segments = (
            _LocalSegments(storage, epoch, len(header), clock, self._limits.segment_size, compress=compress)
            if storage.is_local
            else _ObjectSegments(storage, epoch, clock, compress=compress)
        )

    def append(self, record: Mapping[str, Any]) -> int:
        """Buffer a record and return its position; it is durable once `commit` returns as much.

        Parameters
        ----------
        record : mapping
            Any values; see :func:`dasktune.storage.journal.json_lines.encode`. It must not change
            any more: results may be encoded together, as late as in `commit`.

        Returns
        -------
        int
            Number of records of the whole journal, including this one.
        """
        if can_pack_columns(record):
            self._results.append(record)
        else:
            self._flush_results()
            self._add(encode(record))
        self._position += 1
        return self._position

    def _add(self, line: bytes) -> None:
        self._numbered += count_rows(line)
        line = numbered(line, self._numbered)
        self._buffer.append(line)
        self._size += len(line)

    def _flush_results(self) -> None:
        if self._results:
            for line in lines_of(self._results):
                self._add(line)
            self._results = []

    @property
    def failing_since(self) -> float | None:
        """When the storage started to fail, in seconds of the clock; None while it works."""
        return self._retries.since

    def commit(self, force: bool = False) -> int:
        """Make appended records durable, as far as that is cheap now. Call it often.

        While the storage fails, the write is retried at increasing intervals without an error.

        Parameters
        ----------
        force : bool, default=False
            Wait until all records are durable.

        Returns
        -------
        int
            Position up to which records are durable. On a working local disk, all are.

        Raises
        ------
        StorageError
            If the storage has failed for longer than its retry time, or another process writes to
            this epoch. Nothing is lost: it may be called again.
        """
        self._flush_results()
        if force:
            while self._seal(now=True):
                self._wait()
        elif self._size > self._limits.backlog and self._seal(now=True):
            self._wait()
        else:
            while self._seal() and self._write(0.0):
                pass
        return self._durable

    def _seal(self, now: bool = False) -> bool:
        """Fix the bytes of the next write, if one is due; return whether there is one."""
        due = (now and self._buffer) or self._segments.due(self._size)
        if self._sealed is None and due:
            count, position = len(self._buffer), self._position
            if self._size > self._limits.write_size:
                count, position = self._first_lines()
            content, self._buffer = b"".join(self._buffer[:count]), self._buffer[count:]
            self._size -= len(content)
            self._sealed = content, position
        return self._sealed is not None

    def _first_lines(self) -> tuple[int, int]:
        """Return the number of lines for one write, and the position at their end."""
        size, count, position = 0, 0, self._durable
        while size < self._limits.write_size:
            line = self._buffer[count]
            size, count, position = size + len(line), count + 1, position + count_rows(line)
        return count, position

    def _wait(self) -> None:
        """Write the sealed bytes, or wait a little before the next attempt."""
        rest = self._retries.wait(self._clock())
        if rest:
            self._sleep(min(rest, PAUSE))
        self._write(PAUSE)

    def _write(self, timeout: float) -> bool:
        """Write the sealed bytes, if that is due; return whether it was done within `timeout`."""
        if self._sealed is None or not self._retries.is_due(self._clock()):
            return False
        content, position = self._sealed
        try:
            written = self._segments.write(content, timeout)
        except FileExistsError as error:
            raise StorageError(
                f"another process writes to epoch {self.epoch} of the journal of {self.storage}. "
                "Only one driver may lead an experiment: stop this one or the other one."
            ) from error
        except Exception as error:  # each store's client has its own exceptions
            self._note_failure(error)
            return False
        if written:
            self._sealed, self._durable = None, position
            self._note_success()
        return written

    def _note_failure(self, error: Exception) -> None:
        first = self._retries.since is None
        text = self.storage.explain(error)
        if not self._retries.failed(self._clock()):
            message = f"cannot write the journal of {self.storage}: {text}"
            if self._retries.retry_seconds:
                message += (
                    f". It was retried for {self._retries.retry_seconds:g} s. All acknowledged "
                    "results are safe. Repair the storage, or set a longer "
                    "RunConfig(storage_patience=...), and resume with Tuner.restore()"
                )
            raise StorageError(message) from error
        if first:
            what = f"Writing the journal of {self.storage}"
            warn_of_outage(what, text, self._retries.retry_seconds)

    def _note_success(self) -> None:
        if self._retries.since is not None:
            seconds = self._clock() - self._retries.since
            logger.warning("the journal of %s works again after %.1f s", self.storage, seconds)
            self._retries.end()

    def close(self) -> int:
        """Make all records durable, close the journal and return the last position.

        Raises
        ------
        StorageError
            If the storage failed. Nothing is lost: it may be called again.
        """
        self.commit(force=True)
        try:
            self.storage.call_with_retry(self._segments.close, "Closing the journal")
        except OSError as error:
            raise StorageError(f"cannot close the journal of {self.storage}: {error!r}") from error
        return self._durable


def _check_none_between(storage: Storage, last: int, epoch: int) -> None:
    """Refuse to erase the epoch of a driver that has begun since this one read the journal.

    This driver may have been suspended between reading the journal and choosing its epoch. If
    another driver has begun an epoch in between, :func:`next_epoch` has counted it to choose
    `epoch`, so it is listed here. A driver that begins at the same moment chooses the same number,
    and only one of them can claim it.
    """
    between = [one for one in segments(storage) if last < one < epoch]
    if between:
        raise StorageError(
            f"another driver has started epoch {between[0]} of the journal of {storage} since this one "
            "read it. Only one driver may lead an experiment: stop one of them, and call "
            "Tuner.restore() again."
        )


def _sync_last_segment(storage: Storage, epoch: int) -> None:
    """Sync the last segment of an earlier driver, which has synced those before it."""
    # None is left if the directory is taken away just now, which the leader lock notices.
    paths = [storage.inside(segment_name(epoch, one)) for one in segments(storage).get(epoch, [])[-1:]]
    try:
        for path in paths:
            storage.call_with_retry(partial(local_files.sync_file, path), "Syncing the journal")
    except OSError as error:
        raise StorageError(f"cannot sync the journal of {storage}: {error!r}") from error


def _complete_segments(storage: Storage, epoch: int) -> list[str]:
    """Return the paths of the segments of earlier epochs, the oldest first."""
    return [
        storage.inside(segment_name(one, number))
        for one, numbers in segments(storage).items()
        if one < epoch
        for number in numbers
    ]


def _read_to_end(storage: Storage) -> JournalEnd:
    reader = JournalReader(storage)
    for _ in reader:
        pass
    return reader.end


class _Segments(Protocol):
    """Writes the bytes of an epoch to its segments."""

    def due(self, size: int) -> bool:
        """Whether `size` waiting bytes should be written now."""

    def write(self, data: bytes, timeout: float) -> bool:
        """Write `data`, whole lines, and return whether that was done within `timeout` seconds.

        If not, or if it raises, the writer calls it again with the same data.
        """

    def close(self) -> None:
        """Close the open file, if there is one."""


class _LocalSegments:
    """Appends to an open file; the operating system has the bytes when `write` returns."""

    def __init__(
        self,
        storage: Storage,
        epoch: int,
        size: int,
        clock: Callable[[], float],
        segment_size: int,
        *,
        compress: bool,
    ) -> None:
        self._storage, self._epoch, self._clock = storage, epoch, clock
        self._sequence, self._size = 0, size
        self._segment_size = segment_size
        self._descriptor = os.open(storage.path(segment_name(epoch, 0)), os.O_WRONLY)
        self._synced, self._synced_at = size, clock()
        self._compressor = SegmentCompressor(_complete_segments(storage, epoch)) if compress else None

    def due(self, size: int) -> bool:
        return size > 0 or self._must_sync()

    def _must_sync(self) -> bool:
        return self._synced < self._size and self._clock() - self._synced_at >= PERIOD

    def write(self, data: bytes, timeout: float) -> bool:
        # Sync first: if the sync came after the write and failed, the data would be written twice.
        if self._must_sync():
            self._sync()
        if self._size >= self._segment_size and data:
            self._rotate()
        done = 0
        while done < len(data):
            # At a fixed offset, not at the end: a retry overwrites the torn line of a full disk.
            done += os.pwrite(self._descriptor, data[done:], self._size + done)
        self._size += len(data)
        return True

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced, self._synced_at = self._size, self._clock()

    def _rotate(self) -> None:
        self._sync()
        path = self._storage.path(segment_name(self._epoch, self._sequence + 1))
        descriptor = local_files.open_new(path)
        old, self._descriptor = self._descriptor, descriptor
        self._size = self._synced = 0
        self._sequence += 1
        status = os.fstat(old)
        os.close(old)
        local_files.sync_directory(os.path.dirname(path))
        if self._compressor is not None:
            complete = self._storage.path(segment_name(self._epoch, self._sequence - 1))
            self._compressor.add(complete, status)

    def close(self) -> None:
        if self._compressor is not None:
            self._compressor.close()
        if self._descriptor >= 0:
            self._sync()
            os.close(self._descriptor)
            self._descriptor = -1


class _ObjectSegments:
    """Puts one object after another, each in a thread."""

    def __init__(self, storage: Storage, epoch: int, clock: Callable[[], float], *, compress: bool) -> None:
        self._compress = compress
        # Without retries here: the writer retries, and the driver works between two attempts.
        self._storage, self._epoch, self._clock = storage.with_retry(0.0), epoch, clock
        self._sequence = 0
        self._put_at = clock()
        self._put: Call[None] | None = None

    def due(self, size: int) -> bool:
        return size >= OBJECT_SIZE or (size > 0 and self._clock() - self._put_at >= PERIOD)

    def write(self, data: bytes, timeout: float) -> bool:
        if self._put is None:
            # An object whose put failed may exist: it is claimed again with the same content.
            name = segment_name(self._epoch, self._sequence + 1)
            self._put = Call(partial(self._claim, name, data))
        if not self._put.wait(timeout):
            return False
        put, self._put = self._put, None
        self._put_at = self._clock()
        put.result()
        self._sequence += 1
        return True

    def _claim(self, name: str, data: bytes) -> None:
        # Equal data give equal objects, so a retry recognises its own object.
        self._storage.claim(name, compressed(data) if self._compress else data)

    def close(self) -> None:
        """Do nothing: no file is open."""
