"""Pareto fronts, crowding distance and hypervolume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_Points = NDArray[np.float64]

#: Number of pairs compared at a time. It limits the memory when a large front moves down.
_BLOCK: Final = 1_000_000


class ParetoFronts:
    """Points sorted into Pareto fronts by non-domination.

    A point dominates another if it is at least as good in all values and better in one; higher is
    better. The first front holds the points that no point dominates, the second those that only
    points of the first front dominate, and so on.

    Parameters
    ----------
    points : sequence of sequence of float, default=()
        The first points, all with the same number of finite values.
    block : int, default=1,000,000
        Number of pairs of points that are compared at a time, at least 1.

    Notes
    -----
    Adding a point compares it with O(log f) of f fronts, and with each front from which it
    displaces points. Each comparison is a few NumPy operations.

    Examples
    --------
    >>> fronts = ParetoFronts([(1.0, 1.0), (2.0, 2.0), (3.0, 1.0)])
    >>> fronts.sizes
    [2, 1]
    >>> fronts.add((0.0, 0.0))
    2
    """

    def __init__(self, points: Sequence[Sequence[float]] = (), *, block: int = _BLOCK) -> None:
        self._block = block
        #: The fronts, best first, each of shape (n_points, n_values).
        self._fronts: list[_Points] = []
        self._count = 0
        for point in points:
            self.add(point)

    @property
    def sizes(self) -> list[int]:
        """Number of points in each front."""
        return [len(front) for front in self._fronts]

    def __len__(self) -> int:
        return self._count

    def add(self, point: Sequence[float]) -> int:
        """Add a point and return the index of its front.

        Parameters
        ----------
        point : sequence of float
            Finite values, one for each objective.
        """
        self._count += 1
        low, high = 0, len(self._fronts)
        # A point that a front dominates is dominated by every better front too: bisect.
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
            displaced = _dominated(front, new, self._block)
            self._fronts[index] = np.concatenate((front[~displaced], new))
            new = front[displaced]
            index += 1
        return low

    def count_better(self, point: Sequence[float], index: int, places: int) -> int:
        """Return how many points rank before a point: in better fronts, or less crowded in its own.

        Parameters
        ----------
        point : sequence of float
            A point that was added.
        index : int
            Index of its front.
        places : int
            Number of points that are selected. If they include the point's whole front, or none of
            it, no crowding distance is computed.
        """
        better = sum(len(front) for front in self._fronts[:index])
        front = self._fronts[index]
        if better >= places or better + len(front) <= places:
            return better
        distances = crowding_distance(front)
        own = distances[(front == np.array(point)).all(axis=1)].max()
        return better + int((distances > own).sum())

    def to_lists(self) -> list[list[list[float]]]:
        """Return the points of each front, sorted, as lists."""
        return [sorted(front.tolist()) for front in self._fronts]

    @classmethod
    def from_lists(cls, state: Sequence[Sequence[Sequence[float]]]) -> ParetoFronts:
        """Return the fronts that :meth:`to_lists` returned as lists."""
        fronts = cls()
        fronts._fronts = [np.array(front, dtype=np.float64) for front in state]
        fronts._count = sum(fronts.sizes)
        return fronts


def crowding_distance(points: _Points) -> NDArray[np.float64]:
    """Return the crowding distance of each point, as in NSGA-II (Deb et al., 2002).

    Parameters
    ----------
    points : ndarray of shape (n_points, n_values)
        The points of a front.

    Returns
    -------
    ndarray of shape (n_points,)
        The sum over all values of the gap between the point's neighbours, relative to the range
        of the value. Points at an end of a value's range have infinity.

    Examples
    --------
    >>> crowding_distance(np.array([[0.0, 4.0], [1.0, 2.0], [4.0, 0.0]]))
    array([inf,  2., inf])
    """
    distances = np.zeros(len(points))
    for values in points.T:
        # Ties in one value are ordered by the other values, so the order of points has no effect.
        order = np.lexsort((*points.T[::-1], values))
        # Scale to at most 1, because differences of large values may overflow.
        ordered = values[order] / (np.abs(values).max() or 1.0)
        spread = ordered[-1] - ordered[0]
        if not spread:
            continue
        distances[order[[0, -1]]] = np.inf
        distances[order[1:-1]] += (ordered[2:] - ordered[:-2]) / spread
    return distances


def hypervolume(points: _Points, reference: Sequence[float]) -> float:
    """Return the volume that the points dominate, bounded by a reference point.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_values)
        Finite values, at least two for each point; higher is better.
    reference : sequence of float
        The reference point. Points that are not better in every value add nothing.

    Returns
    -------
    float
        The hypervolume, exact up to rounding.

    Notes
    -----
    The volume is sliced along the last value, recursively. The cost for n points is O(n log n) with
    two values, times n for each further value.

    Examples
    --------
    >>> hypervolume(np.array([[1.0, 3.0], [2.0, 2.0], [1.0, 1.0]]), [0.0, 0.0])
    5.0
    """
    above = points[(points > np.array(reference)).all(axis=1)] - np.array(reference)
    return _volume(above)


def _volume(points: _Points) -> float:
    ordered = points[np.argsort(-points[:, -1], kind="stable")]
    depths = ordered[:, -1] - np.append(ordered[1:, -1], 0.0)
    if ordered.shape[1] == 2:
        return float(np.maximum.accumulate(ordered[:, 0]) @ depths) if len(ordered) else 0.0
    slices = ((depth, ordered[: i + 1, :-1]) for i, depth in enumerate(depths) if depth)
    return sum(float(depth) * _volume(area) for depth, area in slices)


def _is_dominated(point: Sequence[float], front: _Points) -> bool:
    """Return whether a point of a front dominates `point`."""
    nowhere_worse = np.ones(len(front), dtype=np.bool_)
    for value, values in zip(point, front.T, strict=True):
        nowhere_worse &= values >= value
    # One point that is nowhere worse is enough: if it equals `point`, no point of its front
    # dominates `point`.
    some = nowhere_worse.argmax()
    return bool(nowhere_worse[some]) and front[some].tolist() != list(point)


def _dominated(points: _Points, by: _Points, block: int) -> NDArray[np.bool_]:
    """Return which points are dominated by any point of `by`, as a mask.

    `block` pairs are compared at a time.
    """
    dominated = np.zeros(len(points), dtype=np.bool_)
    step = max(1, block // max(1, len(points)))
    for begin in range(0, len(by), step):
        # Loop over the few values: a reduction over an axis costs more than the comparisons.
        pairs = list(zip(points.T[:, :, None], by.T[:, begin : begin + step], strict=True))
        dominates, equals = pairs[0][1] >= pairs[0][0], pairs[0][1] == pairs[0][0]
        for own, others in pairs[1:]:
            dominates &= others >= own
            equals &= others == own
        dominates &= ~equals
        dominated |= dominates.any(axis=1)
    return dominated
