"""Checks before the first trial whether a storage supports the operations of an experiment."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from dasktune.errors import ConfigError, PreflightError
from dasktune.storage.fs.owned_entries import exposure
from dasktune.storage.fs.scratch_files import scratch_name
from dasktune.storage.fs.storage import Storage

logger = logging.getLogger(__name__)


@contextmanager
def writes_nothing(storage: Storage) -> Iterator[None]:
    """Remove a directory that was created inside the ``with`` block, if it is empty at the end.

    Parameters
    ----------
    storage : Storage
        The directory. Its parents stay, since other processes may be about to use them.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with writes_nothing(Storage(f"{place}/exp")):
    ...         os.mkdir(f"{place}/exp")
    ...     os.listdir(place)
    []
    """
    is_new = storage.is_local and not os.path.isdir(storage.path())
    try:
        yield
    finally:
        if is_new:
            remove_if_empty(storage)


def remove_if_empty(storage: Storage) -> None:
    """Remove a directory on a disk if it is empty."""
    if storage.is_local:
        with suppress(OSError):
            os.rmdir(storage.path())


def warn_if_exposed(storage: Storage) -> None:
    """Log a warning if other users of this machine can change an experiment.

    Restoring unpickles objects of the experiment, so who can write there can run code as this user.

    Parameters
    ----------
    storage : Storage
        The experiment's directory; nothing is checked in an object store.
    """
    reason = exposure(storage.path()) if storage.is_local else ""
    if reason:
        logger.warning(
            "other users can change the experiment at %s: %s. Its files are unpickled when it is "
            "restored, which can run code. Use a directory that only you can write.",
            storage,
            reason,
        )


def probe(storage: Storage) -> None:
    """Write, read, try to overwrite, and delete a marker file; run on the driver and on workers.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Raises
    ------
    PreflightError
        If the storage cannot be used from here. The message has the URL and advice.

    Examples
    --------
    >>> probe(Storage("memory://doctest-probe"))
    """
    name, content = scratch_name("probe"), uuid4().bytes
    try:
        with writes_nothing(storage):
            try:
                # The client of a store repeats a write whose answer is lost, and finds the file.
                storage.claim(name, content)
                found = storage.read_bytes(name)
                second = _creates_twice(storage, name)
            finally:
                storage.remove(name)
    except ConfigError as error:
        raise PreflightError(str(error)) from error
    except Exception as error:  # each store's client has its own exceptions
        raise PreflightError(
            f"storage_path must be writable from every machine of the cluster, got {str(storage)!r}"
            f", which failed with {error!r}. Check that it exists, its permissions, and the "
            "credentials in storage_options."
        ) from error
    if found != content:
        raise PreflightError(
            f"storage_path must give back what was written, got {str(storage)!r}, which gave "
            f"{len(found)} bytes for {len(content)}. Do not put a cache in front of it."
        )
    if second:
        raise PreflightError(
            f"storage_path must be able to refuse to overwrite a file, got {str(storage)!r}, which "
            "wrote it twice. Update the package of its filesystem (and fsspec), or use a store "
            "with conditional writes."
        )


def _creates_twice(storage: Storage, name: str) -> bool:
    try:
        storage.create(name, b"second")
    except FileExistsError:
        return False
    return True
