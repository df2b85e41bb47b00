"""How much of the processor the dashboard takes from a driver in the same process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

__all__ = ["Pace"]

#: Share of a core that the rest of this process uses when it must not be held up.
_BUSY: Final = 0.4
#: Of the time, the share for which records are taken in then; a thousand a second or so.
_SHARE: Final = 0.01
#: The same for somebody who waits to see anything at all.
_HASTE: Final = 0.15
#: By how much less is drawn then.
_THRIFT: Final = 0.125


class Pace:
    """Tells work that can wait how long it has to.

    Threads of a process take turns. So what the dashboard works is lost to a driver that has much
    to do, and to nobody while the driver waits for its trials.

    Parameters
    ----------
    clock : callable, default=time.monotonic
        Gives seconds.
    used : callable, default=time.process_time
        Gives the processor's seconds that all threads of this process have used.
    own : callable, default=time.thread_time
        Gives those that the calling thread has used.

    Examples
    --------
    >>> now = iter([0.0, 10.0])
    >>> used = iter([0.0, 6.0])  # of which the dashboard has worked 1 s
    >>> own = iter([0.0, 1.0])
    >>> pace = Pace(now.__next__, used.__next__, own.__next__)
    >>> with pace.working():
    ...     pass
    >>> round(pace.rest())
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
        #: Seconds that the dashboard has worked since the last look.
        self._worked = 0.0
        self._looked = clock(), used()
        #: Whether somebody else needs the processor.
        self.is_tight = False

    @property
    def thrift(self) -> float:
        """The share of what may be drawn otherwise."""
        return _THRIFT if self.is_tight else 1.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count what the calling thread works meanwhile as the dashboard's."""
        began = self._own()
        try:
            yield
        finally:
            with self._lock:
                self._worked += self._own() - began

    def rest(self, more: float = 0.0, *, hurry: bool = False) -> float:
        """Return the seconds to wait, after what has been worked since this was asked last.

        Parameters
        ----------
        more : float, default=0.0
            Seconds of work that :meth:`working` has not counted.
        hurry : bool, default=False
            Whether somebody waits.
        """
        now, used = self._clock(), self._used()
        (then, before), self._looked = self._looked, (now, used)
        with self._lock:
            worked, self._worked = self._worked + more, 0.0
        self.is_tight = used - before - worked > _BUSY * (now - then)
        share = _HASTE if hurry else _SHARE
        return worked * (1 / share - 1) if self.is_tight else 0.0
