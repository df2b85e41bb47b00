"""The worker's messages on their way to the driver: kept until the driver has them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import takewhile
from logging import getLogger

from dasktune.trainable.contents import Content, content_of, size_of
from dasktune.trainable.interrupt import TrialInterrupted
from dasktune.trainable.messages import Message

__all__ = ["Outbox", "Urgency"]

logger = getLogger(__name__)


class Urgency(IntEnum):
    """Why the bell rings; the higher, the sooner the driver should come."""

    #: There are results; a few more may be waited for.
    WHENEVER = 1
    #: There is something that the driver must act on.
    NOW = 2
    #: The outbox is half full, perhaps because the bell before got lost on its way.
    AGAIN = 3


class Outbox:
    """Messages in order, each kept until it is acknowledged; thread-safe.

    Parameters
    ----------
    ring : callable
        Called with an `Urgency` when there is news more urgent than what it last rang for;
        :meth:`collect` answers the bell. It runs in whatever thread puts the message and must
        return at once.
    max_messages : int, default=4096
        Unacknowledged messages with which the outbox is full: a bounded :meth:`put` waits.
    max_bytes : int, default=8 MiB
        Their bytes, roughly, with which it is full, too. A message is taken as long as it is not,
        so one of any size passes, and this and one message is the most that :meth:`collect`
        returns of what is bounded.
    """

    def __init__(
        self,
        ring: Callable[[Urgency], None],
        *,
        max_messages: int = 4096,
        max_bytes: int = 8 << 20,
    ) -> None:
        self._ring = ring
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        #: Number and content of each; what must be pickled is, in the thread that has the news.
        self._messages: deque[tuple[int, Content]] = deque()
        #: What `_messages` holds, roughly.
        self._bytes = 0
        self._next_seq = 1
        #: Messages and bytes since the last :meth:`collect`.
        self._news = [0, 0]
        #: The highest `Urgency` since then, 0 if the bell has not rung.
        self._rung = 0
        self._lifted = False
        #: Whether it has its last message.
        self._sealed = False
        #: Numbers of the messages that nobody may see yet, nor what comes after them.
        self._holds: deque[int] = deque()
        #: The highest `Urgency` of what is held.
        self._muffled = 0

    @property
    def has_news(self) -> bool:
        """Whether the bell has rung and nobody has come."""
        return self._rung > 0

    def put(
        self,
        make_message: Callable[[int], Message],
        *,
        bounded: bool = False,
        urgent: bool = True,
        held: bool = False,
    ) -> None:
        """Append the message that `make_message` makes of its sequence number.

        Parameters
        ----------
        make_message : callable
            Gets the number, from 1. It is called before anybody can collect the message. If it
            raises, there is no message.
        bounded : bool, default=False
            Wait while the outbox is full: back-pressure on whoever reports too fast.
        urgent : bool, default=True
            Whether the driver should come for it at once.
        held : bool, default=False
            Whether to show it, and what comes after it, only when it is released.

        Raises
        ------
        TrialInterrupted
            If it was sealed.
        """
        with self._changed:
            while bounded and not self._has_room():
                # The driver may have come and made no room: it must come again.
                self._ring_for(Urgency.WHENEVER)
                self._changed.wait()
            if self._sealed:
                raise TrialInterrupted
            seq = self._next_seq
            self._append(seq, content_of(make_message(seq)))
            if held:
                self._holds.append(seq)
            urgency = self._urgency(urgent)
            if self._holds:
                self._muffled = max(self._muffled, urgency)
            else:
                self._ring_for(urgency)

    def seal(self, make_message: Callable[[int], Message]) -> None:
        """Append the last message at once: what is held goes, and nothing comes after it.

        Parameters
        ----------
        make_message : callable
            As for :meth:`put`.
        """
        with self._changed:
            seq = self._holds[0] if self._holds else self._next_seq
            last = content_of(make_message(seq))
            if self._holds:
                self._drop_held()
            self._append(seq, last)
            self._sealed = self._lifted = True
            self._changed.notify_all()
            self._ring_for(Urgency.NOW)

    def release(self) -> None:
        """Show the oldest message that is held, and what follows it up to the next such one."""
        with self._changed:
            if self._sealed:
                return
            self._holds.popleft()
            urgency = self._muffled
            if not self._holds:
                self._muffled = 0
            self._ring_for(urgency)

    def withdraw(self) -> None:
        """Drop the oldest message that is held and all that comes after it: nobody has seen it."""
        with self._changed:
            if not self._sealed:
                self._drop_held()
                self._changed.notify_all()

    def extend(self, entries: Sequence[tuple[int, Content]], *, urgent: bool) -> None:
        """Append messages that another outbox has numbered: the next ones, in order.

        Parameters
        ----------
        entries : sequence of (int, bytes or dict)
            At least one.
        urgent : bool
            Whether the driver should come for them at once.
        """
        with self._changed:
            for seq, content in entries:
                self._append(seq, content)
            self._ring_for(self._urgency(urgent))

    def collect(self, ack: int, have: int) -> list[tuple[int, Content]]:
        """Forget what the driver has for good, and return what it has not seen.

        Parameters
        ----------
        ack : int
            Every message up to this number is dropped.
        have : int
            Every kept message after this number is returned, up to the first one that is held. A
            message is returned again until it is acknowledged, because an answer may get lost on
            its way.
        """
        with self._changed:
            self._rung, self._news = 0, [0, 0]
            while self._messages and self._messages[0][0] <= ack:
                self._bytes -= size_of(self._messages.popleft()[1])
            self._changed.notify_all()
            # From the end: there may be thousands that wait for their acknowledgement.
            fresh = [*takewhile(lambda entry: entry[0] > have, reversed(self._messages))]
            if self._holds:
                fresh = [entry for entry in fresh if entry[0] < self._holds[0]]
        return fresh[::-1]

    def lift_bound(self) -> None:
        """Let everybody through who waits for room, now and later: the trial is to end."""
        with self._changed:
            self._lifted = True
            self._changed.notify_all()

    def _drop_held(self) -> None:
        first = self._holds[0]
        while self._messages and self._messages[-1][0] >= first:
            self._bytes -= size_of(self._messages.pop()[1])
        self._next_seq = first
        self._holds.clear()
        self._muffled = 0

    def _append(self, seq: int, content: Content) -> None:
        size = size_of(content)
        self._messages.append((seq, content))
        self._next_seq = seq + 1
        self._bytes += size
        self._news[0] += 1
        self._news[1] += size

    def _has_room(self) -> bool:
        full = len(self._messages) >= self._max_messages or self._bytes >= self._max_bytes
        return self._lifted or not full

    def _urgency(self, urgent: bool) -> Urgency:
        messages, size = self._news
        if 2 * messages > self._max_messages or 2 * size > self._max_bytes:
            return Urgency.AGAIN
        return Urgency.NOW if urgent else Urgency.WHENEVER

    def _ring_for(self, urgency: int) -> None:
        if urgency <= self._rung:
            return
        self._rung = urgency
        try:
            self._ring(Urgency(urgency))
        except Exception:
            # The driver also polls without a bell, so a broken one costs time and not the trial.
            logger.warning("The doorbell to the driver failed; it will poll.", exc_info=True)
