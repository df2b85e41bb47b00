"""Finding out before the first trial whether a storage can carry an experiment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from dasktune.errors import ConfigError, PreflightError
from dasktune.storage.location import Storage

__all__ = ["probe", "remove_if_empty", "traceless"]


@contextmanager
def traceless(storage: Storage) -> Iterator[None]:
    """Remove at the end a directory on a disk that was made inside, if it is empty.

    Parameters
    ----------
    storage : Storage
        The directory. Those above it stay: others may be about to use them.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with traceless(Storage(f"{place}/exp")):
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
    """Remove a directory on a disk if there is nothing in it."""
    if storage.is_local:
        with suppress(OSError):
            os.rmdir(storage.path())


def probe(storage: Storage) -> None:
    """Write, read back, try to overwrite, and delete a marker; to be run on driver and workers.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Raises
    ------
    PreflightError
        If the storage cannot be used from here. It names the URL and says what to do.

    Examples
    --------
    >>> probe(Storage("memory://doctest-probe"))
    """
    name, content = f".probe-{uuid4().hex}", uuid4().bytes
    try:
        with traceless(storage):
            try:
                storage.create(name, content)
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
