"""Writing the journal: every event and action of an experiment, append-only.

A result is acknowledged to its worker only when it is in the journal, so :meth:`commit` is the
heartbeat of an experiment. On a local disk it is one ``write()``, which survives the death of the
process; a power cut can cost the last second. An object store cannot append, so there a commit is
one sealed object, and they are few. They are put by a thread, so that a slow store holds up nobody.

A storage that fails is tried again, for as long as it has patience; what is recorded meanwhile
waits in memory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from dasktune.errors import StorageError, check
from dasktune.storage import filesystem, local_files
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
from dasktune.storage.retry import Outage, warn_of_outage
from dasktune.storage.streams import Call

__all__ = ["JournalEnd", "JournalReader", "JournalWriter", "next_epoch", "read_journal"]

logger = logging.getLogger(__name__)

#: Bytes after which a local segment is closed and the next one begun.
SEGMENT_SIZE: Final = 64 * 1024**2
#: Seconds that a record may wait for fsync on a disk, or for its object in a store.
PERIOD: Final = 1.0
#: Bytes that are put into an object store before the period is over.
OBJECT_SIZE: Final = 256 * 1024
#: Bytes that wait for a storage with which a commit waits, too, and for how many seconds: whoever
#: records more than can be stored is held up, and can be interrupted all the same.
BACKLOG: Final = 64 * 1024**2
PAUSE: Final = 0.5
#: Bytes of one write, roughly: an object of that size is still read in one request.
LARGEST: Final = filesystem.SMALL


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
    clock, sleep : callable
        Give seconds, and wait for some; by default those of :mod:`time`.

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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        end = _read_to_end(storage) if after is None else after
        check(epoch > end.epoch, "epoch", f"later than {end.epoch}", epoch)
        self.storage = storage
        self.epoch = epoch
        self._clock, self._sleep = clock, sleep
        self._outage = Outage(storage.patience)
        #: Results that may become one line.
        self._run: list[Mapping[str, Any]] = []
        self._buffer: list[bytes] = []
        self._size = 0
        #: What is being written, as it was when that was first tried, and the position at its end.
        self._sealed: tuple[bytes, int] | None = None
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

    @property
    def failing_since(self) -> float | None:
        """When the storage began to fail, in seconds of the clock; None while it works."""
        return self._outage.since

    def commit(self, force: bool = False) -> int:
        """Make what was appended durable, as far as that is cheap now; to be called often.

        While the storage fails, it is tried again now and then, and nothing is raised.

        Parameters
        ----------
        force : bool, default=False
            Wait until everything is durable.

        Returns
        -------
        int
            Position up to which records are durable; on a local disk that works always the last.

        Raises
        ------
        StorageError
            If the storage has been failing for longer than its patience, or somebody else writes to
            this epoch. Nothing is lost: call it again.
        """
        self._end_run()
        if force:
            while self._seal(now=True):
                self._wait()
        elif self._size > BACKLOG and self._seal(now=True):
            self._wait()
        else:
            while self._seal() and self._write(0.0):
                pass
        return self._durable

    def _seal(self, now: bool = False) -> bool:
        """Settle what is written next, if it is time to; return whether there is something."""
        due = (now and self._buffer) or self._segments.due(self._size)
        if self._sealed is None and due:
            count, position = len(self._buffer), self._position
            if self._size > LARGEST:
                count, position = self._part()
            content, self._buffer = b"".join(self._buffer[:count]), self._buffer[count:]
            self._size -= len(content)
            self._sealed = content, position
        return self._sealed is not None

    def _part(self) -> tuple[int, int]:
        """Return how many lines are enough for one write, and the position at their end."""
        size, count, position = 0, 0, self._durable
        while size < LARGEST:
            line = self._buffer[count]
            size, count, position = size + len(line), count + 1, position + count_rows(line)
        return count, position

    def _wait(self) -> None:
        """Write what is sealed, or wait for that a little while."""
        rest = self._outage.wait(self._clock())
        if rest:
            self._sleep(min(rest, PAUSE))
        self._write(PAUSE)

    def _write(self, patience: float) -> bool:
        """Write what is sealed, if it is time to; return whether it was done in so many seconds."""
        if self._sealed is None or not self._outage.is_due(self._clock()):
            return False
        content, position = self._sealed
        try:
            written = self._segments.write(content, patience)
        except FileExistsError as error:
            raise StorageError(
                f"somebody else writes to epoch {self.epoch} of the journal of {self.storage}"
            ) from error
        except Exception as error:  # each store's client has its own exceptions
            self._note_failure(error)
            return False
        if written:
            self._sealed, self._durable = None, position
            self._note_success()
        return written

    def _note_failure(self, error: Exception) -> None:
        first = self._outage.since is None
        text = self.storage.explain(error)
        if not self._outage.failed(self._clock()):
            message = f"cannot write the journal of {self.storage}: {text}"
            if self._outage.patience:
                message += (
                    f". It has been tried for {self._outage.patience:g} s. What was acknowledged "
                    "is safe. Mend the storage, or be more patient with it by "
                    "RunConfig(storage_patience=...), and go on from there"
                )
            raise StorageError(message) from error
        if first:
            what = f"Writing the journal of {self.storage}"
            warn_of_outage(what, text, self._outage.patience)

    def _note_success(self) -> None:
        if self._outage.since is not None:
            seconds = self._clock() - self._outage.since
            logger.warning("the journal of %s is written again after %.1f s", self.storage, seconds)
            self._outage.end()

    def close(self) -> int:
        """Make everything durable, and return the last position. Nothing can be appended after.

        Raises
        ------
        StorageError
            If the storage failed. Nothing is lost: call it again.
        """
        self.commit(force=True)
        try:
            self.storage.keep_trying(self._segments.close, "Closing the journal")
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

    def write(self, data: bytes, patience: float) -> bool:
        """Write `data`, whole lines, and return whether that was done within so many seconds.

        If not, or if it raises, it is called again with the same data.
        """

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

    def write(self, data: bytes, patience: float) -> bool:
        # First, or what is written would be written again if this fails.
        if self._must_sync():
            self._sync()
        if self._size >= SEGMENT_SIZE and data:
            self._rotate()
        done = 0
        while done < len(data):
            # At its place, not at the end: after a full disk the retry covers the torn line.
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
        os.close(old)
        local_files.sync_directory(os.path.dirname(path))

    def close(self) -> None:
        if self._descriptor >= 0:
            self._sync()
            os.close(self._descriptor)
            self._descriptor = -1


class _ObjectSegments:
    """Puts one object after the other, each in a thread."""

    def __init__(self, storage: Storage, epoch: int, clock: Callable[[], float]) -> None:
        # The writer itself tries again: it has other things to do between two attempts.
        self._storage, self._epoch, self._clock = storage.patient(0.0), epoch, clock
        self._sequence = 0
        self._put_at = clock()
        self._put: Call[None] | None = None

    def due(self, size: int) -> bool:
        return size >= OBJECT_SIZE or (size > 0 and self._clock() - self._put_at >= PERIOD)

    def write(self, data: bytes, patience: float) -> bool:
        if self._put is None:
            # An object whose put failed may be there all the same: it is claimed again as it was.
            name = segment_name(self._epoch, self._sequence + 1)
            self._put = Call(partial(self._storage.claim, name, data))
        if not self._put.wait(patience):
            return False
        put, self._put = self._put, None
        self._put_at = self._clock()
        put.result()
        self._sequence += 1
        return True

    def close(self) -> None:
        """Nothing is open."""
