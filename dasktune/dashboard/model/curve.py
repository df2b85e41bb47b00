"""A learning curve with a bounded number of points."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from math import isnan, nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Maximum number of points of a curve. A screen cannot show more of them.
MAX_POINTS: Final = 512


class Curve:
    """Values by ``training_iteration``; a long curve keeps every second, fourth, ... point.

    The newest point is always kept. Adding a point costs O(1), replacing one O(log n).

    Parameters
    ----------
    max_points : int, default=512
        When the curve has this number of points, every second one is dropped.

    Examples
    --------
    >>> curve = Curve(max_points=4)
    >>> for iteration in range(1, 9):
    ...     curve.add(iteration, 1.0 / iteration, time=float(iteration))
    >>> curve.iterations.tolist()
    [1, 5, 8]
    """

    __slots__ = ("_count", "_is_tail", "_max_points", "_stride", "_times", "_xs", "_ys")

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self._xs, self._ys, self._times = array("q"), array("d"), array("d")
        #: One of this many consecutive points is kept.
        self._stride = 1
        #: Number of points added.
        self._count = 0
        #: Whether the next point replaces the last one.
        self._is_tail = False

    def __len__(self) -> int:
        return len(self._xs)

    @property
    def iterations(self) -> NDArray[np.int64]:
        """``training_iteration`` of each point, ascending; a copy."""
        return np.array(self._xs, dtype=np.int64)

    @property
    def values(self) -> NDArray[np.float64]:
        """The value of each point, NaN without a value; a copy."""
        return np.array(self._ys, dtype=np.float64)

    @property
    def times(self) -> NDArray[np.float64]:
        """The time of each point, in seconds of the runner's clock; a copy."""
        return np.array(self._times, dtype=np.float64)

    @property
    def last(self) -> tuple[int, float]:
        """The newest point; ``(0, nan)`` for an empty curve."""
        return (self._xs[-1], self._ys[-1]) if self._xs else (0, nan)

    def add(self, iteration: int, value: float, time: float) -> None:
        """Add a point, or replace the point of the same iteration.

        Parameters
        ----------
        iteration : int
            The iteration. If it is below the last one and has no point, the value is ignored.
        value : float
            The value; NaN for none.
        time : float
            Seconds of the runner's clock.
        """
        xs = self._xs
        if xs and iteration <= xs[-1]:
            at = bisect_left(xs, iteration)
            if xs[at] == iteration:
                self._ys[at], self._times[at] = value, time
            return
        if self._is_tail:
            xs[-1], self._ys[-1], self._times[-1] = iteration, value, time
        else:
            xs.append(iteration)
            self._ys.append(value)
            self._times.append(time)
        self._is_tail = self._count % self._stride != 0
        self._count += 1
        if len(xs) >= self._max_points and not self._is_tail:
            self._thin()

    def since(self, iteration: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return iterations and values of the last point up to an iteration, and of all later ones.

        Parameters
        ----------
        iteration : int
            The iteration. Costs O(log n + points returned).
        """
        first = max(0, bisect_left(self._xs, iteration + 1) - 1)
        return np.array(self._xs[first:], dtype=np.float64), np.array(self._ys[first:])

    def time_of(self, iteration: int) -> float:
        """Return the time of an iteration, or of the next one with a point; NaN for an empty curve.

        Parameters
        ----------
        iteration : int
            The iteration; beyond the last point, the time of the last point is returned.
        """
        if not self._xs:
            return nan
        return self._times[min(bisect_left(self._xs, iteration), len(self._xs) - 1)]

    def discard_after(self, iteration: int) -> None:
        """Discard the points after an iteration.

        Parameters
        ----------
        iteration : int
            The last iteration to keep.
        """
        keep = bisect_left(self._xs, iteration + 1)
        if keep < len(self._xs):
            del self._xs[keep:], self._ys[keep:], self._times[keep:]
            self._is_tail = False
            self._count = keep * self._stride

    def best(self, better: Callable[[float, float], bool]) -> tuple[int, float]:
        """Return the best kept point; ``(0, nan)`` without values.

        Parameters
        ----------
        better : callable
            Whether the first value is better than the second, which may be NaN.
        """
        at, best = 0, nan
        for x, y in zip(self._xs, self._ys, strict=True):
            if not isnan(y) and better(y, best):
                at, best = x, y
        return at, best

    def _thin(self) -> None:
        # The newest point must stay until the next one is added.
        last = self._xs[-1], self._ys[-1], self._times[-1]
        even = len(self._xs) % 2 == 0
        self._xs, self._ys, self._times = self._xs[::2], self._ys[::2], self._times[::2]
        self._stride *= 2
        if even:
            self._xs.append(last[0])
            self._ys.append(last[1])
            self._times.append(last[2])
            self._is_tail = True
