"""Checkpoints in the experiment's storage: committed whole, verified when read, fenced.

A checkpoint exists when its manifest does. The files are written first and the manifest last, so a
writer that dies leaves nothing that anyone would restore, only a directory to be swept. Each start
of a trial (its incarnation) writes to directories of its own, so a worker that was given up and
wakes up again cannot touch what its successor wrote.

Nor does it leave anything. Whoever takes a trial over raises its fence, then sweeps; a writer
writes its manifest, then looks at the fence. So either its checkpoint is there to be swept, or it
finds the fence and takes its checkpoint back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, BinaryIO, Final
from uuid import uuid4

from dasktune.errors import CheckpointNotFound, ConfigError, StorageError, check
from dasktune.storage import filesystem, local_files
from dasktune.storage.checkpoint import METADATA_FILE, Checkpoint
from dasktune.storage.exports import write_exports
from dasktune.storage.fence import raise_fence, refuse_superseded
from dasktune.storage.location import Storage
from dasktune.storage.manifest import FileEntry, Manifest
from dasktune.storage.masking import mask_errors, reading
from dasktune.storage.source import CheckpointSource, SourceFile, source_files
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.metrics import flatten
from dasktune.trial.names import checkpoint_place, is_one_name

__all__ = ["MANIFEST_FILE", "CheckpointStore"]

logger = logging.getLogger(__name__)

MANIFEST_FILE: Final = ".manifest.json"
#: Says on a remote store, where directories cannot be claimed, who writes here.
_WRITER_FILE: Final = ".dasktune-writer"
#: Bytes that are copied and hashed at a time; they stay in the second level cache.
_CHUNK: Final = 256 * 1024


class _Buffer(threading.local):
    """Memory for copying, one per thread: fresh pages for each piece cost more than the copy."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_CHUNK))


_BUFFER = _Buffer()


