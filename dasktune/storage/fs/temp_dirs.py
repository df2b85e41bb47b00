"""Temporary directories for checkpoints, deleted soon after the death of their process.

Checkpoints are large, and a killed process cannot delete them. So each process has one root
directory for all of them, and holds a lock on it (``flock``). The system releases the lock when the
process dies, and the next process that needs a root deletes roots without a lock.
"""

# Two processes may meet at a new root that is not locked yet:
#
# - The other process locks it first and deletes it: `_register` waits for the lock, finds the
#   directory gone, and makes another one. It does the same if it cannot open the directory any
#   more.
# - `_register` locks it first: the other process cannot lock it and skips it.
#
# A system cleaner (tmpreaper, systemd-tmpfiles) ignores the locks. It may delete an old root: the
# next `make_directory` makes a new one. Checkpoints that were in it are lost. Another user may then
# create a directory of that name, and could replace what this process writes there: the descriptor
# of the root shows that it is not the same one.

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from typing import Final

from dasktune.storage.fs.owned_entries import abandoned_entries, is_open_entry

logger = logging.getLogger(__name__)

_PREFIX: Final = "dasktune-checkpoints-"

_lock = threading.Lock()
#: Roots, and descriptors that hold their locks, by process id, since a fork inherits this dict, and
#: by the parent directory.
_roots: dict[tuple[int, str], tuple[str, int]] = {}


def make_directory() -> str:
    """Return the path of a new, empty directory.

    The caller deletes it. If the process dies before, a later process does.
    """
    return tempfile.mkdtemp(prefix="checkpoint-", dir=_root())


def is_temporary(path: str) -> bool:
    """Whether a path is in a directory of :func:`make_directory`.

    Parameters
    ----------
    path : str
        A local path or a URL.
    """
    return any(path.startswith(root + os.sep) for root, _ in tuple(_roots.values()))


def _root() -> str:
    key = (os.getpid(), tempfile.gettempdir())
    root = _known_root(key)
    if root is None:
        # Outside of the lock: a disk that hangs here must not delay a thread that has its root. Two
        # threads may both do this; the second one finds nothing, or what is locked.
        _remove_stale(key[1])
        with _lock:
            # Another thread may have made it meanwhile.
            root = _known_root(key)
            if root is None:
                root, _ = _roots[key] = _register(key[1])
                atexit.register(remove_own, key[0], root)
    return root


def _known_root(key: tuple[int, str]) -> str | None:
    """Return the root of this process, unless a system cleaner has deleted it."""
    root, descriptor = _roots.get(key, ("", -1))
    return root if root and is_open_entry(root, descriptor) else None


def _register(place: str) -> tuple[str, int]:
    """Create a directory that is locked while this process lives; return it with its descriptor."""
    while True:
        root = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        # Another process may delete it before it is locked.
        with suppress(FileNotFoundError):
            # Its owner is not checked: some network disks map it to another user.
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            # On a disk without locks, other processes cannot lock the root either, and keep it.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_open_entry(root, descriptor):
                return root, descriptor
            os.close(descriptor)


def _remove_stale(place: str) -> None:
    for root in abandoned_entries(place, _PREFIX, directories=True):
        logger.info("removing %s, which a process that died has left", root)
        shutil.rmtree(root, ignore_errors=True)


def remove_own(process: int, path: str) -> None:
    """Delete a directory, but only in the process that has made it.

    A fork inherits exit handlers, finalizers and ``finally`` blocks. Its parent still uses the
    directory.

    Parameters
    ----------
    process : int
        Process id of the process that has made the directory.
    path : str
        The directory; it may be missing.
    """
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
