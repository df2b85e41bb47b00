"""The operations of a filesystem that dasktune uses: whole objects, listings and deletion.

An object store can neither rename nor append and has no directories. No function here needs that.
Each function takes a filesystem of fsspec and a path in its notation. Local files are accessed by
``os`` directly, which is faster and has stronger guarantees. `timeout` is called with a number of
bytes, and returns the seconds within which a remote store must have transferred them.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Final, Protocol, TypeVar, cast

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dasktune.storage.fs import local_files
from dasktune.storage.fs.streams import (
    ObjectReader,
    ObjectWriter,
    Timeout,
    deadline,
    no_answer,
    within,
)

#: Approximate size in bytes up to which a whole file can be read in one request before its
#: deadline.
SMALL: Final = 4 * 1024**2

#: Number of objects of a remote store that are transferred at the same time.
_PARALLEL: Final = 8

#: Makes the check and the write of `create` one step in the memory filesystem, which the threads of
#: a process share.
_MEMORY_LOCK = threading.Lock()

_T = TypeVar("_T")
_R = TypeVar("_R")


class Retry(Protocol):
    """Calls a function, perhaps several times."""

    def __call__(self, attempt: Callable[[], _T], /) -> _T:
        """Return the result of the last `attempt`."""


def at_once(attempt: Callable[[], _T], /) -> _T:
    """Call `attempt`, once."""
    return attempt()


def is_local(fs: Any) -> bool:
    """Whether `fs` is a local filesystem, which includes network disks."""
    return isinstance(fs, LocalFileSystem)


def is_memory(fs: Any) -> bool:
    """Whether `fs` is in the memory of this process."""
    return isinstance(fs, MemoryFileSystem)


def _call(fs: Any, operation: str, *args: Any, timeout: Timeout, size: int = 0, **kwargs: Any) -> Any:
    """Call a method of `fs` that transfers `size` bytes, with a deadline."""
    limit = timeout(size)
    if not isinstance(fs, AsyncFileSystem) or fs.asynchronous:
        if is_memory(fs):
            return getattr(fs, operation)(*args, **kwargs)
        call = functools.partial(getattr(fs, operation), *args, **kwargs)
        return within(limit, call, f"{operation} of {args[0]}")
    try:
        return sync(fs.loop, getattr(fs, f"_{operation}"), *args, timeout=limit, **kwargs)
    except FSTimeoutError as error:
        raise no_answer(limit, f"{operation} of {args[0]}") from error


def run_each(fs: Any, function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Apply `function` to `items`, several at a time if `fs` is remote."""
    work = list(items)
    if len(work) < 2 or is_local(fs) or is_memory(fs):
        return [function(item) for item in work]
    with ThreadPoolExecutor(min(_PARALLEL, len(work)), "dasktune-storage") as pool:
        jobs = [pool.submit(function, item) for item in work]
        try:
            return [job.result() for job in jobs]
        except BaseException:
            # Calls that have not started would fail in the same way, one after another.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def open_read(fs: Any, path: str, retry: Retry = at_once, *, timeout: Timeout = deadline) -> BinaryIO:
    """Open a file for reading in pieces.

    Parameters
    ----------
    fs, path
        The filesystem, and the path of the file.
    retry : callable, optional
        Calls each request, perhaps several times; by default once.
    timeout : callable, default=deadline
        Returns the seconds for each request.

    Raises
    ------
    FileNotFoundError
        If it does not exist.
    """
    if is_local(fs):
        return cast("BinaryIO", local_files.open_plain(path))
    if is_memory(fs):
        # All readers of one memory file share its position.
        return io.BytesIO(fs.cat_file(path))
    size = retry(lambda: _call(fs, "info", path, timeout=timeout)).get("size")
    if size is None:
        return cast("BinaryIO", within(timeout(0), lambda: fs.open(path, "rb"), path))

    def fetch(start: int, end: int) -> bytes:
        # By name: the positional parameters of s3fs differ.
        span = {"start": start, "end": end, "size": end - start}
        return retry(lambda: bytes(_call(fs, "cat_file", path, timeout=timeout, **span)))

    return cast("BinaryIO", ObjectReader(fetch, size))


def open_write(fs: Any, path: str, *, timeout: Timeout = deadline) -> BinaryIO:
    """Open a file for writing in pieces, as a context manager.

    On a disk, a part of the file may be visible before it is closed. In an object store, the file
    becomes visible at the end of the ``with`` block, unless the block ends with an exception.
    """
    if not is_local(fs):
        put = functools.partial(_call, fs, "pipe_file", path, timeout=timeout)
        return cast("BinaryIO", ObjectWriter(fs, path, put, timeout=timeout))
    try:
        return open(path, "wb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")


