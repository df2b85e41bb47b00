"""Opens files and directories of this user in directories where other users may create names.

In ``/tmp`` and ``/dev/shm`` every user can create a pipe, a link or a directory with any unused
name. Opening a pipe blocks until a process writes to it, and a link leads to any file. So a name is
opened only if it belongs to this user and is a plain file or a directory.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Another user may replace the name after the check: then `open` must neither wait nor follow.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_owned(path: str | os.PathLike[str], *, directory: bool = False) -> int:
    """Open a file or directory of this user for reading, and return its descriptor.

    Parameters
    ----------
    path : str or path
        The path. Its last part must not be a link.
    directory : bool, default=False
        Whether it must be a directory. Otherwise it must be a plain file.

    Raises
    ------
    OSError
        If it is missing, of another kind, or belongs to another user. The call never blocks.
    """
    # A foreign file is not even opened: that could break a lease of its owner, or start a device.
    _check_owned(os.lstat(path), path, directory)
    descriptor = os.open(path, _FLAGS | (os.O_DIRECTORY if directory else 0))
    try:
        _check_owned(os.fstat(descriptor), path, directory)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_owned(found: os.stat_result, path: str | os.PathLike[str], directory: bool) -> None:
    fits = stat.S_ISDIR(found.st_mode) if directory else stat.S_ISREG(found.st_mode)
    if not fits or found.st_uid != os.geteuid():
        kind = "directory" if directory else "plain file"
        raise PermissionError(
            f"{os.fspath(path)!r} must be a {kind} of user {os.geteuid()}, got mode "
            f"{stat.filemode(found.st_mode)} and owner {found.st_uid}. Another user may have created it."
        )


def is_open_entry(path: str, descriptor: int) -> bool:
    """Whether `path` still names what `descriptor` has open, and is no link."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def abandoned_entries(place: str, prefix: str, *, directories: bool) -> Iterator[str]:
    """Yield paths of this user in `place` on which no living process holds a lock (``flock``).

    The lock is held while the caller uses the path. Whatever cannot be opened or locked is skipped:
    mostly its process lives, or it belongs to another user.

    Parameters
    ----------
    place : str
        The directory, in which other users may create names; it may be missing.
    prefix : str
        The beginning of the names.
    directories : bool
        Whether to look for directories, or for plain files.
    """
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                yield from _if_abandoned(entry.path, directories)


def _if_abandoned(path: str, directory: bool) -> Iterator[str]:
    with suppress(OSError):
        descriptor = open_owned(path, directory=directory)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path
        finally:
            os.close(descriptor)


def exposure(path: str) -> str:
    """Return why other users can change what is in a directory; empty if they cannot.

    Membership in the directory's group counts as permission that the user has given.

    Parameters
    ----------
    path : str
        The directory; it may be missing. Its own path may have links.
    """
    try:
        found = os.stat(path)
    except OSError:
        return ""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return f"every user may write into it (mode {stat.filemode(found.st_mode)})"
    for parent in Path(os.path.realpath(path)).parents:
        mode = parent.stat().st_mode
        # In a directory such as /tmp, only the owner of an entry may rename or delete it.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"every user may replace it, because {parent} has mode {stat.filemode(mode)}"
    return ""
