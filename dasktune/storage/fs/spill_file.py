"""A temporary file for blocks of results that would take too much memory.

The file is deleted while it is open, so that it is gone when the process ends, however that ends.
It holds only what the journal has, too.
"""

# A child process that was forked has the same open file. It may read what was written before the
# fork: `pread` moves no common offset. If it wrote, it would overwrite what the parent writes at
# the same place, so its own blocks stay in memory.

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from struct import Struct
from typing import Any, Final

logger = logging.getLogger(__name__)

#: Bytes of blocks that stay in memory before the file is used: more than a million results.
_IN_MEMORY: Final = 64 * 1024**2
_LENGTH: Final = Struct("<Q")


class SpillFile:
    """Keeps blocks in memory up to a limit, and further ones in a temporary file.

    One thread writes, and any thread may read. The directory is that of :mod:`tempfile`, which
    ``TMPDIR`` changes. If the file cannot be written, the blocks stay in memory, and the next
    attempt follows when they have grown by `limit` again.

    Parameters
    ----------
    limit : int, default=64 MiB
        Bytes of blocks that stay in memory.

    Examples
    --------
    >>> spill = SpillFile(limit=0)
    >>> spill.read(spill.write(b"block"))
    b'block'
    """

    def __init__(self, limit: int = _IN_MEMORY) -> None:
        self._limit = self._step = limit
        self._size = 0
        self._descriptor = -1
        self._end = 0
        self._process = os.getpid()
        self._has_warned = False

    def write(self, block: bytes) -> object:
        """Keep a block, and return a handle for :meth:`read`: the block, or its place in the file.

        Parameters
        ----------
        block : bytes
            The block.
        """
        if self._size + len(block) <= self._limit or self._process != os.getpid():
            return self._keep(block)
        content = memoryview(_LENGTH.pack(len(block)) + block)
        try:
            self._open()
            done = 0
            while done < len(content):
                # One call writes at most 2 GiB, and may write less.
                done += os.pwrite(self._descriptor, content[done:], self._end + done)
        except OSError as error:
            self._note_failure(error)
            return self._keep(block)
        handle, self._end = self._end, self._end + len(content)
        return handle

    def _keep(self, block: bytes) -> bytes:
        self._size += len(block)
        return block

    def _note_failure(self, error: OSError) -> None:
        self._limit = self._size + self._step
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the driver cannot write older results into a temporary file%s (%s) and keeps them in "
                "memory. The journal has all of them. Set TMPDIR to a directory with room",
                _directory(),
                error,
            )

    def _open(self) -> None:
        if self._descriptor < 0:
            # It has no name, or loses it at once, so it cannot outlive the process.
            with tempfile.TemporaryFile(prefix="dasktune-results-", buffering=0) as file:
                self._descriptor = os.dup(file.fileno())
            # Not at the end of the process: code that runs there may still read results, and the
            # system closes the file anyway.
            weakref.finalize(self, os.close, self._descriptor).atexit = False

    def read(self, handle: Any) -> bytes:
        """Return a block.

        Parameters
        ----------
        handle : object
            The return value of :meth:`write`.

        Raises
        ------
        OSError
            If the file cannot be read, or has become shorter.
        """
        if isinstance(handle, bytes):
            return handle
        (length,) = _LENGTH.unpack(self._read(handle, _LENGTH.size))
        return self._read(handle + _LENGTH.size, length)

    def _read(self, start: int, length: int) -> bytes:
        parts = []
        while length:
            # One call reads at most 2 GiB, and may read less.
            part = os.pread(self._descriptor, length, start)
            if not part:
                raise OSError(f"the temporary file of older results ends at byte {start}")
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return b"".join(parts)


def _directory() -> str:
    try:
        return f" in {tempfile.gettempdir()}"
    except OSError:  # no directory can be written, which the error says, too
        return ""
