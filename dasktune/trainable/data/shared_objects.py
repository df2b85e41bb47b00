"""Large objects that the trials of a worker share: one copy for all of them.

Pickle protocol 5 keeps the bulk of an object, such as the memory of an array, out of the pickle.
So an object is a list of *frames*: the pickle, then its buffers. Frames are sent over the network,
written to a file and mapped into other processes without a copy. An object that is unpickled from
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
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any, ClassVar, Final, TypeAlias

import cloudpickle

from dasktune.storage.fs.owned_entries import abandoned_entries, open_owned

#: The pickle, and the buffers that belong to it.
Frames: TypeAlias = Sequence[Any]

#: Alignment of buffers in a file, in bytes, for numpy and vector instructions.
_ALIGNMENT: Final = 64

_PREFIX: Final = "dasktune-shared-"

#: The file system in memory, on Linux.
_SHM: Final = "/dev/shm"

#: Largest share of the free space in that file system that one object may use.
_MAX_SHM_SHARE: Final = 0.8


def pickled_size(thing: Any) -> int:
    """Return the size of a pickled object in bytes, without keeping the pickle.

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
    counter = _ByteCounter()
    buffers: list[memoryview] = []
    cloudpickle.Pickler(counter, protocol=5, buffer_callback=_collector(buffers)).dump(thing)
    return counter.total + sum(buffer.nbytes for buffer in buffers)


class _ByteCounter(io.RawIOBase):
    """Counts the bytes that are written."""

    def __init__(self) -> None:
        self.total = 0

    def write(self, piece: Any) -> int:
        size = memoryview(piece).nbytes
        self.total += size
        return size


def _collector(buffers: list[memoryview]) -> Callable[[pickle.PickleBuffer], bool]:
    def collect(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            return True  # not contiguous: it goes into the pickle
        return False

    return collect


def frames_of(thing: Any) -> list[Any]:
    """Return an object's frames; the buffers are the memory of the object, not copies.

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
    """Return the object that :func:`dump` wrote; its buffers are read-only pages of the file.

    Processes that load the same file share its memory. The file may be deleted while it is used.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    OSError
        If it is no plain file of this user. A system cleaner may have deleted the file, and another
        user may have created one of that name, whose pickle would run that user's code.

    Examples
    --------
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dump({"data": np.arange(3)}, f"{folder}/data")
    ...     load(f"{folder}/data")
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
    with os.fdopen(open_owned(path), "rb") as file:
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
    """A large object on a worker: unpickled once for threads, in a file for child processes.

    Parameters
    ----------
    frames : sequence of buffers
        The result of :func:`frames_of`. They are released when the object is unpickled.
    memory_directory : str, default="/dev/shm"
        A directory in memory. The file is put there if it has room for it, else on the disk.
    """

    def __init__(self, frames: Frames, *, memory_directory: str = _SHM) -> None:
        self._memory_directory = memory_directory
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
                frames = frames_of(self._thing) if opened else self._frames or ()
                self._file = _HeldFile(frames, self._memory_directory)
                if not opened:
                    # The file is one copy; the received frames would be a second one.
                    self._frames = _mapped(self._file.path)
            return self._file.path

    def close(self) -> None:
        """Delete the file, if there is one; objects that were loaded from it stay valid."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()


class RemoteObject(ABC):
    """A placeholder on the driver for an object that a worker builds from data on the cluster.

    If it is bound by `with_parameters`, trials get the object itself. The object is made once, and
    its frames are sent from worker to worker like those of any other large object.
    """

    #: Size of the object in bytes.
    size: int = 0

    #: Additional seconds to make the object if its data was lost and must be computed again.
    rebuild_seconds: float = 0.0

    @abstractmethod
    def begin(self, client: Any, key: str, address: str) -> Any:
        """Make the object on a worker, and return the future of its frames.

        Parameters
        ----------
        client : distributed.Client
            The client. This method is never called on its event loop.
        key : str
            The key of the frames in Dask.
        address : str
            The worker. Dask may compute the object again on another one if it is lost.
        """


class _HeldFile:
    """A file with an object, deleted soon after the death of this process.

    The process holds a lock on it (``flock``), which the system releases at its death. The next
    process that writes such a file deletes the files without a lock.
    """

    def __init__(self, frames: Frames, memory_directory: str) -> None:
        size = sum(memoryview(frame).nbytes for frame in frames)
        *places, last = _directories(size, memory_directory)
        for place in places:
            # Another process may have used the memory meanwhile; then the next place is tried.
            with suppress(OSError):
                self._descriptor, self.path = _write_locked_file(frames, place)
                return
        self._descriptor, self.path = _write_locked_file(frames, last)

    def close(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self._descriptor)


def _directories(size: int, memory: str) -> Iterator[str]:
    """Yield directories for so many bytes: first the one in memory, if it has room."""
    with suppress(OSError):
        if os.access(memory, os.W_OK) and size < _MAX_SHM_SHARE * shutil.disk_usage(memory).free:
            yield memory
    yield tempfile.gettempdir()


def _write_locked_file(frames: Frames, directory: str) -> tuple[int, str]:
    _remove_stale_files(directory)
    while True:
        descriptor, path = tempfile.mkstemp(prefix=_PREFIX, dir=directory)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        # Another process found the new file before it was locked, and deleted it: try again. The
        # lock is only granted after the other one has closed the file, so this check is final.
        os.close(descriptor)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            _write(frames, file)
    except BaseException:
        os.unlink(path)
        os.close(descriptor)
        raise
    return descriptor, path


def _remove_stale_files(directory: str) -> None:
    """Delete the files of processes that died. A file of a living one cannot be locked."""
    for path in abandoned_entries(directory, _PREFIX, directories=False):
        with suppress(OSError):
            os.unlink(path)


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Reduce a code object as cloudpickle does, with the name of its file.

    cloudpickle 3.1.3 leaves the name out, so a traceback would show neither the file nor the line.
    """
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if one == "<dynamic-code>" else one for one in arguments)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Replaces certain objects by names."""

    dispatch_table: ClassVar[Any] = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)

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
    """Pickle an object, with certain objects in it replaced by their names.

    Parameters
    ----------
    thing : object
        The object to pickle.
    objects : mapping
        The objects to leave out, by name.

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
    """Unpickle the result of :func:`dumps_without`.

    Parameters
    ----------
    blob : bytes
        The pickle.
    find : callable
        Called with a name; returns the object that the name stands for.
    """
    return _Unpickler(io.BytesIO(blob), find).load()
