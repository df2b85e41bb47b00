"""What workers do with checkpoints in their memory: keep, return and store them.

The driver's part is `dasktune.cluster.data.memory_checkpoints`, which workers need not import.
"""

from __future__ import annotations

from distributed.worker import get_worker

from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.serialization import from_bytes
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.names import checkpoint_place


def key_of(plugin: str, path: str) -> str:
    """Return the key of a checkpoint in Dask.

    Parameters
    ----------
    plugin : str
        Name of the experiment's worker plugin.
    path : str
        The path of the checkpoint's record.
    """
    return f"{plugin.partition('@')[0]}-{path.replace('/', '-')}"


async def adopt(plugin: str, key: str) -> bytes:
    """Return a checkpoint that a trial left on this worker, so that Dask holds it as data.

    Parameters
    ----------
    plugin : str
        Name of the experiment's worker plugin, which drops the checkpoint once Dask holds it.
    key : str
        Key of the checkpoint, which is also the key of this task.
    """
    packed: bytes = get_worker().plugins[plugin].checkpoints[key]
    return packed


async def identity(packed: bytes) -> bytes:
    """Return a checkpoint that Dask has transferred to this worker."""
    return packed


def store(packed: bytes, record: CheckpointRecord, storage: Storage) -> None:
    """Write a checkpoint from this worker to the storage.

    Parameters
    ----------
    packed : bytes
        The checkpoint.
    record : CheckpointRecord
        The record of the checkpoint.
    storage : Storage
        The experiment's storage.
    """
    place = checkpoint_place(record.path)
    assert place is not None, "the path of a record is checked when it is made"
    CheckpointStore(storage).write(from_bytes(packed), record, incarnation=place[2])
