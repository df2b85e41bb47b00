"""Points sorted by who dominates whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fronts", "crowding"]

_Points = NDArray[np.float64]

#: Pairs that are compared at a time, lest a large front that is displaced fill the memory.
_BLOCK: Final = 1_000_000


class Fronts:
    """Points in fronts: nobody in the first is dominated, nobody in the second but by the first...

    A point dominates another if it is nowhere worse and somewhere better. Higher is better.

    Parameters
    ----------
    points : sequence of sequence of float, default=()
        The first points, each of as many finite values.

    Notes
    -----
    Adding a point looks at O(log f) of f fronts, and then at those from which it displaces others;
    it costs an operation of NumPy for each.

    Examples
    --------
    >>> fronts = Fronts([(1.0, 1.0), (2.0, 2.0), (3.0, 1.0)])
    >>> fronts.sizes
    [2, 1]
    >>> fronts.add((0.0, 0.0))
    2
    """

    def __init__(self, points: Sequence[Sequence[float]] = ()) -> None:
        #: Each of shape (n_points, n_values).
        self._fronts: list[_Points] = []
        self._count = 0
        for point in points:
            self.add(point)

    @property
    def sizes(self) -> list[int]:
        """How many points are in each front."""
        return [len(front) for front in self._fronts]

    def __len__(self) -> int:
        return self._count

    def add(self, point: Sequence[float]) -> int:
        """Add a point, and return the index of its front.

        Parameters
        ----------
        point : sequence of float
            As many finite values as those of every other point.
        """
        self._count += 1
        low, high = 0, len(self._fronts)
        # Whom a front dominates, every better front does, too: each has someone still better.
        while low < high:
            middle = (low + high) // 2
            if _is_dominated(point, self._fronts[middle]):
                low = middle + 1
            else:
                high = middle
        index, new = low, np.array([point], dtype=np.float64)
        while len(new):
            if index == len(self._fronts):
                self._fronts.append(new)
                break
            front = self._fronts[index]
            displaced = _dominated(front, new)
            self._fronts[index] = np.concatenate((front[~displaced], new))
            new = front[displaced]
            index += 1
        return low

    def ahead(self, point: Sequence[float], index: int, places: int) -> int:
        """Return how many are better than a point: in better fronts, or lonelier in its own.

        Parameters
        ----------
        point : sequence of float
            It was added.
        index : int
            Its front.
        places : int
            If its whole front is within so many of the best, nobody there counts as better.
        """
        better = sum(len(front) for front in self._fronts[:index])
        front = self._fronts[index]
        if better >= places or better + len(front) <= places:
            return better
        distances = crowding(front)
        own = distances[(front == np.array(point)).all(axis=1)].max()
        return better + int((distances > own).sum())

    def state(self) -> list[list[list[float]]]:
        """Return the points of each front, sorted."""
        return [sorted(front.tolist()) for front in self._fronts]

    @classmethod
    def from_state(cls, state: Sequence[Sequence[Sequence[float]]]) -> Fronts:
        """Return the fronts that :meth:`state` told of."""
        fronts = cls()
        fronts._fronts = [np.array(front, dtype=np.float64) for front in state]
        fronts._count = sum(fronts.sizes)
        return fronts


def crowding(points: _Points) -> NDArray[np.float64]:
    """Return how lonely each point is among the others: NSGA-II's crowding distance.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_values)
        The points of a front.

    Returns
    -------
    ndarray of shape (n_points,)
        For each value the gap between its neighbours, relative to the widest, added up; infinite
        for those at an end.

    Examples
    --------
    >>> crowding(np.array([[0.0, 4.0], [1.0, 2.0], [4.0, 0.0]]))
    array([inf,  2., inf])
    """
    distances = np.zeros(len(points))
    for values in points.T:
        # Equal points are told apart by the other values, so that nothing hangs on their order.
        order = np.lexsort((*points.T[::-1], values))
        # As fractions, because differences of large values may overflow.
        ordered = values[order] / (np.abs(values).max() or 1.0)
        spread = ordered[-1] - ordered[0]
        if not spread:
            continue
        distances[order[[0, -1]]] = np.inf
        distances[order[1:-1]] += (ordered[2:] - ordered[:-2]) / spread
    return distances


def _is_dominated(point: Sequence[float], front: _Points) -> bool:
    """Return whether anybody of a front dominates a point."""
    nowhere_worse = np.ones(len(front), dtype=np.bool_)
    for value, values in zip(point, front.T, strict=True):
        nowhere_worse &= values >= value
    # Any one of them tells: beside an equal point there is none in its front that dominates it.
    some = nowhere_worse.argmax()
    return bool(nowhere_worse[some]) and front[some].tolist() != list(point)


def _dominated(points: _Points, by: _Points) -> NDArray[np.bool_]:
    """Return which of some points are dominated by any of others."""
    dominated = np.zeros(len(points), dtype=np.bool_)
    step = max(1, _BLOCK // max(1, len(points)))
    for begin in range(0, len(by), step):
        # Value by value: there are few, and a reduction over them costs more than the comparisons.
        pairs = list(zip(points.T[:, :, None], by.T[:, begin : begin + step], strict=True))
        dominates, equals = pairs[0][1] >= pairs[0][0], pairs[0][1] == pairs[0][0]
        for own, others in pairs[1:]:
            dominates &= others >= own
            equals &= others == own
        dominates &= ~equals
        dominated |= dominates.any(axis=1)
    return dominated
