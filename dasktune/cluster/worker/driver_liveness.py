"""Tracks whether a worker is in contact with its driver, which it needs to commit checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class DriverLiveness:
    """Tracks the driver's calls; thread-safe.

    A process that was suspended finds calls in its buffers that the driver made long ago, perhaps
    before it marked the worker lost. So the first call after a long silence does not prove contact.
    A later call with a higher number does: the driver makes the next call only after the previous
    one was answered, and a repeated call keeps its number.

    The worker's event loop notes the calls. The threads of trials wait in
    :meth:`wait_until_alive` before a commit. The condition's lock makes each change visible as a
    whole; `silence` reads one value without it.

    Parameters
    ----------
    limit : float
        Seconds of silence after which contact counts as lost.
    timer : callable, default=time.monotonic
        Returns seconds on any monotonic clock.
    """

    def __init__(self, limit: float, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._timer = timer
        self._changed = threading.Condition()
        self._called_at = timer()
        #: Number of the first call after a long silence, which may be old. Calls up to this number
        #: do not prove contact.
        self._suspect_number = -1
        self._number = 0

    @property
    def silence(self) -> float:
        """Seconds since the last call arrived, even if it was made long before."""
        return self._timer() - self._called_at

    def on_call(self, number: int) -> None:
        """Record a call of the driver.

        Parameters
        ----------
        number : int
            The number of the call; repeated calls have the same number.
        """
        with self._changed:
            if self.silence > self._limit:
                self._suspect_number = number
            self._called_at, self._number = self._timer(), number
            self._changed.notify_all()

    def reset(self, number: int) -> None:
        """Record a call after a time in which no call was due; it proves contact in any case."""
        with self._changed:
            self._called_at, self._number, self._suspect_number = self._timer(), number, -1
            self._changed.notify_all()

    def wait_until_alive(self) -> bool:
        """Wait up to `limit` seconds for a call that proves contact; return whether one came.

        If user code has held the interpreter's lock for long, calls wait to be read. The event loop
        reads them during this wait.
        """
        with self._changed:
            return self._changed.wait_for(self._is_fresh, timeout=self._limit)

    def _is_fresh(self) -> bool:
        return self.silence < self._limit and self._number > self._suspect_number
