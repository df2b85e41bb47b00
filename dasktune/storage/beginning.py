"""The checkpoint that all trials of an experiment begin from, kept in the experiment's directory.

It is copied there once: every worker sees it as it sees the checkpoints of its trials, and an
experiment that goes on later does not need the original any more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from fsspec.utils import get_protocol

from dasktune.errors import ConfigError
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import MANIFEST_FILE, CheckpointStore
from dasktune.storage.location import Storage
from dasktune.storage.source import source_files
from dasktune.trial.checkpoint import CheckpointRecord

__all__ = ["BEGINNING", "check_beginning", "copy_beginning", "has_beginning"]

#: Where the copy is. No trial's directory begins with a dot.
BEGINNING: Final = CheckpointRecord(
    path="trials/.beginning/checkpoint_000000_i00", index=0, iteration=0
)


def check_beginning(given: object, place: str, options: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint that trials are to begin from, if there is one.

    Parameters
    ----------
    given : Checkpoint, str or path
        What the user gave.
    place : str
        URL of the experiment's storage.
    options : mapping
        What fsspec needs for that; used for `given`, too, if it is of the same kind.

    Raises
    ------
    ConfigError
        If there is no directory with files, or it cannot be read.
    """
    if isinstance(given, Checkpoint):
        checkpoint = given
    else:
        url = os.fspath(given)  # type: ignore[call-overload]
        same = get_protocol(url) == get_protocol(place)
        there = Storage(url, options if same else {})
        checkpoint = Checkpoint(there.path(), there.fs)
    try:
        found = source_files(checkpoint)
    except Exception as error:  # whatever the store's client raises
        raise ConfigError(f"restore must be a checkpoint, got {checkpoint!r}: {error}") from error
    if not found:
        raise ConfigError(f"restore must be a directory with files, got {checkpoint!r}")
    return checkpoint


def copy_beginning(checkpoint: Checkpoint, storage: Storage) -> None:
    """Copy a checkpoint to where trials begin from, unless that was done.

    Parameters
    ----------
    checkpoint : Checkpoint
        Of :func:`check_beginning`.
    storage : Storage
        The experiment's, to which nobody else writes.
    """
    if has_beginning(storage):
        return
    # A driver may have died over it.
    storage.remove_tree(BEGINNING.path)
    CheckpointStore(storage).write(checkpoint, BEGINNING, incarnation=0)


def has_beginning(storage: Storage) -> bool:
    """Whether the copy is there.

    Parameters
    ----------
    storage : Storage
        The experiment's.
    """
    return storage.exists(BEGINNING.path, MANIFEST_FILE)
