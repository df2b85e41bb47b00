"""Checks before the first trial whether a storage supports the operations of an experiment."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from uuid import uuid4

from dasktune.errors import ConfigError, PreflightError
from dasktune.storage.fs import local_files
from dasktune.storage.fs.owned_entries import exposure
from dasktune.storage.fs.storage import Storage

logger = logging.getLogger(__name__)

#: Age in seconds from which a file is deleted; more than all timeouts and differences of clocks.
STALE: Final = 3600.0
#: Kind, time of the first write in seconds since the epoch, and a random part. Files of an older
#: dasktune have no time.
_NAME: Final = re.compile(r"\.(?:preflight|probe|submitted)-(?:([0-9]{1,12})-)?[0-9a-f]{32}(?:-reply[0-9]*)?")
#: Directories in which a process that was killed may have left a file that it was writing.
_WRITTEN: Final = ("", "driver", "journal", "snapshots")


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


# A process that is killed cannot delete its scratch files. No process reads a file that is older
# than the timeouts of all checks, so the driver that leads the experiment deletes such files.


def scratch_name(kind: str) -> str:
    """Return the name of a new file that :func:`remove_stale_files` deletes if it is left behind.

    Parameters
    ----------
    kind : {"preflight", "probe", "submitted"}
        What the file is for.
    """
    return f".{kind}-{int(time.time())}-{uuid4().hex}"


def remove_stale_files(storage: Storage, *, clock: Callable[[], float] = time.time) -> None:
    """Delete what processes that were killed have left directly in an experiment's directory.

    Parameters
    ----------
    storage : Storage
        The experiment's directory; the experiment has begun, so no driver looks for the file of
        ``submit`` any more.
    clock : callable, default=time.time
        Returns seconds since the epoch.
    """
    for name in storage.names():
        match = _NAME.fullmatch(name)
        if match is not None and abs(clock() - int(match[1] or 0)) > STALE:
            storage.remove(name)
    if storage.is_local:
        for folder in _WRITTEN:
            _remove_unfinished(storage, folder, clock())
        # Checkpoints that a process was about to delete. If another one still does, both do.
        for name in storage.names("trials"):
            if name.startswith(local_files.TEMPORARY):
                storage.remove_tree(f"trials/{name}")


def _remove_unfinished(storage: Storage, folder: str, now: float) -> None:
    """Delete files that were written to replace another one and were never renamed."""
    root = storage.path(folder) if folder else storage.path()
    for name in local_files.names(root):
        if name.startswith(local_files.TEMPORARY):
            path = os.path.join(root, name)
            with suppress(FileNotFoundError):  # its process has renamed it just now
                if abs(now - os.lstat(path).st_mtime) > STALE:
                    os.unlink(path)
