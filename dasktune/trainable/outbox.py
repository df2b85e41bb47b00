"""The worker's messages on their way to the driver: kept until the driver has them."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from logging import getLogger

import cloudpickle

from dasktune.trainable.messages import Message

__all__ = ["Outbox"]

logger = getLogger(__name__)


class Outbox:
    """Messages in order, each kept until it is acknowledged; thread-safe.

    Parameters
    ----------
    ring : callable
        Called without arguments when there is news and the last bell has been answered by
        :meth:`collect`. It runs in whatever thread puts the message and should return at once.
    max_messages : int, default=4096
        Unacknowledged messages beyond which a bounded :meth:`put` blocks.
    """

    def __init__(self, ring: Callable[[], None], *, max_messages: int = 4096) -> None:
        self._ring = ring
        self._max_messages = max_messages
        self._changed = threading.Condition()
        #: Number and pickle of each. They are pickled one by one, in the thread that has the news:
        #: one that the driver cannot read costs only itself, and the event loop has nothing to do.
        self._messages: deque[tuple[int, bytes]] = deque()
        self._next_seq = 1
        self._rung = False
        self._lifted = False

    def put(self, make_message: Callable[[int], Message], *, bounded: bool = False) -> None:
        """Append the message that `make_message` makes of its sequence number.

        Parameters
        ----------
        make_message : callable
            Gets the number, from 1. It is called before anybody can collect the message.
        bounded : bool, default=False
            Wait while the outbox is full: back-pressure on whoever reports too fast.
        """
        with self._changed:
            if bounded:
                self._changed.wait_for(self._has_room)
            message = make_message(self._next_seq)
            self._messages.append((self._next_seq, _pickled(message)))
            self._next_seq += 1
            ring, self._rung = not self._rung, True
        if ring:
            self._ring_the_bell()

    def extend(self, entries: Sequence[tuple[int, bytes]]) -> None:
        """Append messages that another outbox has numbered and pickled: the next ones, in order.

        Parameters
        ----------
        entries : sequence of (int, bytes)
            At least one.
        """
        with self._changed:
            self._messages.extend(entries)
            self._next_seq = entries[-1][0] + 1
            ring, self._rung = not self._rung, True
        if ring:
            self._ring_the_bell()

    def collect(self, ack: int, have: int) -> list[tuple[int, bytes]]:
        """Forget what the driver has for good, and return what it has not seen.

        Parameters
        ----------
        ack : int
            Every message up to this number is dropped.
        have : int
            Every kept message after this number is returned. A message is returned again until it
            is acknowledged, because an answer may get lost on its way.
        """
        with self._changed:
            self._rung = False
            while self._messages and self._messages[0][0] <= ack:
                self._messages.popleft()
            self._changed.notify_all()
            # From the end: there may be thousands that wait for their acknowledgement.
            fresh = [*takewhile(lambda entry: entry[0] > have, reversed(self._messages))]
        return fresh[::-1]

    def lift_bound(self) -> None:
        """Let everybody through who waits for room, now and later: the trial is to end."""
        with self._changed:
            self._lifted = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._lifted or len(self._messages) < self._max_messages

    def _ring_the_bell(self) -> None:
        try:
            self._ring()
        except Exception:
            # The driver also polls without a bell, so a broken one costs time and not the trial.
            logger.warning("The doorbell to the driver failed; it will poll.", exc_info=True)


def _pickled(message: Message) -> bytes:
    """Pickle a message; nearly all are plain data, on which cloudpickle spends far more time."""
    try:
        return pickle.dumps(message)
    except Exception:
        blob: bytes = cloudpickle.dumps(message)
        return blob
