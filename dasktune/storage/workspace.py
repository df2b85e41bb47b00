"""Temporary directories for checkpoints, which do not outlive their process for long.

Checkpoints are large, and a process that is killed cleans nothing up. So all that it makes lies in
one directory, which it has locked; the system drops the lock with the process, in whatever way that
ends, and the next process removes what nobody holds any more.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["is_temporary", "make_directory"]

logger = logging.getLogger(__name__)

_PREFIX: Final = "dasktune-checkpoints-"

_lock = threading.Lock()
#: Of each process, as a fork inherits it, and place for temporary files.
_homes: dict[tuple[int, str], str] = {}


def make_directory() -> str:
    """Return the path of a new, empty directory.

    Whoever asked for it deletes it. If the process dies before, a later one does.
    """
    return tempfile.mkdtemp(prefix="checkpoint-", dir=_home())


def is_temporary(path: str) -> bool:
    """Whether a path lies in a directory that :func:`make_directory` has made.

    Parameters
    ----------
    path : str
        A path of this machine, or the URL of another place.
    """
    return any(path.startswith(home + os.sep) for home in tuple(_homes.values()))


def _home() -> str:
    key = (os.getpid(), tempfile.gettempdir())
    with _lock:
        home = _homes.get(key)
        # A cleaner of the system may think that it is old.
        if home is None or not os.path.isdir(home):
            _sweep(key[1])
            home = _homes[key] = _settle(key[1])
            atexit.register(_leave, key[0], home)
        return home


def _settle(place: str) -> str:
    """Make a directory that is locked for as long as this process lives."""
    while True:
        home = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        # Somebody may sweep it before it is locked.
        with suppress(FileNotFoundError):
            descriptor = os.open(home, os.O_RDONLY)
            # Where locks are not to be had, nobody takes it for abandoned either.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.isdir(home):
                return home
            os.close(descriptor)


def _sweep(place: str) -> None:
    for home in Path(place).glob(f"{_PREFIX}*"):
        # Most often because its process lives, or is another user's.
        with suppress(OSError):
            descriptor = os.open(home, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                logger.info("Removing what a process that died has left in %s", home)
                shutil.rmtree(home, ignore_errors=True)
            finally:
                os.close(descriptor)


def _leave(process: int, home: str) -> None:
    # A fork has inherited the intention, too.
    if os.getpid() == process:
        shutil.rmtree(home, ignore_errors=True)
