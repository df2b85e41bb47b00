"""Notices that user code waits too long in the rendezvous of its training package.

A package waits there for up to half an hour, and without a limit for results nothing else would
find that. Other code may take as long, such as a download on rank 0 for which the other ranks wait,
so only the time in these functions counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Final

#: The functions in which packages wait for all ranks: ends of their files, and names. Lightning,
#: Accelerate and Transformers call that of PyTorch.
_FUNCTIONS: Final = (
    ("/torch/distributed/distributed_c10d.py", "init_process_group"),
    ("/jax/_src/distributed.py", "initialize"),
)


def is_in_rendezvous(stacks: str) -> bool:
    """Whether a thread is in a rendezvous, by the stacks that `faulthandler` has written.

    Parameters
    ----------
    stacks : str
        The stacks of a process.

    Examples
    --------
    >>> is_in_rendezvous('  File "/jax/_src/distributed.py", line 3 in initialize')
    True
    """
    lines = stacks.splitlines()
    return any(
        f'{file}", line ' in line and line.endswith(f" in {name}")
        for line in lines
        for file, name in _FUNCTIONS
    )


class RendezvousWatch:
    """Measures how long user code has been in a rendezvous without interruption.

    Parameters
    ----------
    limit : float, optional
        Seconds that it may be; without a limit nothing is measured.
    timer : callable, default=time.monotonic
        Returns seconds.
    """

    # One thread, that of the rank's connection, looks at each ping. A rank that leaves a rendezvous
    # and enters another one between two looks seems to have stayed in the first. The limit then
    # counts for both together.

    def __init__(self, limit: float | None, timer: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._timer = timer
        self._since: float | None = None

    def look(self, frames: Iterable[FrameType]) -> bool:
        """Look at the newest frame of each thread; return whether one waits for too long.

        Parameters
        ----------
        frames : iterable of frame
            As in the values of ``sys._current_frames()``.
        """
        if self._limit is None:
            return False
        if not any(map(_is_waiting, frames)):
            self._since = None
            return False
        now = self._timer()
        if self._since is None:
            self._since = now
        return now - self._since >= self._limit


def _is_waiting(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if any(code.co_name == name and code.co_filename.endswith(file) for file, name in _FUNCTIONS):
            return True
        frame = frame.f_back
    return False
