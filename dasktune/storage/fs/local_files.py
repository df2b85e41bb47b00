"""Files on a local or network disk: written atomically, or created exclusively."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Final
from uuid import uuid4

from dasktune.errors import StorageError

#: Prefix of files that are being written; readers ignore them.
TEMPORARY: Final = ".tmp-"


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a disk, or the user's part of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def check_plain(top: str, path: str) -> None:
    """Refuse links, pipes and devices at `path` and between `top` and it.

    A link may lead to files outside of the experiment, which would be read, overwritten or deleted.
    Reading a pipe may never end. A missing path is accepted.

    Parameters
    ----------
    top : str
        A trusted directory; its own path may have links.
    path : str
        This directory, or a path below it.

    Raises
    ------
    StorageError
        If there is a link, pipe or device.
    """
    end = len(top.rstrip("/")) if path != top else -1
    while end >= 0:
        end = path.find("/", end + 1)
        part = path if end < 0 else path[:end]
        try:
            mode = os.lstat(part).st_mode
        except FileNotFoundError:
            return
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "link" if stat.S_ISLNK(mode) else "pipe or device"
            raise StorageError(
                f"{part!r} must be a plain file or directory, got a {kind}. dasktune creates and "
                "follows none there, since it may lead out of the experiment."
            )


def replace(path: str, data: bytes, *, durable: bool = False) -> None:
    """Write `data` to `path` atomically: readers see the old content or the new one."""
    temporary = _write_beside(path, data, durable)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        sync_directory(os.path.dirname(path))


def create(path: str, data: bytes, *, durable: bool = False) -> None:
    """Write `data` to `path` unless it exists; of several writers exactly one succeeds.

    Raises
    ------
    FileExistsError
        If it exists already.
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
        # A network disk may lose the answer of a successful link, and refuse the retry.
        if os.stat(temporary).st_nlink != 2:
            raise
    except OSError:
        _rename_under_lock(temporary, path)


def _rename_under_lock(temporary: str, path: str) -> None:
    """Create the file on a file system without hard links.

    A lock file admits one writer at a time; the others raise FileExistsError. A writer that dies
    here leaves its lock, and the file can never be created: no two writers can succeed.
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
    """Create a file that must not exist, and its directories; return its descriptor."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def open_plain(path: str) -> io.FileIO:
    """Open a plain file for reading, without waiting if it has become a pipe meanwhile.

    Raises
    ------
    OSError
        If it is missing or a directory.
    StorageError
        If it is a pipe or device.
    """
    stream = open(path, "rb", buffering=0, opener=_open_at_once)  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise StorageError(f"{path!r} must be a plain file, got a pipe or device")
    return stream


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def open_append(path: str) -> int:
    """Open a plain file for appending, and create it if it is missing; return its descriptor.

    Raises
    ------
    StorageError
        If it is a link, pipe or device, also if it has become one since :func:`check_plain`.
    OSError
        If it cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        # A link, a pipe without a reader, or a socket.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise StorageError(f"{path!r} must be a plain file, got a link, pipe or device") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StorageError(f"{path!r} must be a plain file, got a pipe or device")
    return descriptor


def sync_directory(path: str) -> None:
    """Sync the directory `path`, so that its names survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: str) -> None:
    """Sync the content of a file, whichever process has written it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def relative_files(root: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all entries under `root` but directories, each with its relative name (with ``/``).

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
    """Delete a file; it may be missing."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str, aside: str | None = None) -> None:
    """Delete a directory with its content; it may be missing.

    Parameters
    ----------
    path : str
        The directory.
    aside : str, optional
        A directory on the same disk, to which it is moved first. The deletion of a directory can
        take milliseconds, in which no name can be added to the directory above it: on ext4 a
        worker that saves a checkpoint waited 3 ms for the driver that deleted an older one.
    """
    place = path
    if aside is not None:
        moved = os.path.join(aside, f"{TEMPORARY}{uuid4().hex}")
        with contextlib.suppress(OSError):  # it is missing, or must be deleted where it is
            os.rename(path, moved)
            place = moved
    try:
        shutil.rmtree(place)
    except FileNotFoundError:
        # It is missing, or another process deletes it, too, as the rest of a deletion that was cut
        # off. That one may have met a file that is missing, so both delete all that they find.
        shutil.rmtree(place, ignore_errors=True)
    except BaseException:
        if place != path:  # the next attempt must find what is left
            with contextlib.suppress(OSError):
                os.rename(place, path)
        raise