def read_bytes(fs: Any, path: str, *, timeout: Timeout = deadline) -> bytes:
    """Return a whole small file; use :func:`open_read` for one that may have more than 4 MiB.

    Raises
    ------
    FileNotFoundError
        If it does not exist.
    """
    if is_local(fs):
        with local_files.open_plain(path) as stream:
            return stream.readall()
    return bytes(_call(fs, "cat_file", path, timeout=timeout, size=SMALL))


def write_bytes(
    fs: Any, path: str, data: bytes, *, durable: bool = False, timeout: Timeout = deadline
) -> None:
    """Write a whole file atomically: readers see the old content or the new one."""
    if is_local(fs):
        local_files.replace(path, data, durable=durable)
    else:
        _call(fs, "pipe_file", path, data, timeout=timeout, size=len(data))


def create(fs: Any, path: str, data: bytes, *, durable: bool = False, timeout: Timeout = deadline) -> None:
    """Write a whole file unless it exists; of several writers exactly one succeeds.

    Raises
    ------
    FileExistsError
        If it exists already.
    """
    if is_local(fs):
        local_files.create(path, data, durable=durable)
    elif is_memory(fs):
        with _MEMORY_LOCK:
            if fs.isfile(path):
                raise FileExistsError(path)
            fs.pipe_file(path, data)
    else:
        _call(fs, "pipe_file", path, data, timeout=timeout, size=len(data), mode="create")


def is_file(fs: Any, path: str, *, timeout: Timeout = deadline) -> bool:
    """Whether a file exists now; the object itself is requested, not a listing."""
    if is_local(fs):
        return os.path.isfile(path)
    if is_memory(fs):
        return bool(fs.isfile(path))
    try:
        return bool(_call(fs, "info", path, timeout=timeout)["type"] == "file")
    except FileNotFoundError:
        return False


def find(fs: Any, root: str, *, timeout: Timeout = deadline) -> list[str]:
    """Return the sorted names of all files under `root`, relative to it; none if it is missing."""
    if is_local(fs):
        return sorted(name for name, _ in local_files.relative_files(root))
    prefix = root.rstrip("/") + "/"
    # Some tools mark a directory by an object whose name ends with a slash.
    found = [path for path in _call(fs, "find", root, timeout=timeout) if not path.endswith("/")]
    return sorted(path[len(prefix) :] for path in found if path.startswith(prefix))


def names(fs: Any, root: str, *, timeout: Timeout = deadline) -> list[str]:
    """Return the sorted names directly under `root`, files and directories."""
    if is_local(fs):
        return local_files.names(root)
    try:
        listed = _call(fs, "ls", root, timeout=timeout, detail=False)
    except FileNotFoundError:
        return []
    prefix = root.rstrip("/") + "/"
    found = {path.rstrip("/")[len(prefix) :] for path in listed if path.startswith(prefix)}
    return sorted(found - {""})


def sizes(fs: Any, root: str, *, timeout: Timeout = deadline) -> dict[str, int]:
    """Return the sizes in bytes of the files directly under a remote `root`; 0 if not known."""
    try:
        listed = _call(fs, "ls", root, timeout=timeout, detail=True)
    except FileNotFoundError:
        return {}
    prefix = root.rstrip("/") + "/"
    return {
        entry["name"][len(prefix) :]: int(entry.get("size") or 0)
        for entry in listed
        if entry["name"].startswith(prefix)
    }


def remove(fs: Any, path: str, *, timeout: Timeout = deadline) -> None:
    """Delete a file; it may be missing."""
    if is_local(fs):
        local_files.remove(path)
        return
    with contextlib.suppress(FileNotFoundError):
        # Not `rm`, which treats some names as patterns.
        _call(fs, "rm_file", path, timeout=timeout)


def remove_tree(fs: Any, root: str, aside: str | None = None, *, timeout: Timeout = deadline) -> None:
    """Delete all files under `root`; there may be none.

    Parameters
    ----------
    fs, root
        The filesystem, and the directory.
    aside : str, optional
        As for `local_files.remove_tree`; without effect if `fs` is remote.
    timeout : callable, default=deadline
        Returns the seconds for each request.
    """
    if is_local(fs):
        local_files.remove_tree(root, aside)
    else:
        below = find(fs, root, timeout=timeout)
        run_each(fs, lambda name: remove(fs, f"{root.rstrip('/')}/{name}", timeout=timeout), below)
