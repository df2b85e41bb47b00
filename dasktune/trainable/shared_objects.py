"""Large objects that the trials of a worker read together: one copy for all of them.

Pickle protocol 5 leaves the bulk of an object, such as the memory of an array, out of the pickle.
So an object is a list of *frames*: first the pickle, then its buffers. Frames cross the network,
lie in a file and are mapped into other processes without being copied, and what is unpickled from
them shares their memory. They are read-only, because all trials see the same bytes.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import pickle
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import cloudpickle

__all__ = [
    "Frames",
    "SharedObject",
    "dump",
    "dumps_without",
    "frames_of",
    "load",
    "loads_with",
    "pickled_size",
]

#: The pickle, and the buffers that belong to it.
Frames: TypeAlias = Sequence[Any]

#: Buffers begin at multiples of so many bytes in a file, as numpy and vector instructions like it.
_ALIGNMENT: Final = 64

_PREFIX: Final = "dasktune-shared-"

#: Where files are memory, on Linux.
_MEMORY: Final = "/dev/shm"

#: Share of the free memory there that one object may take.
_MOST: Final = 0.8


def pickled_size(thing: Any) -> int:
    """Return how many bytes an object has when it is pickled; they are counted, not kept.

    Parameters
    ----------
    thing : object
        Anything that can be pickled; else pickle's own error is raised.

    Examples
    --------
    >>> import numpy as np
    >>> pickled_size(np.zeros(1_000_000)) > 8_000_000
    True
    """
    scale = _Scale()
    buffers: list[memoryview] = []
    cloudpickle.Pickler(scale, protocol=5, buffer_callback=_collector(buffers)).dump(thing)
    return scale.weight + sum(buffer.nbytes for buffer in buffers)


class _Scale(io.RawIOBase):
    """Weighs what is written."""

    def __init__(self) -> None:
        self.weight = 0

    def write(self, piece: Any) -> int:
        size = memoryview(piece).nbytes
        self.weight += size
        return size


def _collector(buffers: list[memoryview]) -> Callable[[pickle.PickleBuffer], bool]:
    def collect(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            return True  # with gaps: into the pickle
        return False

    return collect


def frames_of(thing: Any) -> list[Any]:
    """Return an object's frames; the buffers are its own memory.

    Parameters
    ----------
    thing : object
        Anything that can be pickled.
    """
    buffers: list[memoryview] = []
    return [cloudpickle.dumps(thing, protocol=5, buffer_callback=_collector(buffers)), *buffers]


def _unpickled(frames: Frames) -> Any:
    head, *buffers = frames
    return pickle.loads(head, buffers=[memoryview(one).toreadonly() for one in buffers])


def dump(thing: Any, path: str | os.PathLike[str]) -> None:
    """Write an object into a file for :func:`load`.

    Parameters
    ----------
    thing : object
        Anything that can be pickled.
    path : str or path
        The file; it is overwritten.
    """
    with open(path, "wb") as file:
        _write(frames_of(thing), file)


def load(path: str | os.PathLike[str]) -> Any:
    """Return what :func:`dump` wrote; its buffers are the file's own pages, and read-only.

    Processes that load the same file share its memory. The file may be removed while it is used.

    Parameters
    ----------
    path : str or path
        The file.

    Examples
    --------
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dump({"data": np.arange(3)}, Path(folder, "data"))
    ...     load(Path(folder, "data"))
    {'data': array([0, 1, 2])}
    """
    return _unpickled(_mapped(path))


def _write(frames: Frames, file: Any) -> None:
    sizes = [memoryview(frame).nbytes for frame in frames]
    file.write(struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes))
    for frame in frames:
        file.write(bytes(-file.tell() % _ALIGNMENT))
        file.write(frame)


def _mapped(path: str | os.PathLike[str]) -> list[memoryview]:
    with open(path, "rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    (count,) = struct.unpack_from("<Q", whole)
    sizes = struct.unpack_from(f"<{count}Q", whole, 8)
    frames, start = [], 8 * (1 + count)
    for size in sizes:
        start += -start % _ALIGNMENT
        frames.append(whole[start : start + size])
        start += size
    return frames


class SharedObject:
    """An object on a worker: unpickled once when a thread wants it, a file when a process does.

    Parameters
    ----------
    frames : sequence of buffers
        What :func:`frames_of` returned. They are let go as soon as the object is there.
    """

    def __init__(self, frames: Frames) -> None:
        self._lock = threading.Lock()
        self._frames: Frames | None = frames
        self._thing: Any = None
        self._file: _HeldFile | None = None

    def get(self) -> Any:
        """Return the object, the same one to every caller."""
        with self._lock:
            if self._frames is not None:
                self._thing = _unpickled(self._frames)
                self._frames = None
            return self._thing

    def path(self) -> str:
        """Return a file that :func:`load` reads, the same one to every caller."""
        with self._lock:
            if self._file is None:
                opened = self._frames is None
                self._file = _HeldFile(frames_of(self._thing) if opened else self._frames or ())
                if not opened:
                    # The file is one copy, and what came over the network would be another.
                    self._frames = _mapped(self._file.path)
            return self._file.path

    def close(self) -> None:
        """Remove the file, if there is one; who has loaded it keeps what was loaded."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()


