"""Blocks user code at milestones until the driver answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from dasktune.trainable.reporting.trial_messages import (
    Answer,
    CheckpointRequest,
    ContinueAnswer,
    NoticeAnswer,
    Order,
    PauseAnswer,
    SaveAnswer,
    StopAnswer,
)
from dasktune.trial.milestone import Milestone, reached


class MilestoneGate:
    """Decides which results are milestones, and blocks user code there until the driver answers.

    Thread-safe: the worker's event loop passes answers to :meth:`answer`, and the reporting thread
    blocks in :meth:`wait`.

    Parameters
    ----------
    milestones : tuple of Milestone
        The milestones until the driver's first answer, which contains new ones. With an empty tuple
        user code never waits.
    timer : callable, default=time.monotonic
        Returns seconds on a monotonic clock, for the time that a notice leaves.
    """

    # The reporting thread calls `expect` under the outbox's lock, before the event loop can collect
    # the result. So the driver's answer always finds its number in `_expected`. A late or repeated
    # answer has another number, or `_expected` is 0: it is ignored. An order to pause or stop takes
    # precedence over an answer, whichever arrives first. `order` is read without the lock. It only
    # changes from None to Pause to Stop, so a thread that reads an outdated value obeys the order
    # at its next result. A request for a checkpoint may arrive at any time, also while user code
    # waits. It neither ends the wait nor gets lost: its number stays until the reporting thread
    # takes it, before the next result or right after the wait. A notice does not end the wait
    # either: the driver decides on the result first. An urgent notice to a trial that never asks
    # for notices is an order to pause.

    def __init__(
        self, milestones: tuple[Milestone, ...], *, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._timer = timer
        self._milestones = milestones
        self._changed = threading.Condition()
        #: Number of the result at which user code waits, or is about to wait; 0 if there is none.
        self._expected = 0
        self._answer: ContinueAnswer | SaveAnswer | None = None
        self._order: Order | None = None
        #: Number of the newest request for a checkpoint, and of the newest one that was taken.
        self._requested = 0
        self._taken = 0
        #: Whether user code has asked for notices, so that it saves when it gets one.
        self._asks = False
        #: The end that was announced, on the timer's clock, and the reason; None without a notice.
        self._notice: tuple[float, str] | None = None

    @property
    def order(self) -> Order | None:
        """The order to pause or stop, which takes effect at the next result; None without one."""
        return self._order

    @property
    def has_notice(self) -> bool:
        """Whether the trial was given notice, so that it leaves with its next checkpoint."""
        return self._notice is not None

    def ask_notice(self) -> tuple[float, str] | None:
        """Return the seconds left and the reason of a notice; None without one.

        From the first call on, an urgent notice leaves user code time to save.
        """
        with self._changed:
            self._asks = True
            if self._notice is None:
                return None
            end, reason = self._notice
            return max(0.0, end - self._timer()), reason

    def is_save_due(self) -> bool:
        """Whether user code should save: there is a notice, or an order to save and pause."""
        with self._changed:
            self._asks = True
            return self._notice is not None or (isinstance(self._order, PauseAnswer) and self._order.save)

    def is_milestone(self, result: Mapping[str, Any]) -> bool:
        """Whether user code must wait at this result."""
        return reached(self._milestones, result)

    def expect(self, seq: int) -> None:
        """Accept answers to result `seq`. Called before the driver can see that result."""
        with self._changed:
            self._expected = seq

    def answer(self, answer: Answer) -> None:
        """Apply an answer of the driver; ignore a late, repeated or overruled one."""
        with self._changed:
            match answer:
                case ContinueAnswer() | SaveAnswer():
                    if answer.seq == self._expected and self._answer is None:
                        self._answer = answer
                case CheckpointRequest():
                    self._requested = max(self._requested, answer.number)
                case NoticeAnswer():
                    self._note(answer)
                case PauseAnswer():
                    self._order = self._order or answer
                case StopAnswer():
                    # A stop overrules a pause: a stopped trial needs no checkpoint to resume from.
                    if not isinstance(self._order, StopAnswer):
                        self._order = answer
            self._changed.notify_all()

    def _note(self, notice: NoticeAnswer) -> None:
        end = self._timer() + notice.seconds
        # A notice that arrives twice must not extend the time.
        if self._notice is None or end < self._notice[0]:
            self._notice = end, notice.reason
        if notice.urgent and not self._asks:
            self._order = self._order or PauseAnswer(save=True, reason=notice.reason)

    def take_checkpoint_request(self) -> bool:
        """Return whether the driver has requested a checkpoint since the last call."""
        # Called for each result. Without a request there is no need for the lock: one that arrives
        # right after this line is taken at the next result, as if it had arrived after the call.
        if self._requested == self._taken:
            return False
        with self._changed:
            self._taken = self._requested
            return True

    def wait(self) -> Answer:
        """Block until the expected answer or an order to pause or stop arrives, and return it."""
        with self._changed:
            while (answer := self._order or self._answer) is None:
                self._changed.wait()
            self._expected, self._answer = 0, None
            if isinstance(answer, ContinueAnswer | SaveAnswer):
                self._milestones = answer.milestones
            return answer
