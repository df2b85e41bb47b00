"""Notices that a running experiment's directory on a disk was deleted, renamed or replaced."""

# A descriptor is held for each part that is watched. So the system does not give its inode number
# to a new directory, and a disk in user space does not forget it.
#
# A network disk whose server restarts may say for seconds that a file is not there. So this is no
# change yet, and raises FileNotFoundError; the caller looks again. Another file at the path, or the
# file at another path, is a change at once.

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage

#: The directories that are watched beside the experiment's, from when they are first seen.
_PARTS: Final = ("driver", "journal", "trials")


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
        #: Descriptors by path, each with the path that the system knew when it was opened.
        self._open: dict[str, tuple[int, str]] = {}
        self._segment = ""

    def find_change(self) -> str:
        """Return what has happened to the directory since the first call; empty if nothing has.

        Raises
        ------
        FileNotFoundError
            If a part is not there now.
        OSError
            If the disk cannot tell it now.
        """
        if not self._storage.is_local:
            return ""
        self._forget_complete_segment()
        top = self._storage.path()
        for path, (descriptor, place) in self._open.items():
            change = _find_change(path, descriptor, place, follow=path == top)
            if change:
                return change
        # The user's path may be a link. Below it, dasktune refuses links.
        self._watch(top, 0)
        for part in _PARTS:
            self._watch(self._storage.path(part))
        self._watch_newest_segment()
        return ""

    def close(self) -> None:
        """Stop watching."""
        while self._open:
            os.close(self._open.popitem()[1][0])

    def _watch(self, path: str, flags: int = os.O_NOFOLLOW) -> None:
        if path not in self._open:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
                self._open[path] = descriptor, _place_of(descriptor)

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
                os.close(self._open.pop(self._segment)[0])

    def _watch_newest_segment(self) -> None:
        newest = self._newest_segment()
        if newest != self._segment:
            if self._segment in self._open:
                os.close(self._open.pop(self._segment)[0])
            self._segment = newest
            if newest:
                self._watch(newest)


def _find_change(path: str, descriptor: int, place: str, *, follow: bool) -> str:
    missing: OSError | None = None
    try:
        if os.path.samestat(os.stat(path, follow_symlinks=follow), os.fstat(descriptor)):
            return ""
    except OSError as error:
        # ESTALE: a network disk does not have it now.
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            raise
        missing = error
    now = _place_of(descriptor)
    if place and now not in ("", place):
        return f"{path} was renamed to {now}"
    if missing is not None:
        raise FileNotFoundError(f"{path} was not found") from missing
    return f"{path} was replaced"


def _place_of(descriptor: int) -> str:
    """Return the path of an open file; empty if it is not certain."""
    with contextlib.suppress(OSError):  # not Linux, or the file was deleted, or the disk is away
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return path
    return ""
