"""The report timeout: detects user code that has reported nothing for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: How many times per limit the thread checks while the time does not count.
_CHECKS: Final = 10


class ReportTimeout:
    """Measures the time of user code since its last result, and calls back once at the limit.

    As a context manager it does not count the time inside the ``with`` block; blocks may overlap,
    in different threads. Without a limit it does nothing.

    Parameters
    ----------
    limit : float or None
        Seconds.
    on_timeout : callable
        Called at the limit, in the thread of this object, with the identity of the thread that
        called :meth:`start`.
    timer : callable, default=time.monotonic
        Seconds since any fixed moment.
    wait : callable, optional
        Called with the seconds until the next check. Waits for them, and returns whether
        :meth:`close` was called meanwhile. By default it waits in real time.
    """

    # The thread decides under the lock that the limit is over, and calls back without it. So a
    # result, or the end of user code, may come between the two. The callback runs anyway:
    # the result was late. If the trial has already chosen its last message, the callback changes
    # nothing; otherwise the trial fails with the timeout.

    def __init__(
        self,
        limit: float | None,
        on_timeout: Callable[[int], None],
        *,
        timer: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._limit = limit
        self._on_timeout = on_timeout
        self._timer = timer
        #: Called with the seconds to the next check, before waiting for it. If a call is late,
        #: something keeps all Python threads of this process from running.
        self.on_check: Callable[[float], None] = lambda seconds: None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._wait = self._closed.wait if wait is None else wait
        self._elapsed = 0.0
        self._since = 0.0
        self._pauses = 0
        self._watched = 0

    def start(self) -> None:
        """Start counting for the calling thread."""
        if self._limit is not None:
            self._watched = threading.get_ident()
            self._since = self._timer()
            threading.Thread(target=self._watch, name="dasktune-watchdog", daemon=True).start()

    def reset(self) -> None:
        """Count from now on: there is a result."""
        if self._limit is not None:
            with self._lock:
                self._elapsed, self._since = 0.0, self._timer()

    def close(self) -> None:
        """Stop counting."""
        self._closed.set()

    def __enter__(self) -> None:
        if self._limit is not None:
            with self._lock:
                if self._pauses == 0:
                    self._elapsed += self._timer() - self._since
                self._pauses += 1

    def __exit__(self, *raised: object) -> None:
        if self._limit is not None:
            with self._lock:
                self._pauses -= 1
                self._since = self._timer()

    def _watch(self) -> None:
        while (left := self._seconds_to_check()) > 0:
            self.on_check(left)
            if self._wait(left):
                return
        self._on_timeout(self._watched)

    def _seconds_to_check(self) -> float:
        """Return the seconds to the next check; 0 if the limit is over."""
        assert self._limit is not None
        with self._lock:
            if self._pauses:
                return max(self._limit - self._elapsed, self._limit / _CHECKS)
            return max(0.0, self._limit - self._elapsed - (self._timer() - self._since))
