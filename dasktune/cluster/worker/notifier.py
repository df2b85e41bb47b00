"""Notifies the driver that a worker has messages to fetch, and batches streamed results.

The driver polls the worker after each notification. To save polls, the notification of a streamed
result waits for a time window, in which more results may arrive. A message that the driver must act
on is notified at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dasktune.trainable.reporting.outbox import Urgency


class Notifier:
    """Notifies the driver at once or after a window, and not again before the driver has polled.

    A notification may be lost when a connection breaks. The driver also polls at regular intervals,
    so messages are then late by one interval at most, and none is lost.

    All methods must be called on the worker's event loop.

    Parameters
    ----------
    send : callable
        Sends a notification.
    call_later : callable
        ``call_later(seconds, function)`` starts a timer and returns its handle.
    cancel : callable
        ``cancel(handle)`` cancels a timer.
    """

    def __init__(
        self,
        send: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], Any],
        cancel: Callable[[Any], None],
    ) -> None:
        #: Seconds from the first streamed result to the notification, as set by each poll.
        self.batch_window = 0.0
        self._send = send
        self._call_later = call_later
        self._cancel = cancel
        self._timer: Any = None
        #: Whether a notification was sent since the last poll.
        self._is_pending = False

    def notify(self, urgency: Urgency) -> None:
        """Notify the driver, unless a notification was sent since its last poll.

        ``Urgency.RETRY`` always notifies, because that notification may have been lost.
        """
        if self._is_pending and urgency < Urgency.RETRY:
            return
        if urgency >= Urgency.NOW:
            self._send_now()
        elif self._timer is None:
            self._timer = self._call_later(self.batch_window, self._send_now)

    def on_poll(self) -> None:
        """Note that the driver polls: the next message notifies again."""
        self._cancel_timer()
        self._is_pending = False

    def _send_now(self) -> None:
        self._cancel_timer()
        self._is_pending = True
        self._send()

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self._cancel(timer)
