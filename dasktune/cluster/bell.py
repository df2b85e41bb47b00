"""The doorbell by which a slot tells the driver that there is something to fetch.

A bell costs the driver a call. So streamed results ring after a window in which more of them
gather; what the driver must act on rings at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dasktune.trainable.outbox import Urgency

__all__ = ["SHORTEST_WINDOW", "Bell", "collection_window"]

#: Seconds. Results of one trial alone are not fetched more often than this.
SHORTEST_WINDOW: Final = 0.01

#: What the driver spends on one call, in seconds, with several trials of a worker in one.
_CALL_COST: Final = 1e-4

#: Share of the driver's core that may go to such calls.
_SHARE: Final = 0.1


def collection_window(trials: int) -> float:
    """Return for how many seconds results are to gather while so many trials run.

    Each running trial may call the driver once in this time, so it grows with their number.

    Examples
    --------
    >>> [collection_window(trials) for trials in (1, 10, 1_000, 10_000)]
    [0.01, 0.01, 1.0, 10.0]
    """
    return max(SHORTEST_WINDOW, trials * _CALL_COST / _SHARE)


class Bell:
    """Rings at once or after a window, and not again before the driver has come.

    All methods are for the worker's event loop.

    Parameters
    ----------
    send : callable
        Rings.
    call_later : callable
        Takes seconds and a function to be called then; returns a handle.
    cancel : callable
        Takes such a handle.
    """

    def __init__(
        self,
        send: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], Any],
        cancel: Callable[[Any], None],
    ) -> None:
        #: Seconds from the first streamed result to the bell; the driver sets it.
        self.window = SHORTEST_WINDOW
        self._send = send
        self._call_later = call_later
        self._cancel = cancel
        self._timer: Any = None
        self._is_rung = False

    def ring(self, urgency: Urgency) -> None:
        """Call the driver; it may have been called already."""
        if self._is_rung and urgency < Urgency.AGAIN:
            return
        if urgency >= Urgency.NOW:
            self._ring_now()
        elif self._timer is None:
            self._timer = self._call_later(self.window, self._ring_now)

    def answered(self) -> None:
        """Note that the driver has come: the next news rings again."""
        self._disarm()
        self._is_rung = False

    def _ring_now(self) -> None:
        self._disarm()
        self._is_rung = True
        self._send()

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self._cancel(timer)
