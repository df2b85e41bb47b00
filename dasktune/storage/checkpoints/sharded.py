"""A checkpoint of which several processes write their own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.manifest import FileEntry


class StagedShards(Checkpoint):
    """Copies of the files of all ranks, on the disks of their hosts.

    Parameters
    ----------
    path : str
        The directory of one of the ranks, which may be gone.
    write_shards : callable
        Given the checkpoint's path below the experiment, lets all hosts write the files there, and
        returns the entries of all files by name.
    discard : callable
        Lets all hosts delete the copies.
    """

    def __init__(
        self,
        path: str,
        write_shards: Callable[[str], Mapping[str, FileEntry]],
        discard: Callable[[], None],
    ) -> None:
        super().__init__(path)
        self.write_shards = write_shards
        self.discard = discard


class ShardedCheckpoint(Checkpoint):
    """The checkpoint of a distributed trial: each rank copies its own files into the storage.

    Parameters
    ----------
    path : str
        The directory of one of the ranks.
    write_shards : callable
        Given the checkpoint's path below the experiment, lets all ranks copy their files there, and
        returns the entries of all files by name.
    stage : callable
        Lets all hosts copy the files to their disks; returns None if one of them is full.
    """

    def __init__(
        self,
        path: str,
        write_shards: Callable[[str], Mapping[str, FileEntry]],
        stage: Callable[[], StagedShards | None],
    ) -> None:
        super().__init__(path)
        self.write_shards = write_shards
        self.stage = stage
