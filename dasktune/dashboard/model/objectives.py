"""Views of an experiment with several goals; each view has only one of the goals.

Figures show the first goal of an experiment. To show another goal, pass a view to the figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import Any, cast

from dasktune.dashboard.model.density import Density
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import TrialProjection


def with_objective(projection: ExperimentProjection, goal: int) -> ExperimentProjection:
    """Return a view of an experiment with a single goal; it follows the experiment.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment. Its `memo` keeps the view.
    goal : int
        The index of the goal; for 0 the experiment itself is returned.
    """
    if not goal:
        return projection
    name = f"as goal {goal}"
    if name not in projection.memo:
        projection.memo[name] = _SingleGoalProjection(projection, goal)
    return cast("ExperimentProjection", projection.memo[name])


def density_of(projection: ExperimentProjection) -> Density:
    """Return the density of a view's learning curves.

    Parameters
    ----------
    projection : ExperimentProjection
        The result of :func:`with_objective`. Its `memo` keeps the density.
    """
    density: Density = projection.memo.setdefault("density", Density())
    return density


class _SingleGoalTrial:
    """A trial with one goal."""

    __slots__ = ("_goal", "_trial")

    def __init__(self, trial: TrialProjection, goal: int) -> None:
        self._trial, self._goal = trial, goal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)

    @property
    def curves(self) -> list[Any]:
        return self._trial.curves[self._goal : self._goal + 1]

    @property
    def best(self) -> list[tuple[int, float]]:
        return self._trial.best[self._goal : self._goal + 1]

    def best_value(self, goal: int = 0) -> float:
        return self._trial.best_value(self._goal)

    def last_value(self, goal: int = 0) -> float:
        return self._trial.last_value(self._goal)


class _SingleGoalProjection:
    """An experiment with one goal; its other attributes are the experiment's."""

    def __init__(self, projection: ExperimentProjection, goal: int) -> None:
        self._projection, self._goal = projection, goal
        self.metrics, self.modes = projection.metrics[goal:][:1], projection.modes[goal:][:1]
        self.metric, self.mode = self.metrics[0], self.modes[0]
        self.better = projection.better[goal:][:1]
        self.improvements = projection.improvements_of[goal]
        self.improvements_of = [self.improvements]
        self.memo: dict[str, Any] = {}
        #: One object per trial, because figures compare trials by identity.
        self._trials: list[_SingleGoalTrial] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._projection, name)

    @property
    def trials(self) -> list[_SingleGoalTrial]:
        for trial in self._projection.trials[len(self._trials) :]:
            self._trials.append(_SingleGoalTrial(trial, self._goal))
        return self._trials

    @property
    def best(self) -> _SingleGoalTrial | None:
        return self.trials[self.improvements[-1][2]] if self.improvements else None

    @property
    def best_value(self) -> float:
        return self.improvements[-1][1] if self.improvements else nan

    def find(self, trial_id: object) -> _SingleGoalTrial | None:
        trial = self._projection.find(trial_id)
        return None if trial is None else self.trials[trial.index]

    def changed_since(self, version: int) -> Iterator[_SingleGoalTrial]:
        trials = self.trials
        return (trials[trial.index] for trial in self._projection.changed_since(version))

    def ranked(self, goal: int = 0) -> list[_SingleGoalTrial]:
        trials = self.trials
        return [trials[trial.index] for trial in self._projection.ranked(self._goal)]
