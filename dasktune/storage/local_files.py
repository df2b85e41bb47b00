"""Files of a local or network disk: never half visible, created once where it matters."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Final
from uuid import uuid4

__all__ = [
    "create",
    "names",
    "open_new",
    "relative_files",
    "remove",
    "remove_tree",
    "replace",
    "sync_directory",
]

#: Files that begin so are being written; readers ignore them.
TEMPORARY: Final = ".tmp-"


def replace(path: str, data: bytes, *, durable: bool = False) -> None:
    """Write `data` to `path` so that readers see the old content or the new, nothing between."""
    temporary = _write_beside(path, data, durable)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        sync_directory(os.path.dirname(path))


def create(path: str, data: bytes, *, durable: bool = False) -> None:
    """Write `data` to `path` unless something is there; of many writers exactly one succeeds.

    Raises
    ------
    FileExistsError
        If it was there already.
    """
    temporary = _write_beside(path, data, durable)
    try:
        _link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    if durable:
        sync_directory(os.path.dirname(path))


def _link(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network disk may lose the answer of a link that it made, and see the retry fail.
        if os.stat(temporary).st_nlink != 2:
            raise
    except OSError:
        _rename_under_lock(temporary, path)


def _rename_under_lock(temporary: str, path: str) -> None:
    """Do it on file systems without hard links.

    A writer that dies here leaves its lock, and the name can never be taken: the safe side.
    """
    lock = f"{path}.lock"
    os.close(open_new(lock))
    try:
        if os.path.lexists(path):
            raise FileExistsError(path)
        os.replace(temporary, path)
    finally:
        os.unlink(lock)


def _write_beside(path: str, data: bytes, durable: bool) -> str:
    temporary = os.path.join(os.path.dirname(path), f"{TEMPORARY}{uuid4().hex}")
    descriptor = open_new(temporary)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(descriptor)
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def open_new(path: str) -> int:
    """Open a file that must not exist, with its directories, and return its descriptor."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def sync_directory(path: str) -> None:
    """Make the names in the directory `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def relative_files(root: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what is not a directory under `root`, with its name relative to it, ``/`` between.

    Symbolic links are yielded, not followed. Nothing is yielded if `root` is missing.
    """
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, prefix)), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", entry


def names(path: str) -> list[str]:
    """Return the sorted names in the directory `path`, none if it is missing."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def remove(path: str) -> None:
    """Delete a file; it is no error if it is missing."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Delete a directory with all that is in it; it is no error if it is missing."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
