"""The initial checkpoint of an experiment, from which all trials start.

It is copied into the experiment's directory once. So every worker that can read the trials'
checkpoints can read it, too, and a resumed experiment does not need the original.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import MANIFEST_FILE, CheckpointStore
from dasktune.storage.checkpoints.source_files import source_files
from dasktune.storage.fs.storage import Storage, protocol_of
from dasktune.trial.checkpoint_record import CheckpointRecord

#: Record of the copy. Its path cannot collide: no trial's directory starts with a dot.
INITIAL_CHECKPOINT: Final = CheckpointRecord(
    path="trials/.beginning/checkpoint_000000_i00", index=0, iteration=0
)


def check_initial_checkpoint(given: object, place: str, options: Mapping[str, Any]) -> Checkpoint:
    """Return the user's initial checkpoint, after checking that it has files.

    Parameters
    ----------
    given : Checkpoint, str or path
        The checkpoint, given by the user.
    place : str
        URL of the experiment's storage.
    options : mapping
        ``storage_options`` of that storage; also used for `given` if it has the same protocol.

    Raises
    ------
    ConfigError
        If it is not a directory with files, or cannot be read.
    """
    if isinstance(given, Checkpoint):
        checkpoint = given
    else:
        url = os.fspath(given)  # type: ignore[call-overload]
        same = protocol_of(url) == protocol_of(place)
        there = Storage(url, options if same else {})
        checkpoint = Checkpoint(there.path(), there.fs)
    try:
        found = source_files(checkpoint)
    except Exception as error:  # the store's client may raise any exception
        raise ConfigError(f"restore must be a checkpoint, got {checkpoint!r}: {error}") from error
    if not found:
        raise ConfigError(f"restore must be a directory with files, got {checkpoint!r}")
    return checkpoint


def copy_initial_checkpoint(checkpoint: Checkpoint, storage: Storage) -> None:
    """Copy the initial checkpoint into the experiment, unless it was copied before.

    Parameters
    ----------
    checkpoint : Checkpoint
        The result of :func:`check_initial_checkpoint`.
    storage : Storage
        The experiment's directory. Only the leader calls this.
    """
    if has_initial_checkpoint(storage):
        return
    # An earlier driver may have died while copying.
    storage.remove_tree(INITIAL_CHECKPOINT.path)
    CheckpointStore(storage).write(checkpoint, INITIAL_CHECKPOINT, incarnation=0)


def has_initial_checkpoint(storage: Storage) -> bool:
    """Whether the initial checkpoint was copied into the experiment.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """
    return storage.exists(INITIAL_CHECKPOINT.path, MANIFEST_FILE)
