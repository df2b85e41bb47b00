"""Checkpoints of a worker without access to the experiment's storage, sent through the driver.

A worker cannot call the driver. So a trial submits a *transfer* and waits. The driver polls for
transfers, performs each in steps that it may repeat, and reports its end. Meanwhile the files are
on the worker's own disk, where a child process of the worker can read and write them, too.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from dasktune.errors import StorageError, TuneError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.source_files import (
    CheckpointSource,
    SourceFile,
    local_copy,
    source_files,
)
from dasktune.trial.checkpoint_record import CheckpointRecord

#: Largest checkpoint in bytes that is sent through the driver. It passes the driver's network and
#: its temporary directory.
LARGEST: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file of a checkpoint on the disk of its worker."""

    #: Path below the checkpoint, with ``/``.
    name: str
    #: Local path of the file.
    path: str
    #: Number of bytes to transfer.
    size: int
    #: Offset of the first byte to transfer.
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTransfer:
    """Request: commit a checkpoint of these files."""

    record: CheckpointRecord
    files: tuple[LocalFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadTransfer:
    """Request: copy the files of a committed checkpoint into a directory of the worker."""

    record: CheckpointRecord
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTransfer:
    """Request: store these files as the trial's exports."""

    files: tuple[LocalFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Request: append these parts of the trial's output to the log files in its directory."""

    files: tuple[LocalFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStale:
    """Request: delete the checkpoints left by lost starts of the trial."""


Transfer = UploadTransfer | DownloadTransfer | ExportTransfer | LogChunk | RemoveStale


@dataclass(frozen=True, slots=True)
class GetTransfer:
    """Step: return the transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPiece:
    """Step: return a piece of a file; it is shorter than `size` only at the end of the file."""

    #: Index among the transfer's files.
    file: int
    #: Position of the piece in the file; in bytes, as is `size`.
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePiece:
    """Step: write a piece of a file, which may be empty."""

    #: Path below the checkpoint.
    name: str
    #: Position of the piece in the file, in bytes.
    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransfer:
    """Step: report to the trial that the transfer was done, or why not."""

    error: TuneError | None = None


#: The steps of the driver; it may repeat each of them.
Step = GetTransfer | ReadPiece | WritePiece | EndTransfer


class TransferQueue:
    """The transfers of a trial that wait for the driver; thread-safe.

    Parameters
    ----------
    notify : callable
        Called with the number and the transfer when a transfer is submitted.
    """

    # The trial's threads call `submit`, threads of the worker's event loop call `perform`, and the
    # event loop calls `close`. A transfer is in `_pending` from its submission to its end. The call
    # that removes it under the lock also calls `on_end`, exactly once.
    #
    # - submit and `close`: either the transfer is in `_pending` when `close` ends all of them, or
    #   the submission finds `_closed`.
    # - The driver repeats a step whose answer was lost. Reading, and writing the same bytes at the
    #   same offset, may be repeated. A step after the end raises StorageError. A repeated write
    #   that overlaps with the end writes the same bytes again.

    def __init__(self, notify: Callable[[int, Transfer], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._pending: dict[int, tuple[Transfer, Callable[[TuneError | None], None]]] = {}
        #: Why the driver performs no more transfers; None while it does.
        self._closed: TuneError | None = None

    @property
    def pending(self) -> tuple[int, ...]:
        """The numbers of the transfers that have not ended; they count from 1."""
        if not self._pending:  # nearly always: then a poll does not take the lock
            return ()
        with self._lock:
            return tuple(self._pending)

    def submit(self, transfer: Transfer, on_end: Callable[[TuneError | None], None]) -> int:
        """Queue a transfer for the driver, and return its number.

        Parameters
        ----------
        transfer : Transfer
            What to transfer.
        on_end : callable
            Called once, in any thread, with the error or None.
        """
        with self._lock:
            number, closed = next(self._numbers), self._closed
            if closed is None:
                self._pending[number] = transfer, on_end
        if closed is None:
            self._notify(number, transfer)
        else:
            on_end(closed)
        return number

    def close(self, error: TuneError) -> None:
        """End all transfers, and every later one at once, with an error: the driver is gone.

        Parameters
        ----------
        error : TuneError
            The error that the trial gets.
        """
        with self._lock:
            self._closed = error
        for number in self.pending:
            self.end(number, error)

    def perform(self, number: int, step: Step) -> Transfer | bytes | None:
        """Perform a step of the driver; it blocks while the disk does.

        Parameters
        ----------
        number : int
            Number of the transfer.
        step : Step
            The step.

        Raises
        ------
        StorageError
            If the transfer has ended.
        OSError
            If a file cannot be read or written.
        """
        if isinstance(step, EndTransfer):
            self.end(number, step.error)
            return None
        transfer = self.get(number)
        match step:
            case GetTransfer():
                return transfer
            case ReadPiece() if isinstance(transfer, UploadTransfer | ExportTransfer | LogChunk):
                return _read(transfer.files[step.file], step)
            case WritePiece() if isinstance(transfer, DownloadTransfer):
                write_piece(transfer.directory, step.name, step.offset, step.data)
                return None
        raise TypeError(f"{step!r} does not fit {transfer!r}: a bug in dasktune")

    def get(self, number: int) -> Transfer:
        """Return a transfer; StorageError if it has ended."""
        with self._lock:
            if number not in self._pending:
                raise StorageError(f"checkpoint transfer {number} has already ended")
            return self._pending[number][0]

    def end(self, number: int, error: TuneError | None) -> None:
        """End a transfer and report that to the trial; a second call does nothing."""
        with self._lock:
            _, on_end = self._pending.pop(number, (None, None))
        if on_end is not None:
            on_end(error)


def _read(file: LocalFile, step: ReadPiece) -> bytes:
    with open(file.path, "rb") as stream:
        stream.seek(file.start + step.offset)
        return stream.read(step.size)


def write_piece(directory: str, name: str, offset: int, data: bytes) -> None:
    """Write a piece of a file at its offset; it may be repeated.

    Parameters
    ----------
    directory : str
        The checkpoint's directory, which must exist.
    name : str
        Path below it.
    offset : int
        Position of the piece in the file, in bytes.
    data : bytes
        The content of the piece.

    Raises
    ------
    StorageError
        If the directory was removed, since the trial no longer waits for the checkpoint.
    """
    path = os.path.join(directory, name)
    if not os.path.isdir(directory):
        raise StorageError("the trial no longer waits for this checkpoint")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o666)
    with open(descriptor, "wb") as file:
        file.seek(offset)
        file.write(data)


def run_transfer(
    begin: Callable[[Transfer, Callable[[TuneError | None], None]], int], transfer: Transfer
) -> None:
    """Submit a transfer and wait for its end.

    Parameters
    ----------
    begin : callable
        :meth:`TransferQueue.submit`.
    transfer : Transfer
        What to transfer.

    Raises
    ------
    TuneError
        If it failed.
    """
    outcome: queue.SimpleQueue[TuneError | None] = queue.SimpleQueue()
    begin(transfer, outcome.put)
    error = outcome.get()
    if error is not None:
        raise error


class RelayedStore:
    """Commits and loads checkpoints through the driver; used like a `CheckpointStore`.

    Parameters
    ----------
    submit : callable
        :meth:`TransferQueue.submit`.
    largest : int, default=1 GiB
        Largest checkpoint in bytes.
    """

    #: Whether writing takes longer than a copy on the local disk.
    is_slow = True

    plan = staticmethod(CheckpointStore.plan)

    def __init__(
        self, submit: Callable[[Transfer, Callable[[TuneError | None], None]], int], *, largest: int = LARGEST
    ) -> None:
        self._submit = submit
        self._largest = largest

    def write(
        self,
        source: CheckpointSource,
        record: CheckpointRecord,
        *,
        incarnation: int,
        fence: Callable[[], None] | None = None,
    ) -> None:
        """Commit a checkpoint; the arguments are those of :meth:`CheckpointStore.write`.

        The driver commits, and only for a run that it has not abandoned. So `fence` is not called.

        Raises
        ------
        ConfigError
            If there is nothing to copy, or something that cannot be copied.
        StorageError
            If it is too large, or could not be stored.
        """
        files = source_files(source)
        if any(file.path is None for file in files):
            # The reference in `source` keeps the temporary copy until it has been sent.
            source = local_copy(source)
            files = source_files(source)
        local = self._with_sizes(files, record.path)
        self._transfer(UploadTransfer(record=record, files=local))

    def export(self, trial_dir: str, directory: str) -> None:
        """Store exports; the arguments are those of :meth:`CheckpointStore.export`.

        Raises
        ------
        StorageError
            If they are too large, or could not be stored.
        """
        self._transfer(ExportTransfer(files=self._with_sizes(source_files(directory), "its exports")))

    def _with_sizes(self, files: list[SourceFile], what: str) -> tuple[LocalFile, ...]:
        """Return local files with their sizes; raise StorageError if the total is too large."""
        local = tuple(
            LocalFile(name=file.name, path=file.path, size=os.path.getsize(file.path))
            for file in files
            if file.path is not None
        )
        total = sum(file.size for file in local)
        if total > self._largest:
            raise StorageError(
                f"a checkpoint must have at most {self._largest >> 20} MiB to be sent through the "
                f"driver, got {total >> 20} MiB in {what}. This worker cannot access the "
                "experiment's storage: use a storage_path that all workers can access, on a shared "
                "disk or in an object store such as s3://."
            )
        return local

    def load(self, record: CheckpointRecord) -> Checkpoint:
        """Return a local copy of a committed checkpoint.

        Parameters
        ----------
        record : CheckpointRecord
            The record that :meth:`plan` returned.

        Raises
        ------
        CheckpointNotFound
            If it was never committed, or was deleted.
        CheckpointDamaged
            If a file is missing or damaged.
        StorageError
            If it could not be sent.
        """
        local = Checkpoint.temporary()
        self._transfer(DownloadTransfer(record=record, directory=local.path))
        return local

    def remove_stale(self, trial_dir: str, incarnation: int, first_index: int) -> None:
        """Delete the checkpoints left by lost starts of the trial; the driver selects them.

        Parameters
        ----------
        trial_dir, incarnation, first_index
            As for :meth:`CheckpointStore.remove_stale`.
        """
        self._transfer(RemoveStale())

    def _transfer(self, transfer: Transfer) -> None:
        run_transfer(self._submit, transfer)
