"""Notifies the driver that a worker has messages to fetch, and batches streamed results.

A notification costs the driver a poll. So a streamed result notifies after a window in which more
of them gather; a message that the driver must act on notifies at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dasktune.trainable.reporting.outbox import Urgency

__all__ = ["Notifier"]


class Notifier:
    """Notifies at once or after a window, and not again before the driver has polled.

    A notification may be lost with its connection. The driver also polls without one, so a lost one
    delays messages by an interval of the driver and loses none.

    All methods are for the worker's event loop.

    Parameters
    ----------
    send : callable
        Sends a notification.
    call_later : callable
        ``call_later(seconds, function)`` starts a timer and returns its handle.
    cancel : callable
        Cancels a timer, given its handle.
    """

    def __init__(
        self,
        send: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], Any],
        cancel: Callable[[Any], None],
    ) -> None:
        #: Seconds from the first streamed result to the notification; the driver sets it.
        self.batch_window = 0.0
        self._send = send
        self._call_later = call_later
        self._cancel = cancel
        self._timer: Any = None
        self._is_pending = False

    def notify(self, urgency: Urgency) -> None:
        """Notify the driver, unless it has been notified already and has not polled."""
        if self._is_pending and urgency < Urgency.RETRY:
            return
        if urgency >= Urgency.NOW:
            self._send_now()
        elif self._timer is None:
            self._timer = self._call_later(self.batch_window, self._send_now)

    def on_poll(self) -> None:
        """Note that the driver polls: a message that comes from now on notifies again."""
        self._disarm()
        self._is_pending = False

    def _send_now(self) -> None:
        self._disarm()
        self._is_pending = True
        self._send()

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self._cancel(timer)
