"""How many bytes this process receives over TCP by Tornado, and so by Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tornado.iostream import IOStream

__all__ = ["received_bytes"]


@contextmanager
def received_bytes() -> Iterator[Callable[[], int]]:
    """Count what all connections of this process receive meanwhile, those that are open included.

    Nothing of Dask or of the system counts that: the former only knows how long transfers between
    workers took, and the latter's ``/proc/self/io`` leaves sockets out.
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
