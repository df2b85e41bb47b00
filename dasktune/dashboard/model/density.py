"""The density of thousands of learning curves on a grid of pixels."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import TrialProjection

_Floats = NDArray[np.float64]

#: Rows and columns of the grid.
SHAPE: Final = (160, 420)
#: Maximum number of points along a segment. A segment has a point for each column it crosses.
_MOST_STEPS: Final = 128


def robust_range(values: _Floats, margin: float = 0.05) -> tuple[float, float]:
    """Return a range of nearly all finite values, without distant outliers.

    Parameters
    ----------
    values : ndarray
        The values; values that are not finite are ignored.
    margin : float, default=0.05
        The margin at both ends, relative to the range.

    Examples
    --------
    >>> robust_range(np.array([0.0, 1.0, 2.0, np.nan]), margin=0.5)
    (-1.0, 3.0)
    >>> robust_range(np.array([*np.linspace(0, 1, 100), 1e12]), margin=0.0)[1] < 2
    True
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    first, third = np.percentile(finite, [10, 90])
    spread = float(third - first)
    if spread > 0:
        # Values beyond three times the spread of the middle 80 % are outliers.
        near = finite[(finite >= first - 3 * spread) & (finite <= third + 3 * spread)]
        low, high = float(near.min()), float(near.max())
    pad = margin * (high - low) if high > low else 0.05 * abs(high) or 0.5
    return low - pad, high + pad


class Density:
    """The number of learning curves that pass through each cell of a grid.

    An update adds the new segments. The grid is recomputed with new borders when the number of
    results has doubled, or when a result lies beyond the right border.

    Parameters
    ----------
    goal : int, default=0
        The index of the goal.
    shape : tuple of int, default=(160, 420)
        Rows and columns.

    Attributes
    ----------
    counts : ndarray of shape `shape`
        Number of curves through each cell; the first row is at the bottom.
    x_range, y_range : tuple of float
        The borders, in iterations and in units of the metric.
    longest : int
        The highest iteration of any trial.
    num_curves : int
        Number of trials with a curve.

    Examples
    --------
    >>> projection = ExperimentProjection(metric="loss", mode="min")
    >>> density = Density()
    >>> density.update(projection)
    False
    >>> int(density.counts.sum())
    0
    """

    def __init__(self, goal: int = 0, shape: tuple[int, int] = SHAPE) -> None:
        self._goal = goal
        self.counts = np.zeros(shape, dtype=np.int64)
        self.x_range = self.y_range = (0.0, 1.0)
        self.longest = 0
        self._version = 0
        self._results = 0
        #: The last iteration that was added, by index of the trial.
        self._drawn: dict[int, int] = {}

    @property
    def num_curves(self) -> int:
        """Number of trials with a curve, as of the last update."""
        return len(self._drawn)

    def update(self, projection: ExperimentProjection) -> bool:
        """Add new segments; return whether there were any.

        Parameters
        ----------
        projection : ExperimentProjection
            The experiment; the same at each call.
        """
        changed = list(projection.changed_since(self._version))
        self._version = projection.version
        changed = [trial for trial in changed if self._goal < len(trial.curves)]
        if not changed or not projection.num_results:
            return False
        self.longest = max(self.longest, *(trial.iteration for trial in changed))
        outgrown = self.longest > self.x_range[1]
        if outgrown or projection.num_results >= 2 * self._results:
            self._reset(projection)
            changed = projection.trials
        self._draw(changed)
        return True

    def _reset(self, projection: ExperimentProjection) -> None:
        # Up to the full budget; if that is not known, leave room for trials that continue.
        room = 1.02 if self.longest < projection.full_budget else 1.25
        self.x_range = 0.0, max(projection.full_budget * room, 1.0)
        values = [trial.curves[self._goal].values for trial in projection.trials]
        self.y_range = robust_range(np.concatenate(values))
        self.counts[:] = 0
        self._drawn.clear()
        self._results = projection.num_results

    def _draw(self, trials: list[TrialProjection]) -> None:
        pieces = [piece for trial in trials if len(piece := self._new_segments(trial))]
        if pieces:
            self._add(*np.concatenate(pieces).T)

    def _new_segments(self, trial: TrialProjection) -> NDArray[np.float64]:
        """Return the new segments of a trial's curve, each as x0, y0, x1, y1."""
        curve = trial.curves[self._goal]
        drawn = self._drawn.get(trial.index, -1)
        # If results were discarded, continue from the last remaining result.
        xs, ys = curve.since(min(drawn, curve.last[0]))
        if not len(xs):
            self._drawn.pop(trial.index, None)
            return np.empty((0, 4))
        self._drawn[trial.index] = curve.last[0]
        if len(xs) == 1:
            # A single result has no segment: a segment of length 0 makes it visible.
            return np.array([[xs[0], ys[0], xs[0], ys[0]]]) if drawn < xs[0] else np.empty((0, 4))
        return np.column_stack((xs[:-1], ys[:-1], xs[1:], ys[1:]))

    def _add(self, x0: _Floats, y0: _Floats, x1: _Floats, y1: _Floats) -> None:
        rows, columns = self.counts.shape
        scale = columns / (self.x_range[1] - self.x_range[0])
        steps = np.clip(np.ceil((x1 - x0) * scale), 1, _MOST_STEPS).astype(np.int64)
        which = np.repeat(np.arange(len(steps)), steps)
        # Points in the middles of the steps. At their borders, which may be those of columns,
        # rounding would put two points into one column and leave the next one empty.
        step = np.arange(steps.sum()) - np.repeat(steps.cumsum() - steps, steps)
        part = (step + 0.5) / steps[which]
        with np.errstate(invalid="ignore", over="ignore"):
            x = x0[which] + part * (x1 - x0)[which]
            y = y0[which] + part * (y1 - y0)[which]
            row = (y - self.y_range[0]) * (rows / (self.y_range[1] - self.y_range[0]))
            inside = (row >= 0) & (row < rows)
        column = np.minimum(x[inside] * scale, columns - 1).astype(np.int64)
        cells = row[inside].astype(np.int64) * columns + column
        self.counts += np.bincount(cells, minlength=rows * columns).reshape(rows, columns)
