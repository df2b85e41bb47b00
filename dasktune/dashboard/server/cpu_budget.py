"""Limit the processor time that the dashboard takes from a driver in the same process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

#: The rest of this process counts as busy if it uses more than this share of a core.
_BUSY: Final = 0.4
#: The share of the time for applying records while the process is busy; about a thousand a second.
_SHARE: Final = 0.01
#: The same share while a viewer waits for its first page.
_HURRY_SHARE: Final = 0.15
#: The factor for the time of figures while the process is busy.
_CONTENDED_FIGURES: Final = 0.125


class CpuBudget:
    """Measures the processor time of the dashboard, and computes how long it must pause.

    Threads of a process share the interpreter lock, so the dashboard's work delays a driver that is
    busy. While the driver waits for its trials, the dashboard delays nothing.

    `measured` may be used by several threads at once. Only the server's loop, or one publisher,
    calls `pause_seconds`; other threads read `is_contended`, where an old value does no harm.

    Parameters
    ----------
    clock : callable, default=time.monotonic
        Returns seconds.
    used : callable, default=time.process_time
        Returns the processor seconds of all threads of this process.
    own : callable, default=time.thread_time
        Returns the processor seconds of the calling thread.

    Examples
    --------
    >>> now = iter([0.0, 10.0])
    >>> used = iter([0.0, 6.0])  # of which the dashboard has worked 1 s
    >>> own = iter([0.0, 1.0])
    >>> pace = CpuBudget(now.__next__, used.__next__, own.__next__)
    >>> with pace.measured():
    ...     pass
    >>> round(pace.pause_seconds())
    99
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
        own: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._used, self._own = clock, used, own
        self._lock = Lock()
        #: Processor seconds of the dashboard since the last `pause_seconds`.
        self._worked = 0.0
        self._looked = clock(), used()
        #: Whether other threads need the processor.
        self.is_contended = False

    @property
    def figure_share(self) -> float:
        """The factor for the time that figures may take now."""
        return _CONTENDED_FIGURES if self.is_contended else 1.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count the calling thread's work inside the context as the dashboard's."""
        began = self._own()
        try:
            yield
        finally:
            self.count(self._own() - began)

    def count(self, seconds: float) -> None:
        """Count processor seconds as the dashboard's."""
        with self._lock:
            self._worked += seconds

    def pause_seconds(self, more: float = 0.0, *, hurry: bool = False) -> float:
        """Return the seconds that the dashboard must pause for its work since the last call.

        Parameters
        ----------
        more : float, default=0.0
            Seconds of work that :meth:`measured` has not counted.
        hurry : bool, default=False
            Whether a viewer waits for its first page.
        """
        now, used = self._clock(), self._used()
        (then, before), self._looked = self._looked, (now, used)
        with self._lock:
            worked, self._worked = self._worked + more, 0.0
        self.is_contended = used - before - worked > _BUSY * (now - then)
        share = _HURRY_SHARE if hurry else _SHARE
        return worked * (1 / share - 1) if self.is_contended else 0.0
