"""A series of values that keeps its shape in bounded memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from math import isnan, nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_POINTS", "Curve"]

#: Points that are kept of a curve; a screen shows no more.
MAX_POINTS: Final = 512


class Curve:
    """Values by ``training_iteration``, in order; of a long curve every second, fourth, ... point.

    The newest point is always there. Adding one takes O(1), replacing one O(log n).

    Parameters
    ----------
    max_points : int, default=512
        When there are so many, every second one is dropped.

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
        #: Of how many points in a row one is kept.
        self._stride = 1
        #: Points that were added.
        self._count = 0
        #: Whether the last one is only there until the next one comes.
        self._is_tail = False

    def __len__(self) -> int:
        return len(self._xs)

    @property
    def iterations(self) -> NDArray[np.int64]:
        """``training_iteration`` of each point, ascending; a copy."""
        return np.array(self._xs, dtype=np.int64)

    @property
    def values(self) -> NDArray[np.float64]:
        """The value of each point, NaN where it had none; a copy."""
        return np.array(self._ys, dtype=np.float64)

    @property
    def times(self) -> NDArray[np.float64]:
        """When each point was reported, in seconds of the runner's clock; a copy."""
        return np.array(self._times, dtype=np.float64)

    @property
    def last(self) -> tuple[int, float]:
        """The newest point; ``(0, nan)`` if there is none."""
        return (self._xs[-1], self._ys[-1]) if self._xs else (0, nan)

    def add(self, iteration: int, value: float, time: float) -> None:
        """Add a point, or replace the one of its iteration.

        Parameters
        ----------
        iteration : int
            One that is lower than the last, and not there, changes nothing.
        value : float
            NaN if there is none.
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
        """Return iterations and values of the points after an iteration, and of the one before.

        Parameters
        ----------
        iteration : int
            Costs O(log n) and what is returned.
        """
        first = max(0, bisect_left(self._xs, iteration + 1) - 1)
        return np.array(self._xs[first:], dtype=np.float64), np.array(self._ys[first:])

    def time_of(self, iteration: int) -> float:
        """Return when an iteration, or the next one that is there, was reported; NaN if none is.

        Parameters
        ----------
        iteration : int
            If it is beyond the last one, that counts.
        """
        if not self._xs:
            return nan
        return self._times[min(bisect_left(self._xs, iteration), len(self._xs) - 1)]

    def cut(self, iteration: int) -> None:
        """Forget the points after an iteration.

        Parameters
        ----------
        iteration : int
            The last one that may stay.
        """
        keep = bisect_left(self._xs, iteration + 1)
        if keep < len(self._xs):
            del self._xs[keep:], self._ys[keep:], self._times[keep:]
            self._is_tail = False
            self._count = keep * self._stride

    def best(self, better: Callable[[float, float], bool]) -> tuple[int, float]:
        """Return the best point that is there; ``(0, nan)`` if none has a value.

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
        # Its last point is the newest, which stays in any case until the next one comes.
        last = self._xs[-1], self._ys[-1], self._times[-1]
        even = len(self._xs) % 2 == 0
        self._xs, self._ys, self._times = self._xs[::2], self._ys[::2], self._times[::2]
        self._stride *= 2
        if even:
            self._xs.append(last[0])
            self._ys.append(last[1])
            self._times.append(last[2])
            self._is_tail = True