class CheckpointStore:
    """Commits, loads and deletes the checkpoints of one experiment, on a worker or the driver.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    durable : bool, default=False
        Whether a committed checkpoint on a local disk must survive a power cut (each file is
        synced). Without it a power cut can damage the newest ones, which is noticed when they are
        loaded. The death of a process never can.

    Examples
    --------
    >>> store = CheckpointStore(Storage("memory://doctest-checkpoints"))
    >>> record = store.commit(
    ...     {"weights": b"abc"}, trial_dir="a", index=0, incarnation=1, iteration=5, metrics={}
    ... )
    >>> record.path
    'trials/a/checkpoint_000000_i01'
    >>> with store.load(record).as_directory() as directory:
    ...     print(open(f"{directory}/weights").read())
    abc
    >>> store.delete(record)
    """

    def __init__(self, storage: Storage, *, durable: bool = False) -> None:
        self.storage = storage
        self.durable = durable

    @property
    def is_slow(self) -> bool:
        """Whether to write takes longer than a copy on the local disk."""
        return not self.storage.is_local

    @mask_errors
    def commit(
        self,
        source: CheckpointSource,
        *,
        trial_dir: str,
        index: int,
        incarnation: int,
        iteration: int,
        metrics: Mapping[str, Any],
        fence: Callable[[], None] | None = None,
    ) -> CheckpointRecord:
        """Copy `source` into the storage and return the record of the checkpoint.

        Parameters
        ----------
        source : Checkpoint, path or mapping of str to bytes
            A checkpoint, a local directory, or files in memory by their relative names.
        trial_dir : str
            Name of the trial's directory.
        index, incarnation : int
            Number of the checkpoint within the trial, from 0; which start of the trial writes it.
        iteration : int
            ``training_iteration`` of the result that it belongs to.
        metrics : mapping
            That result.
        fence : callable, optional
            Called when all files are written; if it raises, there is no checkpoint. Nor is there
            one if another start of the trial has taken over meanwhile. Without it both are left to
            the caller.

        Raises
        ------
        ConfigError
            If there is nothing to copy or it has what cannot be copied.
        StorageError
            If the checkpoint is there already, or is being written by someone else; or if the
            storage fails for longer than its patience. There is no checkpoint then.
        Exception
            What the storage's client raises, if the storage has no patience.
        """
        record = self.plan(
            trial_dir=trial_dir,
            index=index,
            incarnation=incarnation,
            iteration=iteration,
            metrics=metrics,
        )
        self.write(source, record, incarnation=incarnation, fence=fence)
        return record

    @staticmethod
    def plan(
        *,
        trial_dir: str,
        index: int,
        incarnation: int,
        iteration: int,
        metrics: Mapping[str, Any],
    ) -> CheckpointRecord:
        """Return the record of a checkpoint that is still to be written; see :meth:`commit`."""
        check(is_one_name(trial_dir), "trial_dir", "one name", trial_dir)
        return CheckpointRecord(
            path=f"trials/{trial_dir}/checkpoint_{index:06d}_i{incarnation:02d}",
            index=index,
            iteration=iteration,
            metrics=flatten(metrics),
        )

    def write(
        self,
        source: CheckpointSource,
        record: CheckpointRecord,
        *,
        incarnation: int,
        fence: Callable[[], None] | None = None,
    ) -> None:
        """Copy `source` into the storage as what was planned.

        Parameters
        ----------
        source : Checkpoint, path or mapping of str to bytes
            As for :meth:`commit`, which also says what is raised.
        record : CheckpointRecord
            Of :meth:`plan`.
        incarnation : int
            The same as there.
        fence : callable, optional
            As for :meth:`commit`.
        """
        files = source_files(source)
        path = record.path
        writer = uuid4().hex
        target = self._claim(path, writer)
        try:
            manifest = Manifest(
                index=record.index,
                iteration=record.iteration,
                incarnation=incarnation,
                writer=writer,
                files=self._copy_all(files, target),
            )
            if self.durable and target.is_local:
                _sync_directories(target.path(), files)
            if fence is not None:
                fence()
            target.claim(MANIFEST_FILE, manifest.encode(), durable=self.durable)
            if fence is not None:
                refuse_superseded(self.storage, path.split("/")[1], incarnation)
        except BaseException:
            self._clean_up(path)
            raise

    @mask_errors
    def load(self, record: CheckpointRecord) -> Checkpoint:
        """Return a committed checkpoint, verified and local.

        A remote one is copied to a temporary directory, which goes away with the returned object.

        Parameters
        ----------
        record : CheckpointRecord
            Of :meth:`commit`.

        Raises
        ------
        CheckpointNotFound
            If it was never committed, or was deleted.
        StorageError
            If a file is missing or damaged.
        """
        directory = self._place_of(record)
        with reading("the checkpoint", directory):
            manifest = _manifest_of(directory, record)
            if not directory.is_local:
                return _download(directory, manifest)
            _refuse_links(directory.path())
            for name, entry in manifest.files.items():
                _verify(directory, name, entry, None)
            return Checkpoint(directory.path(), directory.fs)

    def reference(self, record: CheckpointRecord) -> Checkpoint:
        """Return a committed checkpoint where it lies, without reading anything of it.

        Raises
        ------
        StorageError
            If the record's path is none that dasktune gives to a checkpoint.
        """
        directory = self._place_of(record)
        return Checkpoint(directory.path(), directory.fs)

    def export(self, trial_dir: str, directory: str) -> None:
        """Copy what a trial has exported to its directory; see :func:`write_exports`."""
        write_exports(self.storage, trial_dir, directory)

    @mask_errors
    def delete(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint: first that it exists, then its files. It may be missing.

        Parameters
        ----------
        record : CheckpointRecord
            Of :meth:`commit`.

        Raises
        ------
        StorageError
            If the record's path is none that dasktune gives to a checkpoint, or it leads over a
            link.
        """
        self._place_of(record)
        self._remove(self.storage, record.path)

    @mask_errors
    def sweep(self, trial_dir: str, keep: int, begin: int) -> list[str]:
        """Take a trial over: delete what its earlier starts left, half written or never told.

        Whatever they still write is taken back by themselves.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        keep : int
            The current incarnation. Only what older ones left is deleted.
        begin : int
            Number of the first checkpoint that this one may write. Those before it are known to the
            experiment if they are whole; of later ones the driver never heard.

        Returns
        -------
        list of str
            What was deleted, relative to the experiment.

        Raises
        ------
        StorageError
            If it cannot be listed or deleted, or a link stands where a checkpoint should.
        """
        with reading(f"the checkpoints of {trial_dir!r}", self.storage):
            places = self._fenced(trial_dir, keep)
            untold = [path for path, index in places if index >= begin]
            older = [path for path, index in places if index < begin]
            # One question each, and there may be hundreds.
            whole = filesystem.run_each(
                self.storage.fs, lambda path: self.storage.exists(path, MANIFEST_FILE), older
            )
            half = [path for path, is_whole in zip(older, whole, strict=True) if not is_whole]
            self._remove_strays(half + untold)
        return half + untold

    @mask_errors
    def settle(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> list[str]:
        """End the writing of a trial: delete all its checkpoints but those that are kept.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        incarnation : int
            Its last one. What it and those before it still write is taken back by themselves.
        kept : collection of str
            Paths of the checkpoints that are known and kept.

        Returns
        -------
        list of str
            What was deleted, relative to the experiment.

        Raises
        ------
        StorageError
            As for :meth:`sweep`.
        """
        with reading(f"the checkpoints of {trial_dir!r}", self.storage):
            places = self._fenced(trial_dir, incarnation + 1)
            strays = [path for path, _ in places if path not in kept]
            self._remove_strays(strays)
        return strays

    def _fenced(self, trial_dir: str, incarnation: int) -> list[tuple[str, int]]:
        """Let none before `incarnation` commit any more; return their checkpoints and numbers."""
        raise_fence(self.storage, trial_dir, incarnation)
        # Only now: what comes into being after this look finds the fence.
        paths = [f"trials/{trial_dir}/{name}" for name in self.storage.names("trials", trial_dir)]
        places = [(path, at) for path in paths if (at := checkpoint_place(path)) is not None]
        return [(path, at[1]) for path, at in places if at[2] < incarnation]

    def _remove_strays(self, paths: list[str]) -> None:
        for path in paths:
            logger.info("Removing the checkpoint %s, which a lost worker has left", path)
            self._remove(self.storage, path)

    def _place_of(self, record: CheckpointRecord) -> Storage:
        """Return a checkpoint's directory; what is read from a journal may say anything."""
        try:
            if checkpoint_place(record.path) is None:
                raise StorageError(
                    "the path of a checkpoint must be trials/<trial>/checkpoint_<index>_i"
                    f"<incarnation>, got {record.path!r:.80}"
                )
            return self.storage.child(record.path)
        except ConfigError as error:
            raise StorageError(str(error)) from error

    def _claim(self, path: str, writer: str) -> Storage:
        """Make sure that nobody else ever writes to this directory."""
        directory = self.storage.child(path)
        self.storage.inside(path)
        try:
            if directory.is_local:
                directory.keep_trying(partial(_make_directory, directory.path()), "Making")
            else:
                directory.claim(_WRITER_FILE, writer.encode())
        except FileExistsError:
            raise StorageError(
                f"the checkpoint {directory} is there already, or somebody else is writing it. "
                "Two workers may have been running the same start of the trial."
            ) from None
        return directory

    def _copy_all(self, files: list[SourceFile], target: Storage) -> dict[str, FileEntry]:
        fs, root = target.fs, target.path()

        def copy(file: SourceFile) -> FileEntry:
            return target.keep_trying(partial(copy_once, file), f"Writing {file.name}")

        def copy_once(file: SourceFile) -> FileEntry:
            with file.open() as source, filesystem.open_write(fs, f"{root}/{file.name}") as stream:
                entry = _copy(source, stream)
                if self.durable and target.is_local:
                    stream.flush()
                    os.fsync(stream.fileno())
            return entry

        entries = filesystem.run_each(fs, copy, files)
        # Users may change the metadata of a committed checkpoint, so nothing vouches for it.
        return {
            file.name: entry
            for file, entry in zip(files, entries, strict=True)
            if file.name != METADATA_FILE
        }

    def _clean_up(self, path: str) -> None:
        # Once: nobody restores what has no manifest, and the failure that led here is waiting.
        try:
            self._remove(self.storage.patient(0.0), path)
        except Exception:  # the first failure is the one to be told
            logger.warning("Could not remove the half-written checkpoint %s", path, exc_info=True)

    def _remove(self, storage: Storage, path: str) -> None:
        storage.remove(f"{path}/{MANIFEST_FILE}")
        storage.remove_tree(path)


def _make_directory(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mkdir(path)


def _sync_directories(root: str, files: list[SourceFile]) -> None:
    inner = {os.path.dirname(os.path.join(root, file.name)) for file in files}
    for directory in sorted({os.path.dirname(root), root} | inner):
        local_files.sync_directory(directory)


def _copy(source: BinaryIO, target: BinaryIO | None) -> FileEntry:
    """Read `source` to its end, write it to `target`, and return what it was."""
    size = crc = 0
    while count := source.readinto(_BUFFER.view):  # type: ignore[attr-defined]
        chunk = _BUFFER.view[:count]
        if target is not None:
            target.write(chunk)
        crc = zlib.crc32(chunk, crc)
        size += count
    return FileEntry(size, crc)


def _manifest_of(directory: Storage, record: CheckpointRecord) -> Manifest:
    try:
        content = directory.read_bytes(MANIFEST_FILE)
    except FileNotFoundError:
        raise CheckpointNotFound(
            f"no committed checkpoint stands at {directory}. It may have been deleted by "
            "num_to_keep, or its writer died before it was complete."
        ) from None
    manifest = Manifest.decode(content, str(directory))
    place = checkpoint_place(record.path)
    if place is None or place[1:] != (manifest.index, manifest.incarnation):
        raise StorageError(
            f"the manifest of checkpoint {directory} is of checkpoint {manifest.index} of "
            f"incarnation {manifest.incarnation}: it was put there from elsewhere"
        )
    return manifest


def _refuse_links(root: str) -> None:
    """Refuse what leads out of a checkpoint: whoever copies its directory would follow it."""
    for name, entry in local_files.relative_files(root):
        if not entry.is_file(follow_symlinks=False):
            raise StorageError(
                f"the checkpoint {root} must be plain files, got {name!r}, a link, pipe or device"
            )


def _verify(directory: Storage, name: str, entry: FileEntry, target: BinaryIO | None) -> None:
    try:
        with directory.open_read(name) as source:
            found = _copy(source, target)
    except FileNotFoundError:
        raise StorageError(f"the checkpoint {directory} has lost its file {name!r}") from None
    if found != entry:
        raise StorageError(
            f"the file {name!r} of checkpoint {directory} is damaged: it has {found.size} bytes "
            f"with crc32 {found.crc32:08x}, and {entry.size} with {entry.crc32:08x} were written"
        )


def _download(directory: Storage, manifest: Manifest) -> Checkpoint:
    local = Checkpoint.temporary()

    def fetch(item: tuple[str, FileEntry]) -> None:
        name, entry = item
        with filesystem.open_write(local.filesystem, f"{local.path}/{name}") as target:
            _verify(directory, name, entry, target)

    filesystem.run_each(directory.fs, fetch, manifest.files.items())
    with contextlib.suppress(FileNotFoundError):
        local.set_metadata(json.loads(directory.read_bytes(METADATA_FILE)))
    return local
