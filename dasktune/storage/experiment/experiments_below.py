"""`experiments_below`, which finds the experiments in a directory or an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.experiment.experiment_store import SPEC_FILE
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage


def experiments_below(place: Storage, depth: int) -> Iterator[Storage]:
    """Yield the directories of experiments: `place` itself, or the ones below it by name.

    Parameters
    ----------
    place : Storage
        The directory. Symbolic links below it are not followed.
    depth : int
        The number of levels to search below it.

    Raises
    ------
    StorageError
        If the directory cannot be read.
    """
    with reading(SPEC_FILE, place):
        if place.exists(SPEC_FILE):
            yield place
            return
    if depth <= 0:
        return
    with reading("its directories", place):
        names = place.names()
    for name in names:
        # Skip files, symbolic links, and names that no experiment can have.
        with suppress(ConfigError, StorageError):
            yield from experiments_below(place.child(name), depth - 1)
