"""Where the trials of an experiment run, with what belongs to such a place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dasktune.runner.ports import Clock, Thinker, TrialExecutor

__all__ = ["Stage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a runner needs of the place where trials run.

    Parameters
    ----------
    executor : TrialExecutor
        Runs them.
    clock : Clock
        Tells the time there.
    thinker : callable
        Makes who thinks about questions, as for `TrialRunner`.
    """

    executor: TrialExecutor
    clock: Clock
    thinker: Callable[[Callable[[], None]], Thinker]
