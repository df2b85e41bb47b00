"""Checkpoints in the experiment's storage: committed atomically, verified when read, fenced.

A checkpoint exists when its manifest does. The files are written first and the manifest last, so a
writer that dies leaves only a directory without a manifest, which is never restored and is deleted
later. Each start of a trial (its incarnation) writes to its own directories, so an abandoned worker
that wakes up cannot change a checkpoint of its successor.
"""

# A cut-off worker may still write while the trial's next start begins. Two checks keep it from
# leaving a checkpoint:
#
# - Its worker's fence (`fence` in `write`) raises before the manifest is written, if the worker has
#   lost its driver. It is also asked before the first file is written: a worker that was suspended
#   while its experiment ended writes nothing that no driver would delete.
# - The fencing token (`.incarnation-<number>`). The successor writes its number, then lists and
#   deletes older checkpoints. The writer writes its manifest, then reads the token. If the manifest
#   is written before the listing, the successor finds and deletes it. If it is written after the
#   listing, the token was written before, so the writer reads it and deletes its own checkpoint.
#   This needs a storage where a write that has ended is seen by every later read and listing, as on
#   a local disk and in object stores.
#
# Three more orders:
#
# - A writer that dies between manifest and token leaves a checkpoint that the driver does not know.
#   It is never restored, and `remove_stale` or `remove_all_but` of a later start deletes it.
# - A writer that is suspended after its first file, until the experiment has ended, and dies then,
#   leaves a directory without a manifest. The next driver deletes it.
# - A deletion may overlap with the writer. Files that it writes later have no manifest, or get one
#   that it deletes itself, as above.

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

from dasktune.errors import CheckpointDamaged, CheckpointNotFound, ConfigError, StorageError, check
from dasktune.storage.checkpoints.checkpoint import METADATA_FILE, Checkpoint
from dasktune.storage.checkpoints.exports import write_exports
from dasktune.storage.checkpoints.fencing import advance_fence, check_fence
from dasktune.storage.checkpoints.manifest import FileEntry, Manifest
from dasktune.storage.checkpoints.sharded import ShardedCheckpoint, StagedShards
from dasktune.storage.checkpoints.source_files import (
    CheckpointSource,
    SourceFile,
    chosen_files,
    source_files,
)
from dasktune.storage.fs import filesystem, local_files
from dasktune.storage.fs.redaction import reading, redact_errors
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.metrics import flatten
from dasktune.trial.names import checkpoint_place, is_one_name

logger = logging.getLogger(__name__)

MANIFEST_FILE: Final = ".manifest.json"
#: File that claims a checkpoint's directory on a remote store, which has no exclusive mkdir.
_WRITER_FILE: Final = ".dasktune-writer"
#: Bytes that are copied and hashed at a time; they fit into the second level cache.
_CHUNK: Final = 256 * 1024


