"""Checkpoints in the experiment's storage: committed whole, verified when read, fenced.

A checkpoint exists when its manifest does. The files are written first and the manifest last, so a
writer that dies leaves nothing that anyone would restore, only a directory to be swept. Each start
of a trial (its incarnation) writes to directories of its own, so a worker that was given up and
wakes up again cannot touch what its successor wrote.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final
from uuid import uuid4

from dasktune.errors import CheckpointNotFound, StorageError, check
from dasktune.storage import filesystem, local_files
from dasktune.storage.checkpoint import METADATA_FILE, Checkpoint
from dasktune.storage.location import Storage
from dasktune.storage.manifest import FileEntry, Manifest
from dasktune.storage.source import CheckpointSource, SourceFile, source_files
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.metrics import flatten

__all__ = ["MANIFEST_FILE", "CheckpointStore"]

logger = logging.getLogger(__name__)

MANIFEST_FILE: Final = ".manifest.json"
#: Says on a remote store, where directories cannot be claimed, who writes here.
_WRITER_FILE: Final = ".dasktune-writer"
_DIRECTORY: Final = re.compile(r"checkpoint_(\d{6,})_i(\d{2,})")
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
            Called when all files are written; if it raises, there is no checkpoint.

        Raises
        ------
        ConfigError
            If there is nothing to copy or it has what cannot be copied.
        StorageError
            If the checkpoint is there already, or is being written by someone else.
        """
        check("/" not in trial_dir, "trial_dir", "one name", trial_dir)
        files = source_files(source)
        path = f"trials/{trial_dir}/checkpoint_{index:06d}_i{incarnation:02d}"
        writer = uuid4().hex
        target = self._claim(path, writer)
        try:
            manifest = Manifest(
                index=index,
                iteration=iteration,
                incarnation=incarnation,
                writer=writer,
                files=self._copy_all(files, target),
            )
            if self.durable and target.is_local:
                _sync_directories(target.path(), files)
            if fence is not None:
                fence()
            target.claim(MANIFEST_FILE, manifest.encode(), durable=self.durable)
        except BaseException:
            self._clean_up(path)
            raise
        return CheckpointRecord(
            path=path, index=index, iteration=iteration, metrics=flatten(metrics)
        )

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
        directory = self.storage.child(record.path)
        try:
            content = directory.read_bytes(MANIFEST_FILE)
        except FileNotFoundError:
            raise CheckpointNotFound(
                f"no committed checkpoint stands at {directory}. It may have been deleted by "
                "num_to_keep, or its writer died before it was complete."
            ) from None
        manifest = Manifest.decode(content, str(directory))
        if directory.is_local:
            for name, entry in manifest.files.items():
                _verify(directory, name, entry, None)
            return Checkpoint(directory.path(), directory.fs)
        return _download(directory, manifest)

    def reference(self, record: CheckpointRecord) -> Checkpoint:
        """Return a committed checkpoint where it lies, without reading anything of it."""
        directory = self.storage.child(record.path)
        return Checkpoint(directory.path(), directory.fs)

    def delete(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint: first that it exists, then its files. It may be missing.

        Parameters
        ----------
        record : CheckpointRecord
            Of :meth:`commit`.
        """
        self._remove(record.path)

    def sweep(self, trial_dir: str, keep: int) -> list[str]:
        """Delete what dead writers of a trial left half written.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        keep : int
            The current incarnation. Only directories of older ones are deleted, and of those only
            what has no manifest.

        Returns
        -------
        list of str
            What was deleted, relative to the experiment.
        """
        swept = []
        for name in self.storage.names("trials", trial_dir):
            match = _DIRECTORY.fullmatch(name)
            path = f"trials/{trial_dir}/{name}"
            if match is None or int(match[2]) >= keep or self.storage.exists(path, MANIFEST_FILE):
                continue
            logger.info("Removing the half-written checkpoint %s", path)
            self.storage.remove_tree(path)
            swept.append(path)
        return swept

    def _claim(self, path: str, writer: str) -> Storage:
        """Make sure that nobody else ever writes to this directory."""
        directory = self.storage.child(path)
        try:
            if directory.is_local:
                os.makedirs(os.path.dirname(directory.path()), exist_ok=True)
                os.mkdir(directory.path())
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
        try:
            self._remove(path)
        except Exception:  # the first failure is the one to be told
            logger.warning("Could not remove the half-written checkpoint %s", path, exc_info=True)

    def _remove(self, path: str) -> None:
        self.storage.remove(f"{path}/{MANIFEST_FILE}")
        self.storage.remove_tree(path)


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
    metadata = Checkpoint(directory.path(), directory.fs).get_metadata()
    if metadata:
        local.set_metadata(metadata)
    return local
