"""Copies of ranks' files on the disk of their host, which are uploaded while the ranks train on."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from dasktune.isolation.ranks.rank_messages import Shard
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.manifest import FileEntry
from dasktune.storage.checkpoints.source_files import chosen_files
from dasktune.storage.fs.storage import Storage

#: Ranks whose files are copied at the same time.
_PARALLEL: Final = 8


@dataclass
class _Copy:
    """The files of one checkpoint that the ranks of this worker have written."""

    directory: Checkpoint
    names: Collection[str]
    #: Whether nothing needs it any more.
    is_dropped: bool = False
    #: Whether a thread writes or reads it.
    is_used: bool = True


class ShardStaging:
    """The copies of one trial on one worker; thread-safe.

    They belong to the worker and not to the ranks: a rank that dies loses no checkpoint that its
    `report` has returned for, and what a killed worker leaves is removed by the next process of
    dasktune on its host.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """

    # The coordinator sends an upload only after the answer to the copy, and each of them once. A
    # drop, or the end, may come at any time:
    #
    # - While a thread copies or uploads: the drop cuts the files off, so that the thread reads
    #   their ends, and the thread deletes them. A file that it opens later is as short. What was
    #   uploaded is no checkpoint, because the coordinator writes no manifest.
    # - Between the two: the drop deletes the copy, and the upload finds none.

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._copies: dict[int, _Copy] = {}
        self._is_closed = False

    def stage(self, number: int, shards: Mapping[int, Shard]) -> None:
        """Copy the files of all ranks; returns when they may change.

        Parameters
        ----------
        number : int
            Number of the checkpoint among those of this start of the trial.
        shards : mapping of int to Shard
            The files by rank. All names are distinct.

        Raises
        ------
        OSError
            If a file cannot be copied, for example because the disk is full.
        StorageError
            If a file is missing.
        """
        names = frozenset(name for shard in shards.values() for name in shard.names)
        copy = _Copy(Checkpoint.temporary(), names)
        with self._lock:
            if self._is_closed:
                raise OSError(_KILLED)
            self._copies[number] = copy
        is_whole = False
        try:
            with ThreadPoolExecutor(min(_PARALLEL, len(shards)), "dasktune-staging") as pool:
                for _ in pool.map(lambda shard: _copy_files(shard, copy.directory.path), shards.values()):
                    pass
            is_whole = True
        finally:
            self._end_use(number, copy, keep=is_whole)

    def upload(self, number: int, path: str) -> dict[str, FileEntry]:
        """Upload a copy, delete it, and return the entries of its files for the manifest.

        Parameters
        ----------
        number : int
            Number of the checkpoint.
        path : str
            The checkpoint's path below the experiment.

        Raises
        ------
        Exception
            The error of the storage, or OSError if the copy was dropped.
        """
        with self._lock:
            copy = self._copies.get(number)
            if copy is None:
                raise OSError(_KILLED)
            copy.is_used = True
        with self._used(number, copy):
            storage = self._storage
            store = CheckpointStore(storage.with_retry(storage.retry_seconds, lambda: not copy.is_dropped))
            entries = store.write_shard(copy.directory.path, path, copy.names)
            if copy.is_dropped:
                raise OSError(_KILLED)
            return entries

    def drop(self, number: int) -> None:
        """Delete a copy, also while it is being uploaded."""
        with self._lock:
            copy = self._copies.get(number)
            if copy is None:
                return
            copy.is_dropped = True
            is_used = copy.is_used
            if not is_used:
                del self._copies[number]
        if is_used:
            _cut_off(copy.directory.path)
        else:
            shutil.rmtree(copy.directory.path, ignore_errors=True)

    def close(self) -> list[int]:
        """Make no other copy; return the numbers of those that remain to be dropped."""
        with self._lock:
            self._is_closed = True
            return list(self._copies)

    @contextmanager
    def _used(self, number: int, copy: _Copy) -> Iterator[None]:
        try:
            yield
        finally:
            self._end_use(number, copy, keep=False)

    def _end_use(self, number: int, copy: _Copy, *, keep: bool) -> None:
        with self._lock:
            copy.is_used = False
            is_kept = keep and not copy.is_dropped
            if not is_kept:
                self._copies.pop(number, None)
        if not is_kept:
            shutil.rmtree(copy.directory.path, ignore_errors=True)


_KILLED: Final = "the checkpoint is not needed any more"


def _copy_files(shard: Shard, directory: str) -> None:
    for file in chosen_files(shard.directory, shard.names):
        file.copy_to(directory)


def _cut_off(directory: str) -> None:
    """Empty all files below a directory, which another thread may read or delete."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                os.truncate(os.path.join(parent, name), 0)
