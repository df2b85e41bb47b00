"""Where a trial's process finds large objects that are mapped and not copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["publish", "shared_files"]

_files: Final[dict[str, str]] = {}


def publish(files: Mapping[str, str]) -> None:
    """Replace what :func:`shared_files` returns; called before a trial's code is unpickled."""
    _files.clear()
    _files.update(files)


def shared_files() -> Mapping[str, str]:
    """Return the paths of the files that were handed to this process, by name.

    Examples
    --------
    >>> publish({"data": "/dev/shm/data"})
    >>> shared_files()["data"]
    '/dev/shm/data'
    >>> publish({})
    """
    return _files
