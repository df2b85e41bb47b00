"""Whether a worker is in touch with its driver, which is what it needs to commit a checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Contact"]


class Contact:
    """Notes the driver's calls; thread-safe.

    A process that was stopped finds calls in its buffers that the driver made long ago, perhaps
    before it gave the worker up. So the first call after a long silence proves nothing: only one
    with a higher number does, because the driver numbers its calls, repeats a call under the same
    number, and makes the next one when the last was answered.

    Parameters
    ----------
    limit : float
        Seconds of silence after which the driver counts as out of touch.
    timer : callable, default=time.monotonic
        Seconds since any fixed moment.
    """

    def __init__(self, limit: float, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._timer = timer
        self._changed = threading.Condition()
        self._heard = timer()
        #: Number of a call that may be an old one; those up to it prove nothing.
        self._doubtful = -1
        self._number = 0

    @property
    def silence(self) -> float:
        """Seconds since the last call, whatever it proves."""
        return self._timer() - self._heard

    def hear(self, number: int) -> None:
        """Note a call of the driver.

        Parameters
        ----------
        number : int
            The driver's number of the call; repeated calls repeat it.
        """
        with self._changed:
            if self.silence > self._limit:
                self._doubtful = number
            self._heard, self._number = self._timer(), number
            self._changed.notify_all()

    def renew(self, number: int) -> None:
        """Begin anew with a call before which there was no reason for any."""
        with self._changed:
            self._heard, self._number, self._doubtful = self._timer(), number, -1
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait for a call that proves something, `limit` seconds at most, and say if it came.

        A worker that held the interpreter for long has heard nothing through no fault of the
        driver's, so it is not given up without a chance to hear from it.
        """
        with self._changed:
            return self._changed.wait_for(self._is_fresh, timeout=self._limit)

    def _is_fresh(self) -> bool:
        return self.silence < self._limit and self._number > self._doubtful
