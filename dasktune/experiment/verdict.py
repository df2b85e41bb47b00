"""What is to become of a trial that has reported a result."""

from __future__ import annotations

from dataclasses import dataclass

from dasktune.schedulers.decision import Command, Decision
from dasktune.trial.events import ErrorInfo

__all__ = ["Fail", "Verdict"]


@dataclass(frozen=True, slots=True)
class Fail:
    """End the trial as failed: the user's stopper raised and cannot say whether to go on.

    Parameters
    ----------
    error : ErrorInfo
        What it raised.
    commands : tuple of Command, default=()
        What the scheduler wants to happen to other trials.
    """

    error: ErrorInfo
    commands: tuple[Command, ...] = ()


#: What is to become of a trial.
Verdict = Decision | Fail
