"""Small files that a process writes to check a storage, and the deletion of those that it left.

A process that is killed cannot delete them. No process reads a file that is older than the timeouts
of all checks, so the driver that leads the experiment deletes such files.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import uuid4

from dasktune.storage.fs import local_files
from dasktune.storage.fs.storage import Storage

#: Age in seconds from which a file is deleted; more than all timeouts and differences of clocks.
STALE: Final = 3600.0
#: Kind, time of the first write in seconds since the epoch, and a random part. Files of an older
#: dasktune have no time.
_NAME: Final = re.compile(r"\.(?:preflight|probe|submitted)-(?:([0-9]{1,12})-)?[0-9a-f]{32}(?:-reply[0-9]*)?")
#: Directories in which a process that was killed may have left a file that it was writing.
_WRITTEN: Final = ("", "driver", "journal", "snapshots")


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
