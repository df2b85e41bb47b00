"""Reads and writes objects of a remote store in parts, each with a deadline.

Without deadlines a store that accepts connections and never answers would block its caller for
ever.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar

from fsspec.spec import AbstractBufferedFile

from dasktune.errors import StorageError

T = TypeVar("T")

#: Takes a number of bytes; returns the seconds within which they must be transferred.
Timeout = Callable[[int], float]

#: Timeout in seconds of an operation that transfers hardly any data.
OPERATION_TIMEOUT: Final = 30.0
#: Bytes a second, for each of several parallel transfers, below which a store counts as failing.
SLOWEST: Final = 100_000
#: Bytes of a part. Object stores require at least 5 MiB for all parts but the last.
PART: Final = 8 * 1024**2
#: Number of parts after which the part size doubles: stores accept 10,000 parts, and objects may
#: be large.
_PARTS: Final = 1000


def deadline(size: int) -> float:
    """Return the timeout in seconds of an operation that transfers `size` bytes."""
    return OPERATION_TIMEOUT + size / SLOWEST


def no_answer(seconds: float, what: str) -> StorageError:
    """Return the error for a store that has not answered."""
    return StorageError(f"the storage gave no answer within {seconds:.3g} s to {what}")


def within(
    seconds: float, function: Callable[[], T], what: str, *, late: Callable[[], None] | None = None
) -> T:
    """Call `function` in a thread, and abandon the thread if it takes too long.

    Parameters
    ----------
    seconds : float
        The timeout.
    function : callable
        The function to call, without arguments.
    what : str
        The operation, for the message.
    late : callable, optional
        Called when an abandoned call has ended after all, mostly in its thread.

    Raises
    ------
    StorageError
        If it took too long.
    """
    call = Call(function)
    if not call.wait(seconds):
        if late is not None:
            call.abandon(late)
        raise no_answer(seconds, what)
    return call.result()


class Call(Generic[T]):
    """A call in a daemon thread, which does not keep the process from ending.

    Parameters
    ----------
    function : callable
        The function to call, without arguments.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._outcome: Future[T] = Future()
        name = "dasktune-storage-call"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._function())
        except BaseException as error:
            self._outcome.set_exception(error)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end, and return whether the call has ended."""
        return bool(wait([self._outcome], timeout=seconds).done)

    def result(self) -> T:
        """Return the result of the call, or raise its exception, after its end."""
        return self._outcome.result()

    def abandon(self, late: Callable[[], None]) -> None:
        """Stop waiting; `late` is called when the call has ended.

        If the call has already ended, `late` is called at once, in the calling thread.
        """
        self._outcome.add_done_callback(lambda _: late())


class ObjectReader(io.RawIOBase):
    """Reads an object part by part.

    Parameters
    ----------
    fetch : callable
        ``fetch(start, end)`` returns these bytes of the object.
    size : int
        Size of the object in bytes.
    part_size : int, default=8 MiB
        Bytes that are fetched at once.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, *, part_size: int = PART) -> None:
        super().__init__()
        self._fetch, self._size = fetch, size
        self._part_size = part_size
        self._part = memoryview(b"")
        self._fetched = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, target: Any, /) -> int:
        """Read the next bytes into `target` and return their number, 0 at the end."""
        if not self._part and self._fetched < self._size:
            end = min(self._fetched + self._part_size, self._size)
            self._part = memoryview(self._fetch(self._fetched, end))
            # No data: the object has become shorter, and this is its end.
            self._fetched = end if self._part else self._size
        count = min(len(self._part), len(target))
        target[:count] = self._part[:count]
        self._part = self._part[count:]
        return count


class _Put(Protocol):
    def __call__(self, data: bytes, *, size: int) -> object:
        """Write the whole object, of `size` bytes."""


class ObjectWriter(io.RawIOBase):
    """Writes an object: in one request if it is small, otherwise in parts.

    It becomes visible when the ``with`` block ends, unless it ends with an exception.

    Parameters
    ----------
    fs : fsspec filesystem
        The store.
    path : str
        The path of the object.
    put : callable
        Writes the whole object at once.
    part_size : int, default=8 MiB
        Bytes of a part.
    timeout : callable, default=deadline
        Called with a number of bytes; returns the seconds within which they must be sent.
    """

    def __init__(
        self,
        fs: Any,
        path: str,
        put: _Put,
        *,
        part_size: int = PART,
        timeout: Timeout = deadline,
    ) -> None:
        super().__init__()
        self._part_size = part_size
        self._timeout = timeout
        self._fs, self._path, self._put = fs, path, put
        self._waiting = bytearray()
        self._stream: Any = None
        self._sent = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Buffer bytes, and send a part when there are enough."""
        self._waiting += data
        if len(self._waiting) >= self._part_size << (self._sent // _PARTS):
            self._send()
        return len(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Make the object visible, or discard it."""
        self._leave(complete=kind is None)
        super().__exit__(kind, error, traceback)

    def _leave(self, complete: bool) -> None:
        if complete and self._stream is None:
            self._put(bytes(self._waiting), size=len(self._waiting))
        elif complete:
            try:
                self._send()
                self._within(0, self._stream.close)
            except BaseException:
                self._discard()
                raise
        else:
            self._discard()

    def _discard(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(Exception):  # the first error is raised instead
                within(self._timeout(0), lambda: discard(stream), self._path)

    def _send(self) -> None:
        data = bytes(self._waiting)
        self._waiting.clear()
        if self._stream is None:
            # With this block size, fsspec sends each write as one part.
            self._stream = within(
                self._timeout(0),
                lambda: self._fs.open(self._path, "wb", block_size=self._part_size),
                f"open {self._path}",
            )
        self._within(len(data), lambda: self._stream.write(data))
        self._sent += 1

    def _within(self, size: int, call: Callable[[], object]) -> None:
        stream = self._stream
        try:
            within(self._timeout(size), call, f"write {self._path}", late=lambda: discard(stream))
        except FileNotFoundError as error:
            # The client repeats a request to complete the upload whose answer was lost. A store may
            # refuse it, as the upload is over. Writing the object again brings the same content.
            raise StorageError(f"the storage has no upload of {self._path} any more: {error!r}") from error
        except StorageError:
            # The stream is still in use by the late call, and is discarded when that ends.
            self._stream = None
            raise


def discard(stream: Any) -> None:
    """Discard a stream of fsspec, whose mere deletion would complete the object."""
    if not isinstance(stream, AbstractBufferedFile):
        stream.close()
        return
    try:
        stream.discard()
    finally:
        stream.closed = True
