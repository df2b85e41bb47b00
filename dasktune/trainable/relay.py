"""Checkpoints of a worker that does not see the experiment's storage.

The driver cannot be called, it calls. So the trial says what is to be carried, a *haul*, and waits;
the driver comes for it, piece by piece, in steps that it may repeat, and says how it ended. The
files lie on the worker's own disk meanwhile, where a child process of the worker finds them, too.
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
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.source import CheckpointSource, SourceFile, snapshot, source_files
from dasktune.trial.checkpoint import CheckpointRecord

__all__ = [
    "LARGEST",
    "Dock",
    "Download",
    "EndHaul",
    "Export",
    "Haul",
    "LocalFile",
    "Look",
    "Put",
    "RelayedStore",
    "Step",
    "Sweep",
    "Take",
    "Upload",
    "Words",
    "carried",
    "write_piece",
]

#: Bytes that a checkpoint may have to be sent through the driver. It passes the driver's network
#: and its temporary directory.
LARGEST: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file of a checkpoint on the disk of its worker."""

    #: Path below the checkpoint, with ``/``.
    name: str
    #: Where it lies.
    path: str
    #: In bytes.
    size: int
    #: Where what is to be carried begins, in bytes; `size` counts from there.
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Commit a checkpoint that consists of these files."""

    record: CheckpointRecord
    files: tuple[LocalFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Put the files of a committed checkpoint into a directory of the worker."""

    record: CheckpointRecord
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Put these files where the trial's exports are kept."""

    files: tuple[LocalFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Add this of files that hold what the trial prints to those in its directory."""

    files: tuple[LocalFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Remove what earlier starts of the trial left half written."""


Haul = Upload | Download | Export | Words | Sweep


@dataclass(frozen=True, slots=True)
class Look:
    """Return the haul."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Return a piece of a file; it is shorter only at the end of the file."""

    #: Its place among the haul's files.
    file: int
    #: In bytes, as is `size`.
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Write a piece of a file, which may be empty."""

    #: Path below the checkpoint.
    name: str
    #: In bytes.
    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndHaul:
    """Tell the trial that it was done, or why it was not."""

    error: TuneError | None = None


#: What the driver asks for; each may be asked again.
Step = Look | Take | Put | EndHaul


class Dock:
    """Where a trial's hauls wait for the driver; thread-safe.

    Parameters
    ----------
    ring : callable
        Called with number and haul when there is a new one.
    """

    def __init__(self, ring: Callable[[int, Haul], None]) -> None:
        self._ring = ring
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._hauls: dict[int, tuple[Haul, Callable[[TuneError | None], None]]] = {}
        #: Why nobody comes any more.
        self._closed: TuneError | None = None

    @property
    def waiting(self) -> tuple[int, ...]:
        """The numbers of those that have not ended, which rise from 1."""
        if not self._hauls:  # nearly always; the look of every poll should not pay for the lock
            return ()
        with self._lock:
            return tuple(self._hauls)

    def begin(self, haul: Haul, on_end: Callable[[TuneError | None], None]) -> int:
        """Have something carried, and return its number.

        Parameters
        ----------
        haul : Haul
            What.
        on_end : callable
            Called once, in whatever thread, with what went wrong or None.
        """
        with self._lock:
            number, closed = next(self._numbers), self._closed
            if closed is None:
                self._hauls[number] = haul, on_end
        if closed is None:
            self._ring(number, haul)
        else:
            on_end(closed)
        return number

    def close(self, error: TuneError) -> None:
        """End all hauls, and those to come at once: the driver is gone.

        Parameters
        ----------
        error : TuneError
            What their trial is told.
        """
        with self._lock:
            self._closed = error
        for number in self.waiting:
            self.end(number, error)

    def do(self, number: int, step: Step) -> Haul | bytes | None:
        """Do what the driver asks for; it may block while the disk does.

        Parameters
        ----------
        number : int
            Of the haul.
        step : Step
            What to do.

        Raises
        ------
        StorageError
            If the haul has ended already.
        OSError
            If a file cannot be read or written.
        """
        if isinstance(step, EndHaul):
            self.end(number, step.error)
            return None
        haul = self.get(number)
        match step:
            case Look():
                return haul
            case Take() if isinstance(haul, Upload | Export | Words):
                return _read(haul.files[step.file], step)
            case Put() if isinstance(haul, Download):
                write_piece(haul.directory, step.name, step.offset, step.data)
                return None
        raise TypeError(f"{step!r} does not fit {haul!r}: a bug in dasktune")

    def get(self, number: int) -> Haul:
        """Return a haul; StorageError if it has ended."""
        with self._lock:
            if number not in self._hauls:
                raise StorageError(f"haul {number} has ended")
            return self._hauls[number][0]

    def end(self, number: int, error: TuneError | None) -> None:
        """Tell who waits for a haul how it ended; a second time does nothing."""
        with self._lock:
            _, on_end = self._hauls.pop(number, (None, None))
        if on_end is not None:
            on_end(error)


def _read(file: LocalFile, step: Take) -> bytes:
    with open(file.path, "rb") as stream:
        stream.seek(file.start + step.offset)
        return stream.read(step.size)


def write_piece(directory: str, name: str, offset: int, data: bytes) -> None:
    """Write a piece of a file at its place, which may have been done before.

    Parameters
    ----------
    directory : str
        The checkpoint's, which must be there.
    name : str
        Path below it.
    offset : int
        In bytes.
    data : bytes
        The piece.

    Raises
    ------
    StorageError
        If the directory was removed: nobody waits for the checkpoint any more.
    """
    path = os.path.join(directory, name)
    if not os.path.isdir(directory):
        raise StorageError("nobody waits for this checkpoint any more")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o666)
    with open(descriptor, "wb") as file:
        file.seek(offset)
        file.write(data)


def carried(begin: Callable[[Haul, Callable[[TuneError | None], None]], int], haul: Haul) -> None:
    """Have something carried, and wait for it.

    Parameters
    ----------
    begin : callable
        :meth:`Dock.begin`.
    haul : Haul
        What.

    Raises
    ------
    TuneError
        If it was not.
    """
    outcome: queue.SimpleQueue[TuneError | None] = queue.SimpleQueue()
    begin(haul, outcome.put)
    error = outcome.get()
    if error is not None:
        raise error


class RelayedStore:
    """Does for a trial what a `CheckpointStore` does, by way of the driver.

    Parameters
    ----------
    begin : callable
        :meth:`Dock.begin`.
    largest : int, default=1 GiB
        Bytes that a checkpoint may have.
    """

    #: Whether to write takes longer than a copy on the local disk.
    is_slow = True

    plan = staticmethod(CheckpointStore.plan)

    def __init__(
        self,
        begin: Callable[[Haul, Callable[[TuneError | None], None]], int],
        *,
        largest: int = LARGEST,
    ) -> None:
        self._begin = begin
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

        The driver commits, and only for a trial that it still has to do with: there is no fence.

        Raises
        ------
        ConfigError
            If there is nothing to copy or it has what cannot be copied.
        StorageError
            If it is too large, or could not be stored.
        """
        files = source_files(source)
        if any(file.path is None for file in files):
            # Held by a name until it was sent.
            source = snapshot(source)
            files = source_files(source)
        local = self._sized(files, record.path)
        self._carry(Upload(record=record, files=local))

    def export(self, trial_dir: str, directory: str) -> None:
        """Have exports stored; the arguments are those of :meth:`CheckpointStore.export`.

        Raises
        ------
        StorageError
            If they are too large, or could not be stored.
        """
        self._carry(Export(files=self._sized(source_files(directory), "its exports")))

    def _sized(self, files: list[SourceFile], what: str) -> tuple[LocalFile, ...]:
        """Return local files with their sizes, if they are not too large together."""
        local = tuple(
            LocalFile(name=file.name, path=file.path, size=os.path.getsize(file.path))
            for file in files
            if file.path is not None
        )
        total = sum(file.size for file in local)
        if total > self._largest:
            raise StorageError(
                f"a checkpoint must have at most {self._largest >> 20} MiB to be sent through the "
                f"driver, got {total >> 20} MiB in {what}. This worker does not see the "
                "experiment's storage: use a storage_path that all workers see, on a shared disk "
                "or in an object store such as s3://."
            )
        return local

    def load(self, record: CheckpointRecord) -> Checkpoint:
        """Return a local copy of a committed checkpoint.

        Parameters
        ----------
        record : CheckpointRecord
            Of :meth:`plan`.

        Raises
        ------
        CheckpointNotFound
            If it was never committed, or was deleted.
        StorageError
            If it is damaged, or could not be sent.
        """
        local = Checkpoint.temporary()
        self._carry(Download(record=record, directory=local.path))
        return local

    def sweep(self, trial_dir: str, keep: int, begin: int) -> None:
        """Remove the checkpoints that lost starts of the trial left; the driver knows which.

        Parameters
        ----------
        trial_dir, keep, begin
            As for :meth:`CheckpointStore.sweep`.
        """
        self._carry(Sweep())

    def _carry(self, haul: Haul) -> None:
        carried(self._begin, haul)
