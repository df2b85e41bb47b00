"""The doorbell by which a worker tells the driver that there is something to fetch.

A bell costs the driver a call. So streamed results ring after a window in which more of them
gather; what the driver must act on rings at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dasktune.trainable.outbox import Urgency

__all__ = ["Bell"]


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
        self.window = 0.0
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
