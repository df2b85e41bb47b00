"""Where user code waits for the driver's answers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dasktune.trainable.messages import Answer, GoOn, PauseNow, SaveAndGoOn, StopNow
from dasktune.trial.milestone import Milestone, reached

__all__ = ["Gate"]


class Gate:
    """Says which results are milestones, and holds user code there until the driver answers.

    Thread-safe: answers come in other threads than the one that waits.

    Parameters
    ----------
    milestones : tuple of Milestone
        Where to wait first; none means never.
    """

    def __init__(self, milestones: tuple[Milestone, ...]) -> None:
        self._milestones = milestones
        self._changed = threading.Condition()
        #: Number of the result that waits for an answer; 0 if none does.
        self._expected = 0
        self._answer: GoOn | SaveAndGoOn | None = None
        self._order: PauseNow | StopNow | None = None

    @property
    def order(self) -> PauseNow | StopNow | None:
        """The standing order to end, to be obeyed at the next result."""
        return self._order

    def is_milestone(self, result: Mapping[str, Any]) -> bool:
        """Whether user code must wait at this result."""
        return reached(self._milestones, result)

    def expect(self, seq: int) -> None:
        """Take an answer for result `seq` from now on; called before the driver can see it."""
        with self._changed:
            self._expected = seq

    def answer(self, answer: Answer) -> None:
        """Take an answer of the driver; ignore it if it is old, repeated or overruled."""
        with self._changed:
            match answer:
                case GoOn() | SaveAndGoOn():
                    if answer.seq == self._expected and self._answer is None:
                        self._answer = answer
                case PauseNow():
                    self._order = self._order or answer
                case StopNow():
                    # A trial that is to end for good need not be able to go on.
                    if not isinstance(self._order, StopNow):
                        self._order = answer
            self._changed.notify_all()

    def wait(self) -> Answer:
        """Block until the expected answer, or an order to end, is here."""
        with self._changed:
            while (answer := self._order or self._answer) is None:
                self._changed.wait()
            self._expected, self._answer = 0, None
            if isinstance(answer, GoOn | SaveAndGoOn):
                self._milestones = answer.milestones
            return answer
