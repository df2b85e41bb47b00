"""Notices that a running experiment's directory on a disk was deleted, renamed or replaced."""

# A descriptor is held for each part that is watched. So the system does not give its inode number
# to a new directory, and a disk in user space does not forget it.

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage

__all__ = ["DirectoryWatch"]

#: The directories that are watched beside the experiment's, from when they are first seen.
_PARTS: Final = ("driver", "journal", "trials")
#: What the system appends to the name of a deleted file.
_DELETED: Final = " (deleted)"


class DirectoryWatch:
    """Compares the directories of an experiment, and its newest journal file, with what was there.

    Parameters
    ----------
    storage : Storage
        The experiment's directory; if it is not on a disk, nothing is watched.

    Examples
    --------
    >>> watch = DirectoryWatch(Storage("memory://doctest-watch"))
    >>> watch.find_change()
    ''
    >>> watch.close()
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        #: Descriptors by path.
        self._open: dict[str, int] = {}
        self._segment = ""

    def find_change(self) -> str:
        """Return what has happened to the directory since the first call; empty if nothing has.

        Raises
        ------
        OSError
            If the disk cannot tell it now.
        """
        if not self._storage.is_local:
            return ""
        self._forget_complete_segment()
        top = self._storage.path()
        for path, descriptor in self._open.items():
            if not _is_same(path, descriptor, follow=path == top):
                return _describe(path, descriptor)
        # The user's path may be a link. Below it, dasktune refuses links.
        self._watch(top, 0)
        for part in _PARTS:
            self._watch(self._storage.path(part))
        self._watch_newest_segment()
        return ""

    def close(self) -> None:
        """Stop watching."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _watch(self, path: str, flags: int = os.O_NOFOLLOW) -> None:
        if path not in self._open:
            with contextlib.suppress(FileNotFoundError):
                self._open[path] = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)

    def _newest_segment(self) -> str:
        # Only this one is written. The names sort by epoch and number.
        names = [name for name in self._storage.names("journal") if name.endswith(".jsonl")]
        return self._storage.path("journal", max(names)) if names else ""

    def _forget_complete_segment(self) -> None:
        """Stop watching the segment if there is a newer one.

        It may be replaced by a compressed one then. If it is still the newest, its replacement is
        found by the check that follows. If a newer one comes between this call and the check, the
        older one is not compressed so soon: the driver begins a segment and only then hands the
        older one to the thread, which has to write and sync the compressed file first.
        """
        # A link in place of the directory is refused here, and found by the check that follows.
        with contextlib.suppress(StorageError):
            if self._segment in self._open and self._newest_segment() > self._segment:
                os.close(self._open.pop(self._segment))

    def _watch_newest_segment(self) -> None:
        newest = self._newest_segment()
        if newest != self._segment:
            if self._segment in self._open:
                os.close(self._open.pop(self._segment))
            self._segment = newest
            if newest:
                self._watch(newest)


def _is_same(path: str, descriptor: int, *, follow: bool) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=follow), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ESTALE:  # a network disk no longer has it
            return False
        raise


def _describe(path: str, descriptor: int) -> str:
    try:
        now = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # not Linux
        return f"{path} was deleted, renamed or replaced"
    if now.endswith(_DELETED) or now == path:
        return f"{path} was deleted or replaced"
    return f"{path} was renamed to {now}"