class _Buffer(threading.local):
    """A buffer for copying, one per thread: new memory for each piece costs more than the copy."""

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
        synced). Otherwise a power cut can damage the newest ones, which is detected when they are
        loaded. The death of a process never damages one.

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
        """Whether writing takes longer than a copy on the local disk."""
        return not self.storage.is_local

    @redact_errors
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
            Number of the checkpoint within the trial, from 0, and of the trial's start.
        iteration : int
            ``training_iteration`` of the result that the checkpoint belongs to.
        metrics : mapping
            The metrics of that result.
        fence : callable, optional
            Called before the first file is written, and when all are; if it raises, there is no
            checkpoint. With it, the fencing token of the trial is checked, too: there is no
            checkpoint if a later start of the trial has taken over.

        Raises
        ------
        ConfigError
            If there is nothing to copy, or something that cannot be copied.
        StorageError
            If the checkpoint exists already or is being written by another process, or if the
            storage fails for longer than its retry time. There is no checkpoint then.
        Exception
            The error of the storage's client, if the storage has no retry time.
        """
        record = self.plan(
            trial_dir=trial_dir, index=index, incarnation=incarnation, iteration=iteration, metrics=metrics
        )
        self.write(source, record, incarnation=incarnation, fence=fence)
        return record

    @staticmethod
    def plan(
        *, trial_dir: str, index: int, incarnation: int, iteration: int, metrics: Mapping[str, Any]
    ) -> CheckpointRecord:
        """Return the record of a checkpoint before it is written; see :meth:`commit`."""
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
        """Copy `source` into the storage as a planned checkpoint.

        Parameters
        ----------
        source : Checkpoint, path or mapping of str to bytes
            As for :meth:`commit`, as are the exceptions.
        record : CheckpointRecord
            The record of :meth:`plan`.
        incarnation : int
            The incarnation given to :meth:`plan`.
        fence : callable, optional
            As for :meth:`commit`.
        """
        # The processes that write shards have checked their files.
        files = [] if isinstance(source, ShardedCheckpoint | StagedShards) else source_files(source)
        path = record.path
        writer = uuid4().hex
        if fence is not None:
            fence()
        target = self._claim(path, writer)
        try:
            if isinstance(source, ShardedCheckpoint | StagedShards):
                entries = dict(source.write_shards(path))
            else:
                entries = self._copy_all(files, target)
            manifest = Manifest(
                index=record.index,
                iteration=record.iteration,
                incarnation=incarnation,
                writer=writer,
                files=entries,
            )
            if self.durable and target.is_local:
                _sync_directories(target.path(), files)
            if fence is not None:
                fence()
            target.claim(MANIFEST_FILE, manifest.encode(), durable=self.durable)
            if fence is not None:
                check_fence(self.storage, path.split("/")[1], incarnation)
        except BaseException:
            self._clean_up(path)
            raise

    def write_shard(
        self, source: CheckpointSource, path: str, names: Collection[str]
    ) -> dict[str, FileEntry]:
        """Copy some files of `source` into a checkpoint that another process has begun.

        Parameters
        ----------
        source : Checkpoint, path or mapping of str to bytes
            As for :meth:`commit`, as are the exceptions.
        path : str
            The checkpoint's path below the experiment.
        names : collection of str
            The files to copy.

        Returns
        -------
        dict of str to FileEntry
            The entries for the manifest, which the other process writes.

        Raises
        ------
        StorageError
            If the checkpoint's directory on a local disk is missing, because the other process sees
            another disk; or if a file of these names is missing.
        """
        files = chosen_files(source, names)
        target = self.storage.child(path)
        if target.is_local:
            try:
                target.call_with_retry(partial(os.stat, target.path()), "Finding the checkpoint")
            except FileNotFoundError as error:
                raise StorageError(f"the checkpoint {target} is not visible to this worker") from error
        return self._copy_all(files, target)

    @redact_errors
    def load(self, record: CheckpointRecord) -> Checkpoint:
        """Verify a committed checkpoint, and return it as a local one.

        A remote one is copied to a temporary directory, which is deleted with the returned object.
        A missing file counts as lost only while the experiment's directory can be listed. If that
        is missing, too, its disk or server is away, and the storage's retry time applies.

        Parameters
        ----------
        record : CheckpointRecord
            The record of :meth:`commit`.

        Raises
        ------
        CheckpointNotFound
            If it was never committed, or was deleted.
        CheckpointDamaged
            If a file is missing or damaged.
        StorageError
            If the storage cannot be read.
        """
        try:
            return self._load(record)
        except (CheckpointNotFound, CheckpointDamaged) as error:
            logger.info("reading the checkpoint %s again: %s", record.path, error)
        # A second attempt in any case: the disk may have come back between the first one and this
        # check.
        self._wait_for_storage()
        return self._load(record)

    def _wait_for_storage(self) -> None:
        """Wait until the experiment's directory can be listed; at once without a retry time.

        Raises
        ------
        StorageError
            If the directory is still missing after the retry time.
        """
        if self.storage.retry_seconds:
            with reading("the directory", self.storage):
                self.storage.call_with_retry(self._check_storage, "Listing")

    def _check_storage(self) -> None:
        if not self.storage.names():
            # Not FileNotFoundError, which is not retried.
            raise OSError(f"{self.storage} is missing or empty: its disk or server may be away")

    def _load(self, record: CheckpointRecord) -> Checkpoint:
        directory = self._directory_of(record)
        with reading("the checkpoint", directory):
            manifest = _manifest_of(directory, record)
            if not directory.is_local:
                return _download(directory, manifest)
            _refuse_links(directory.path())
            for name, entry in manifest.files.items():
                _verify(directory, name, entry, None)
            return Checkpoint(directory.path(), directory.fs)

    def reference(self, record: CheckpointRecord) -> Checkpoint:
        """Return a committed checkpoint as a reference to the storage; nothing is read or copied.

        Raises
        ------
        StorageError
            If the record's path is not that of a checkpoint of dasktune.
        """
        directory = self._directory_of(record)
        return Checkpoint(directory.path(), directory.fs)

    def export(self, trial_dir: str, directory: str) -> None:
        """Copy the exports of a trial to its directory; see :func:`write_exports`."""
        write_exports(self.storage, trial_dir, directory)

    @redact_errors
    def delete(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint, which may be missing: its manifest first, then its files.

        Parameters
        ----------
        record : CheckpointRecord
            The record of :meth:`commit`.

        Raises
        ------
        StorageError
            If the record's path is not that of a checkpoint of dasktune, or has a link in it.
        """
        self._directory_of(record)
        self._remove(self.storage, record.path)

    @redact_errors
    def remove_stale(self, trial_dir: str, incarnation: int, first_index: int) -> list[str]:
        """Take over a trial: fence its earlier starts and delete their stale checkpoints.

        Stale are incomplete checkpoints, and those that the driver does not know. A checkpoint that
        an earlier start still writes is deleted by its writer.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        incarnation : int
            The current incarnation. Only checkpoints of older ones are deleted.
        first_index : int
            Number of the first checkpoint that this incarnation may write. Complete ones before it
            are known to the driver; later ones are not.

        Returns
        -------
        list of str
            The deleted checkpoints, relative to the experiment.

        Raises
        ------
        StorageError
            If a directory cannot be listed or deleted, or there is a link in place of a checkpoint.
        """
        with reading(f"the checkpoints of {trial_dir!r}", self.storage):
            places = self._fence_and_list(trial_dir, incarnation)
            untold = [path for path, index in places if index >= first_index]
            older = [path for path, index in places if index < first_index]
            # In parallel: each needs a request, and there may be hundreds.
            whole = filesystem.run_each(
                self.storage.fs, lambda path: self.storage.exists(path, MANIFEST_FILE), older
            )
            half = [path for path, is_whole in zip(older, whole, strict=True) if not is_whole]
            self._remove_all(half + untold)
        return half + untold

    @redact_errors
    def remove_all_but(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> list[str]:
        """Fence an ended trial and delete all its checkpoints but the kept ones.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        incarnation : int
            The trial's last incarnation. It and earlier ones cannot commit any more.
        kept : collection of str
            Paths of the checkpoints to keep.

        Returns
        -------
        list of str
            The deleted checkpoints, relative to the experiment.

        Raises
        ------
        StorageError
            As for :meth:`remove_stale`.
        """
        with reading(f"the checkpoints of {trial_dir!r}", self.storage):
            places = self._fence_and_list(trial_dir, incarnation + 1)
            strays = [path for path, _ in places if path not in kept]
            self._remove_all(strays)
        return strays

    def _fence_and_list(self, trial_dir: str, incarnation: int) -> list[tuple[str, int]]:
        """Fence earlier incarnations; return the paths and numbers of their checkpoints."""
        # Listed after the token is written: a writer that commits later finds the token.
        names = advance_fence(self.storage, trial_dir, incarnation)
        paths = [f"trials/{trial_dir}/{name}" for name in names]
        places = [(path, at) for path in paths if (at := checkpoint_place(path)) is not None]
        return [(path, at[1]) for path, at in places if at[2] < incarnation]

    def _remove_all(self, paths: list[str]) -> None:
        for path in paths:
            logger.info("removing the checkpoint %s, which a lost worker has left", path)
            self._remove(self.storage, path)

    def _directory_of(self, record: CheckpointRecord) -> Storage:
        """Return a checkpoint's directory; the path comes from a journal and may be forged."""
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
        """Create the directory exclusively, so that no other writer ever uses it."""
        directory = self.storage.child(path)
        self.storage.inside(path)
        try:
            if directory.is_local:
                directory.call_with_retry(partial(_make_directory, directory.path()), "Making")
            else:
                directory.claim(_WRITER_FILE, writer.encode())
        except FileExistsError:
            raise StorageError(
                f"the checkpoint {directory} exists already, or another process is writing it. "
                "Two workers may be running the same start of the trial."
            ) from None
        return directory

    def _copy_all(self, files: list[SourceFile], target: Storage) -> dict[str, FileEntry]:
        fs, root = target.fs, target.path()

        def copy(file: SourceFile) -> FileEntry:
            return target.call_with_retry(partial(copy_once, file), f"Writing {file.name}")

        def copy_once(file: SourceFile) -> FileEntry:
            path, timeout = f"{root}/{file.name}", target.timeout
            with file.open() as source, filesystem.open_write(fs, path, timeout=timeout) as stream:
                entry = _copy(source, stream)
                if self.durable and target.is_local:
                    stream.flush()
                    os.fsync(stream.fileno())
            return entry

        entries = filesystem.run_each(fs, copy, files)
        # Users may change the metadata of a committed checkpoint, so it is not verified.
        return {
            file.name: entry for file, entry in zip(files, entries, strict=True) if file.name != METADATA_FILE
        }

    def _clean_up(self, path: str) -> None:
        # Without retries: a checkpoint without a manifest is never restored, and the caller waits.
        try:
            self._remove(self.storage.with_retry(0.0), path)
        except Exception:  # the first failure is reported
            logger.warning("could not remove the incomplete checkpoint %s", path, exc_info=True)

    def _remove(self, storage: Storage, path: str) -> None:
        storage.remove(f"{path}/{MANIFEST_FILE}")
        storage.remove_tree(path, aside="trials")


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path)
    except FileNotFoundError:  # it is the first of its trial
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path)


def _sync_directories(root: str, files: list[SourceFile]) -> None:
    inner = {os.path.dirname(os.path.join(root, file.name)) for file in files}
    for directory in sorted({os.path.dirname(root), root} | inner):
        local_files.sync_directory(directory)


def _copy(source: BinaryIO, target: BinaryIO | None) -> FileEntry:
    """Copy `source` to `target`, if there is one, and return its size and checksum."""
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
            f"there is no committed checkpoint at {directory}. It may have been deleted by "
            "num_to_keep, or its writer died before it was complete."
        ) from None
    manifest = Manifest.decode(content, str(directory))
    place = checkpoint_place(record.path)
    if place is None or place[1:] != (manifest.index, manifest.incarnation):
        raise CheckpointDamaged(
            f"the manifest of checkpoint {directory} is of checkpoint {manifest.index} of "
            f"incarnation {manifest.incarnation}: it was copied there from another place"
        )
    return manifest


def _refuse_links(root: str) -> None:
    """Refuse links in a checkpoint: a copy of its directory would follow them."""
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
        raise CheckpointDamaged(f"the checkpoint {directory} has lost its file {name!r}") from None
    if found != entry:
        raise CheckpointDamaged(
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
