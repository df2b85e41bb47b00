"""Keeps the messages of a trial to the driver until the driver acknowledges them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import takewhile
from logging import getLogger

from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.encoding import Content, encode, size_of
from dasktune.trainable.reporting.trial_messages import Message

logger = getLogger(__name__)


class Urgency(IntEnum):
    """How soon the driver should collect; a higher value means sooner."""

    #: There are results; the driver may wait for a few more.
    LAZY = 1
    #: The driver must act on a message.
    NOW = 2
    #: The outbox is half full, perhaps because an earlier notification was lost.
    RETRY = 3


class Outbox:
    """Messages in order, each kept until the driver acknowledges it; thread-safe.

    Parameters
    ----------
    notify : callable
        Called with an `Urgency` when a message is more urgent than the last notification.
        :meth:`collect` resets it. It runs under the outbox's lock, in the thread that puts the
        message, and must return at once.
    max_messages : int, default=4096
        Number of unacknowledged messages at which the outbox is full: a bounded :meth:`put` waits.
    max_bytes : int, default=8 MiB
        Approximate size of the unacknowledged messages at which the outbox is full. While it is not
        full, it accepts a message of any size. So its bounded messages exceed this size by at most
        one message.
    """

    # The reporting thread and the trial's thread call `put`; the uploader's thread calls `release`
    # and `withdraw`; the worker's event loop `collect`; the report timeout's thread `close_with`.
    # Every method holds the one lock from its first read to its notification, so calls run one
    # after the other. The orders that matter:
    #
    # - put, then collect: the notification comes before the message can be collected. A collect in
    #   between resets `_notified`, and the next put notifies again. So no message waits without a
    #   notification that is newer than the last collect.
    # - The last message is put once: by the trial's thread or by `close_with`. The second call
    #   finds the run finished, or the outbox closed, and raises TrialInterrupted.
    # - close_with while an upload is running: the held messages are dropped and the last one gets
    #   the number of the first of them. The driver never saw those numbers. The release that comes
    #   later finds the outbox closed and does nothing.
    #
    # The lock is reentrant: the notification of a child process calls `collect` inside `put`.

    def __init__(
        self, notify: Callable[[Urgency], None], *, max_messages: int = 4096, max_bytes: int = 8 << 20
    ) -> None:
        self._notify = notify
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        #: Number and content of each message. The thread that puts a message also pickles it.
        self._messages: deque[tuple[int, Content]] = deque()
        #: Approximate size of `_messages`.
        self._bytes = 0
        self._next_seq = 1
        #: Count and bytes of the messages since the last :meth:`collect`.
        self._uncollected = [0, 0]
        #: The highest `Urgency` notified since the last :meth:`collect`; 0 without a notification.
        self._notified = 0
        self._unbounded = False
        #: Whether the last message was put.
        self._closed = False
        #: Numbers of the held messages. Neither they nor later messages are collected yet.
        self._held: deque[int] = deque()
        #: The highest `Urgency` of the held messages and those behind them.
        self._held_urgency = 0

    @property
    def is_notified(self) -> bool:
        """Whether a notification is pending: the driver has not collected since."""
        return self._notified > 0

    def put(
        self,
        make_message: Callable[[int], Message],
        *,
        bounded: bool = False,
        urgent: bool = True,
        held: bool = False,
    ) -> None:
        """Append a message, which `make_message` builds from its sequence number.

        Parameters
        ----------
        make_message : callable
            Called under the lock with the sequence number, from 1. The driver cannot collect the
            message before it returns. If it raises, no message is appended.
        bounded : bool, default=False
            Wait while the outbox is full, so that user code cannot report faster than the driver
            collects.
        urgent : bool, default=True
            Whether the driver should collect the message at once.
        held : bool, default=False
            Whether to hold the message, and all later ones, until :meth:`release`.

        Raises
        ------
        TrialInterrupted
            If the outbox was closed.
        """
        with self._changed:
            while bounded and not self._has_room():
                # The driver may have collected without acknowledging: it must collect again.
                self._notify_if_more_urgent(Urgency.LAZY)
                self._changed.wait()
            if self._closed:
                raise TrialInterrupted
            seq = self._next_seq
            self._append(seq, encode(make_message(seq)))
            if held:
                self._held.append(seq)
            urgency = self._urgency(urgent)
            if self._held:
                self._held_urgency = max(self._held_urgency, urgency)
            else:
                self._notify_if_more_urgent(urgency)

    def close_with(self, make_message: Callable[[int], Message]) -> None:
        """Drop the held messages, append the last message at once, and refuse later ones.

        Parameters
        ----------
        make_message : callable
            As for :meth:`put`.
        """
        with self._changed:
            seq = self._held[0] if self._held else self._next_seq
            last = encode(make_message(seq))
            if self._held:
                self._drop_held()
            self._append(seq, last)
            self._closed = self._unbounded = True
            self._changed.notify_all()
            self._notify_if_more_urgent(Urgency.NOW)

    def release(self, message: Message | None = None) -> None:
        """Release the oldest held message, and those after it up to the next held one.

        Parameters
        ----------
        message : Message, optional
            Takes the place of the held one, which was never collected; it has the same number.
        """
        with self._changed:
            if self._closed:
                return
            seq = self._held.popleft()
            if message is not None:
                self._replace(seq, encode(message))
            urgency = self._held_urgency
            if not self._held:
                self._held_urgency = 0
            self._notify_if_more_urgent(urgency)

    def withdraw(self) -> None:
        """Drop the oldest held message and all later ones; none of them was ever collected."""
        with self._changed:
            if not self._closed:
                self._drop_held()
                self._changed.notify_all()

    def extend(self, entries: Sequence[tuple[int, Content]], *, urgent: bool) -> None:
        """Append messages in the order and with the numbers of a child process's outbox.

        Parameters
        ----------
        entries : sequence of (int, bytes or dict)
            Number and content of each message; at least one message.
        urgent : bool
            Whether the driver should collect them at once.
        """
        with self._changed:
            for seq, content in entries:
                self._append(seq, content)
            self._notify_if_more_urgent(self._urgency(urgent))

    def collect(self, ack: int, received: int) -> list[tuple[int, Content]]:
        """Drop the acknowledged messages, and return those that the driver has not received.

        Parameters
        ----------
        ack : int
            Every message up to this number is dropped: it is in the driver's journal.
        received : int
            Every kept message after this number is returned, up to the first held one. If the
            driver did not get the result of a call, it repeats the number of that call: so a
            message stays here until it is acknowledged.
        """
        with self._changed:
            self._notified, self._uncollected = 0, [0, 0]
            while self._messages and self._messages[0][0] <= ack:
                self._bytes -= size_of(self._messages.popleft()[1])
            self._changed.notify_all()
            # Search from the end: thousands of messages may wait for their acknowledgement.
            fresh = [*takewhile(lambda entry: entry[0] > received, reversed(self._messages))]
            if self._held:
                fresh = [entry for entry in fresh if entry[0] < self._held[0]]
        return fresh[::-1]

    def lift_bound(self) -> None:
        """Let no put wait for room, now or later: the trial was ordered to end."""
        with self._changed:
            self._unbounded = True
            self._changed.notify_all()

    def _drop_held(self) -> None:
        first = self._held[0]
        while self._messages and self._messages[-1][0] >= first:
            self._bytes -= size_of(self._messages.pop()[1])
        self._next_seq = first
        self._held.clear()
        self._held_urgency = 0

    def _append(self, seq: int, content: Content) -> None:
        size = size_of(content)
        self._messages.append((seq, content))
        self._next_seq = seq + 1
        self._bytes += size
        self._uncollected[0] += 1
        self._uncollected[1] += size

    def _replace(self, seq: int, content: Content) -> None:
        # The numbers are consecutive, and no held message was acknowledged.
        index = seq - self._messages[0][0]
        growth = size_of(content) - size_of(self._messages[index][1])
        self._messages[index] = seq, content
        self._bytes += growth
        self._uncollected[1] += growth

    def _has_room(self) -> bool:
        full = len(self._messages) >= self._max_messages or self._bytes >= self._max_bytes
        return self._unbounded or not full

    def _urgency(self, urgent: bool) -> Urgency:
        messages, size = self._uncollected
        if 2 * messages > self._max_messages or 2 * size > self._max_bytes:
            return Urgency.RETRY
        return Urgency.NOW if urgent else Urgency.LAZY

    def _notify_if_more_urgent(self, urgency: int) -> None:
        if urgency <= self._notified:
            return
        self._notified = urgency
        try:
            self._notify(Urgency(urgency))
        except Exception:
            # The driver also polls without notifications, so this costs time and not the trial.
            logger.warning("could not notify the driver; it polls now and then", exc_info=True)
