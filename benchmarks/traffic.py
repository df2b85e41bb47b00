"""How many bytes this process receives over TCP by Tornado, which Dask uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tornado.iostream import IOStream

__all__ = ["received_bytes"]


@contextmanager
def received_bytes() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the bytes received since the block began, by all connections.

    Neither Dask nor the system counts them: Dask only records how long transfers between workers
    took, and ``/proc/self/io`` leaves sockets out.
    """
    total = 0
    read = IOStream.read_from_fd

    def counting(stream: IOStream, buffer: bytearray) -> int | None:
        nonlocal total
        count = read(stream, buffer)
        total += count or 0
        return count

    with patch.object(IOStream, "read_from_fd", counting):
        yield lambda: total
