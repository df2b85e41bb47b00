"""A checkpoint of which several processes write their own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.manifest import FileEntry

__all__ = ["ShardedCheckpoint"]


class ShardedCheckpoint(Checkpoint):
    """The checkpoint of a distributed trial: each rank copies its own files into the storage.

    Parameters
    ----------
    path : str
        The directory of one of the ranks.
    write_shards : callable
        Given the checkpoint's path below the experiment, lets all ranks copy their files there, and
        returns the entries of all files by name.
    """

    def __init__(self, path: str, write_shards: Callable[[str], Mapping[str, FileEntry]]) -> None:
        super().__init__(path)
        self.write_shards = write_shards