class _HeldFile:
    """A file with an object that does not outlive this process for long.

    A lock that the system drops when the process dies, in whatever way, tells the next one which
    files nobody holds any more.
    """

    def __init__(self, frames: Frames) -> None:
        size = sum(memoryview(frame).nbytes for frame in frames)
        *places, last = _directories(size)
        for place in places:
            # Somebody else was quicker to use the room.
            with suppress(OSError):
                self._descriptor, self.path = _written(frames, place)
                return
        self._descriptor, self.path = _written(frames, last)

    def close(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self._descriptor)


def _directories(size: int) -> Iterator[str]:
    """Yield where to put so many bytes: first into memory, if there is room."""
    with suppress(OSError):
        if os.access(_MEMORY, os.W_OK) and size < _MOST * shutil.disk_usage(_MEMORY).free:
            yield _MEMORY
    yield tempfile.gettempdir()


def _written(frames: Frames, directory: str) -> tuple[int, str]:
    _sweep(directory)
    while True:
        descriptor, path = tempfile.mkstemp(prefix=_PREFIX, dir=directory)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        # Somebody swept it before it was locked.
        os.close(descriptor)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            _write(frames, file)
    except BaseException:
        os.unlink(path)
        os.close(descriptor)
        raise
    return descriptor, path


def _sweep(directory: str) -> None:
    """Remove what processes that were killed have left."""
    for path in Path(directory).glob(f"{_PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Puts names in the place of certain objects."""

    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file)
        self._names = names

    def persistent_id(self, thing: Any) -> str | None:
        return self._names.get(id(thing))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[str], Any]) -> None:
        super().__init__(file)
        self._find = find

    def persistent_load(self, name: str) -> Any:
        return self._find(name)


def dumps_without(thing: Any, objects: Mapping[str, Any]) -> bytes:
    """Pickle something, but certain objects in it only by name.

    Parameters
    ----------
    thing : object
        What to pickle.
    objects : mapping
        What to leave out, by name.

    Examples
    --------
    >>> data = list(range(1000))
    >>> blob = dumps_without({"a": data, "b": [data]}, {"data": data})
    >>> loads_with(blob, lambda name: name.upper())
    {'a': 'DATA', 'b': ['DATA']}
    """
    file = io.BytesIO()
    _Pickler(file, {id(value): name for name, value in objects.items()}).dump(thing)
    return file.getvalue()


def loads_with(blob: bytes, find: Callable[[str], Any]) -> Any:
    """Unpickle what :func:`dumps_without` returned.

    Parameters
    ----------
    blob : bytes
        The pickle.
    find : callable
        Returns the object of a name.
    """
    return _Unpickler(io.BytesIO(blob), find).load()
