"""The trials of the new experiment that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.search.spaces.unit_cube import Point
from dasktune.search.warm.copula_prior import normal_scores


class OwnTrials:
    """The configurations of ended trials with their losses, sorted by the trials' numbers.

    Examples
    --------
    >>> own = OwnTrials()
    >>> own.add(1, [0.5], loss=0.1, length=9.0)
    >>> own.add(0, [0.2], loss=0.0, length=1.0)
    >>> own.points, own.scores().round(2).tolist()
    ([[0.2], [0.5]], [0.67, -0.67])
    """

    def __init__(self) -> None:
        #: ``{number: (point, loss, length)}``
        self._trials: dict[int, tuple[Point, float, float]] = {}

    def __len__(self) -> int:
        return len(self._trials)

    @property
    def points(self) -> list[Point]:
        """The configurations in the unit cube."""
        return [self._trials[number][0] for number in sorted(self._trials)]

    def add(self, number: int, point: Point, *, loss: float, length: float) -> None:
        """Add a trial.

        Parameters
        ----------
        number : int
            The number of the trial, in the order of suggestions. It must not depend on the order in
            which trials end.
        point : sequence of float or None
            The configuration in the unit cube.
        loss : float
            Lower is better; infinite for a failed trial.
        length : float
            How long the trial was trained; infinite if it was not stopped early.
        """
        self._trials[number] = (point, loss, length)

    def add_evaluated(self, point: Point, *, loss: float, length: float) -> None:
        """Add a configuration that was evaluated elsewhere, before those of all trials."""
        self.add(min([0, *self._trials]) - 1, point, loss=loss, length=length)

    def scores(self) -> NDArray[np.float64]:
        """Return the normal scores; a trial is better than all that were stopped before."""
        order = sorted(self._trials)
        keys = [(-length, loss) for _, loss, length in (self._trials[number] for number in order)]
        places = {key: place for place, key in enumerate(sorted(set(keys)))}
        return normal_scores([places[key] for key in keys])

    def state_dict(self) -> dict[str, Any]:
        """Return all trials."""
        return {"trials": [[number, *self._trials[number]] for number in sorted(self._trials)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._trials = {number: (point, loss, length) for number, point, loss, length in state["trials"]}
