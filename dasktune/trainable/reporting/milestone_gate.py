"""Holds user code at milestones until the driver answers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dasktune.trainable.reporting.trial_messages import (
    Answer,
    ContinueAnswer,
    PauseAnswer,
    SaveAnswer,
    StopAnswer,
)
from dasktune.trial.milestone import Milestone, reached

__all__ = ["MilestoneGate"]


class MilestoneGate:
    """Decides which results are milestones, and holds user code there until the driver answers.

    Thread-safe: the worker's event loop answers, the reporting thread waits.

    Parameters
    ----------
    milestones : tuple of Milestone
        The first milestones; none means that user code never waits.
    """

    # `expect` runs under the outbox's lock before the result can be collected, so an answer never
    # comes too early. An answer that is late or repeated has another number, or comes when
    # `_expected` is 0: it is ignored. An order to end wins over an answer, whichever comes first.
    # `order` is read without the lock: it only ever changes from None to Pause to Stop, so an old
    # value means that the order is obeyed one result later.

    def __init__(self, milestones: tuple[Milestone, ...]) -> None:
        self._milestones = milestones
        self._changed = threading.Condition()
        #: Number of the result whose answer is expected; 0 if there is none.
        self._expected = 0
        self._answer: ContinueAnswer | SaveAnswer | None = None
        self._order: PauseAnswer | StopAnswer | None = None

    @property
    def order(self) -> PauseAnswer | StopAnswer | None:
        """The order to pause or stop, which takes effect at the next result; None without one."""
        return self._order

    def is_milestone(self, result: Mapping[str, Any]) -> bool:
        """Whether user code must wait at this result."""
        return reached(self._milestones, result)

    def expect(self, seq: int) -> None:
        """Accept an answer to result `seq` from now on. Called before the driver can see it."""
        with self._changed:
            self._expected = seq

    def answer(self, answer: Answer) -> None:
        """Apply an answer of the driver; ignore one that is old, repeated or overruled."""
        with self._changed:
            match answer:
                case ContinueAnswer() | SaveAnswer():
                    if answer.seq == self._expected and self._answer is None:
                        self._answer = answer
                case PauseAnswer():
                    self._order = self._order or answer
                case StopAnswer():
                    # A stop overrules a pause: the trial need not be able to resume.
                    if not isinstance(self._order, StopAnswer):
                        self._order = answer
            self._changed.notify_all()

    def wait(self) -> Answer:
        """Block until the expected answer, or an order to end, has come, and return it."""
        with self._changed:
            while (answer := self._order or self._answer) is None:
                self._changed.wait()
            self._expected, self._answer = 0, None
            if isinstance(answer, ContinueAnswer | SaveAnswer):
                self._milestones = answer.milestones
            return answer
