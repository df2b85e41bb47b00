"""An experiment with several goals, as if another one of them were the first.

Figures show the first goal. They are drawn of what this gives for each of the others, so that none
of them needs to know that there are several.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import Any, cast

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import Density
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["as_goal", "density_of"]


def as_goal(chronicle: Chronicle, goal: int) -> Chronicle:
    """Return an experiment of which a goal is the only one; it follows the whole experiment.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment. It remembers what is returned.
    goal : int
        Which of its goals; for the first one it is the experiment itself.
    """
    if not goal:
        return chronicle
    name = f"as goal {goal}"
    if name not in chronicle.memo:
        chronicle.memo[name] = _Seen(chronicle, goal)
    return cast("Chronicle", chronicle.memo[name])


def density_of(chronicle: Chronicle) -> Density:
    """Return the density of the learning curves of what :func:`as_goal` has given.

    Parameters
    ----------
    chronicle : Chronicle
        It remembers what is returned.
    """
    density: Density = chronicle.memo.setdefault("density", Density())
    return density


class _SeenLog:
    """A trial with one goal."""

    __slots__ = ("_goal", "_log")

    def __init__(self, log: TrialLog, goal: int) -> None:
        self._log, self._goal = log, goal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    @property
    def curves(self) -> list[Any]:
        return self._log.curves[self._goal : self._goal + 1]

    @property
    def best(self) -> list[tuple[int, float]]:
        return self._log.best[self._goal : self._goal + 1]

    def best_value(self, goal: int = 0) -> float:
        return self._log.best_value(self._goal)

    def last_value(self, goal: int = 0) -> float:
        return self._log.last_value(self._goal)


class _Seen:
    """An experiment with one goal; what does not depend on that is the experiment's."""

    def __init__(self, chronicle: Chronicle, goal: int) -> None:
        self._chronicle, self._goal = chronicle, goal
        self.metrics, self.modes = chronicle.metrics[goal:][:1], chronicle.modes[goal:][:1]
        self.metric, self.mode = self.metrics[0], self.modes[0]
        self.better = chronicle.better[goal:][:1]
        self.improvements = chronicle.improvements_of[goal]
        self.improvements_of = [self.improvements]
        self.memo: dict[str, Any] = {}
        #: The same object for the same trial each time.
        self._logs: list[_SeenLog] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chronicle, name)

    @property
    def trials(self) -> list[_SeenLog]:
        for log in self._chronicle.trials[len(self._logs) :]:
            self._logs.append(_SeenLog(log, self._goal))
        return self._logs

    @property
    def best(self) -> _SeenLog | None:
        return self.trials[self.improvements[-1][2]] if self.improvements else None

    @property
    def best_value(self) -> float:
        return self.improvements[-1][1] if self.improvements else nan

    def find(self, trial_id: object) -> _SeenLog | None:
        log = self._chronicle.find(trial_id)
        return None if log is None else self.trials[log.index]

    def changed_since(self, version: int) -> Iterator[_SeenLog]:
        trials = self.trials
        return (trials[log.index] for log in self._chronicle.changed_since(version))

    def ranked(self, goal: int = 0) -> list[_SeenLog]:
        trials = self.trials
        return [trials[log.index] for log in self._chronicle.ranked(self._goal)]
