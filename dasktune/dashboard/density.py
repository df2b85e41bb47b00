"""Thousands of learning curves as a picture of how many pass where."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["Density", "robust_range"]

_Floats = NDArray[np.float64]

#: Rows and columns of the picture.
SHAPE: Final = (160, 420)
#: Points along a segment, at most: one for each column that it crosses.
_MOST_STEPS: Final = 128


def robust_range(values: _Floats, margin: float = 0.05) -> tuple[float, float]:
    """Return a range that holds nearly all finite values, without a few that lie far off.

    Parameters
    ----------
    values : ndarray
        Any values; those that are not finite do not count.
    margin : float, default=0.05
        What is added at both ends, relative to the range.

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
        # Beyond three times the spread of the middle four fifths a value tells nothing but that.
        near = finite[(finite >= first - 3 * spread) & (finite <= third + 3 * spread)]
        low, high = float(near.min()), float(near.max())
    pad = margin * (high - low) if high > low else 0.05 * abs(high) or 0.5
    return low - pad, high + pad


class Density:
    """How many learning curves pass through each cell of a grid.

    It is kept up to date by what is new. Only when there are twice as many results, or one beyond
    the right border, it is made anew, with borders that fit.

    Parameters
    ----------
    goal : int, default=0
        Of which goal.
    shape : tuple of int, default=(160, 420)
        Rows and columns.

    Attributes
    ----------
    counts : ndarray of shape `shape`
        The first row is at the bottom.
    x_range, y_range : tuple of float
        Borders, in iterations and in the metric's unit.
    longest : int
        The highest iteration that is drawn.

    Examples
    --------
    >>> chronicle = Chronicle(metric="loss", mode="min")
    >>> density = Density()
    >>> density.update(chronicle)
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
        #: Up to which iteration each trial is drawn, by its place.
        self._drawn: dict[int, int] = {}

    def update(self, chronicle: Chronicle) -> bool:
        """Draw what is new, and return whether there was anything.

        Parameters
        ----------
        chronicle : Chronicle
            The same at each call.
        """
        changed = list(chronicle.changed_since(self._version))
        self._version = chronicle.version
        changed = [log for log in changed if self._goal < len(log.curves)]
        if not changed or not chronicle.num_results:
            return False
        self.longest = max(self.longest, *(log.iteration for log in changed))
        outgrown = self.longest > self.x_range[1]
        if outgrown or chronicle.num_results >= 2 * self._results:
            self._begin_anew(chronicle)
            changed = chronicle.trials
        self._draw(changed)
        return True

    def _begin_anew(self, chronicle: Chronicle) -> None:
        # As far as anybody is meant to train; where nobody says, some room for those who go on.
        room = 1.02 if self.longest < chronicle.full_budget else 1.25
        self.x_range = 0.0, max(chronicle.full_budget * room, 1.0)
        values = [log.curves[self._goal].values for log in chronicle.trials]
        self.y_range = robust_range(np.concatenate(values))
        self.counts[:] = 0
        self._drawn.clear()
        self._results = chronicle.num_results

    def _draw(self, logs: list[TrialLog]) -> None:
        pieces = [piece for log in logs if len(piece := self._new(log))]
        if pieces:
            self._add(*np.concatenate(pieces).T)

    def _new(self, log: TrialLog) -> NDArray[np.float64]:
        """Return the new segments of a trial's curve, each as x0, y0, x1, y1."""
        curve = log.curves[self._goal]
        drawn = self._drawn.get(log.index, -1)
        # A trial that was taken back begins again there.
        xs, ys = curve.since(min(drawn, curve.last[0]))
        self._drawn[log.index] = curve.last[0]
        if len(xs) == 1:
            # Else a trial of a single result would not be seen.
            return np.array([[xs[0], ys[0], xs[0], ys[0]]]) if drawn < xs[0] else np.empty((0, 4))
        return np.column_stack((xs[:-1], ys[:-1], xs[1:], ys[1:]))

    def _add(self, x0: _Floats, y0: _Floats, x1: _Floats, y1: _Floats) -> None:
        rows, columns = self.counts.shape
        scale = columns / (self.x_range[1] - self.x_range[0])
        steps = np.clip(np.ceil((x1 - x0) * scale), 1, _MOST_STEPS).astype(np.int64)
        which = np.repeat(np.arange(len(steps)), steps)
        part = (np.arange(steps.sum()) - np.repeat(steps.cumsum() - steps, steps)) / steps[which]
        with np.errstate(invalid="ignore", over="ignore"):
            x = x0[which] + part * (x1 - x0)[which]
            y = y0[which] + part * (y1 - y0)[which]
            row = (y - self.y_range[0]) * (rows / (self.y_range[1] - self.y_range[0]))
            inside = (row >= 0) & (row < rows)
        column = np.minimum(x[inside] * scale, columns - 1).astype(np.int64)
        cells = row[inside].astype(np.int64) * columns + column
        self.counts += np.bincount(cells, minlength=rows * columns).reshape(rows, columns)
