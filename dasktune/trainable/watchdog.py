"""Notices user code that has not come to a result for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Watchdog"]

#: How many looks it takes at a trial that is paused, within its limit.
_LOOKS: Final = 10


class Watchdog:
    """Counts the seconds of user code since its last result, and says once that they are too many.

    As a context manager it does not count inside the ``with`` block; blocks may overlap, in
    different threads. Without a limit it does nothing.

    Parameters
    ----------
    limit : float or None
        Seconds.
    on_hang : callable
        Called when they are over, in a thread of the watchdog, with the identity of the thread that
        has started it.
    timer : callable, default=time.monotonic
        Seconds since any fixed moment.
    """

    def __init__(
        self,
        limit: float | None,
        on_hang: Callable[[int], None],
        *,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._on_hang = on_hang
        self._timer = timer
        #: Called with the seconds to its next look, before it waits for that. If it comes late,
        #: something keeps all threads of this process from running.
        self.on_look: Callable[[float], None] = lambda seconds: None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._spent = 0.0
        self._since = 0.0
        self._pauses = 0
        self._watched = 0

    def start(self) -> None:
        """Begin to count; the calling thread is the one that is watched."""
        if self._limit is not None:
            self._watched = threading.get_ident()
            self._since = self._timer()
            threading.Thread(target=self._watch, name="dasktune-watchdog", daemon=True).start()

    def renew(self) -> None:
        """There is a result: count from now on."""
        if self._limit is not None:
            with self._lock:
                self._spent, self._since = 0.0, self._timer()

    def close(self) -> None:
        """Do not watch any more."""
        self._over.set()

    def __enter__(self) -> None:
        if self._limit is not None:
            with self._lock:
                if self._pauses == 0:
                    self._spent += self._timer() - self._since
                self._pauses += 1

    def __exit__(self, *raised: object) -> None:
        if self._limit is not None:
            with self._lock:
                self._pauses -= 1
                self._since = self._timer()

    def _watch(self) -> None:
        while (left := self._left()) > 0:
            self.on_look(left)
            if self._over.wait(left):
                return
        self._on_hang(self._watched)

    def _left(self) -> float:
        """Return the seconds to the next look; 0 if the time is over."""
        assert self._limit is not None
        with self._lock:
            if self._pauses:
                return max(self._limit - self._spent, self._limit / _LOOKS)
            return max(0.0, self._limit - self._spent - (self._timer() - self._since))
