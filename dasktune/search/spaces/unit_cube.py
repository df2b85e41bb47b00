"""Scaling of parameters to the unit cube, and random points and neighbours of points in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, floor, log
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dasktune.search.spaces.flat_space import FlatParameter

#: A configuration in the unit cube; None for each parameter that it does not have.
Point = Sequence[float | None]

#: The probability that a neighbour differs from its centre in a parameter.
_MOVES: Final = 0.5

#: Smallest and largest standard deviation of a neighbour's coordinates around its centre's.
_NEAR, _FAR = 0.003, 0.3


class UnitCube:
    """Scales ranges to [0, 1], log ranges by their logarithms; indices of options are unchanged.

    An integer k is scaled as the middle of the interval [k, k + 1), and every number of that
    interval is converted back to k.

    Parameters
    ----------
    parameters : sequence of FlatParameter
        The axes; d is their number.

    Attributes
    ----------
    options : ndarray of shape (d,)
        Number of options of each choice; 0 for ranges.

    Examples
    --------
    >>> width = FlatParameter("width", 1, 4, False, True, False, None)
    >>> cube = UnitCube([width])
    >>> cube.vector({"width": 2}), cube.values([0.5])
    ([0.375], {'width': 3})
    """

    def __init__(self, parameters: Sequence[FlatParameter]) -> None:
        self._axes = tuple(parameters)
        self.options: NDArray[np.int64] = np.array(
            [int(axis.high) + 1 if axis.is_choice else 0 for axis in self._axes], dtype=np.int64
        )

    def vector(self, values: Mapping[str, float]) -> list[float | None]:
        """Return the scaled values in the order of the axes; None for a missing value."""
        return [_scaled(axis, values[axis.name]) if axis.name in values else None for axis in self._axes]

    def values(self, vector: Iterable[float]) -> dict[str, float]:
        """Return the values by name for a scaled value of each axis."""
        return {
            axis.name: _unscaled(axis, float(scaled)) for axis, scaled in zip(self._axes, vector, strict=True)
        }

    def rounded(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scaled points with integers at the middles of their intervals.

        These are the vectors, up to rounding errors, of the values that `points` are converted to.

        Parameters
        ----------
        points : ndarray of shape (n, d)
            The points, with a scaled value of each axis.

        Examples
        --------
        >>> width = FlatParameter("width", 1, 4, False, True, False, None)
        >>> UnitCube([width]).rounded(np.array([[0.6], [1.0]])).tolist()
        [[0.625], [0.875]]
        """
        rounded: NDArray[np.float64] = points.copy()
        for index, axis in enumerate(self._axes):
            if axis.is_whole and not axis.is_choice:
                low, high = _bounds(axis)
                positions = low + points[:, index] * (high - low)
                values = np.exp(positions) if axis.log else positions
                middles = np.clip(np.floor(values), axis.low, axis.high) + 0.5
                rounded[:, index] = ((np.log(middles) if axis.log else middles) - low) / (high - low)
        return rounded


def _bounds(axis: FlatParameter) -> tuple[float, float]:
    low, high = axis.low, axis.high + axis.is_whole
    return (log(low), log(high)) if axis.log else (low, high)


def _scaled(axis: FlatParameter, value: float) -> float:
    if axis.is_choice:
        return value
    low, high = _bounds(axis)
    middle = value + 0.5 * axis.is_whole
    return ((log(middle) if axis.log else middle) - low) / (high - low)


def _unscaled(axis: FlatParameter, scaled: float) -> float:
    if axis.is_choice:
        return scaled
    low, high = _bounds(axis)
    position = low + scaled * (high - low)
    value = exp(position) if axis.log else position
    return floor(value) if axis.is_whole else value


def random_points(options: NDArray[np.int64], size: int, rng: Generator) -> NDArray[np.float64]:
    """Draw points uniformly.

    Parameters
    ----------
    options : ndarray of shape (d,)
        Number of options of each choice; 0 for ranges.
    size : int
        Number of points.
    rng : Generator
        The random generator.

    Returns
    -------
    ndarray of shape (size, d)
        Values in [0, 1] for ranges, indices of options for choices.
    """
    drawn = rng.random((size, len(options)))
    return np.where(options > 0, np.floor(drawn * options), drawn)


def neighbours(
    centres: NDArray[np.float64], options: NDArray[np.int64], copies: int, rng: Generator
) -> NDArray[np.float64]:
    """Draw points around others: half of the coordinates move, by small and by large steps.

    Parameters
    ----------
    centres : ndarray of shape (n, d)
        The points; NaN for parameters that they do not have, which are drawn uniformly.
    options : ndarray of shape (d,)
        Number of options of each choice; 0 for ranges.
    copies : int
        Number of neighbours of each point.
    rng : Generator
        The random generator.

    Returns
    -------
    ndarray of shape (n * copies, d)
        The neighbours, with a value of each parameter.
    """
    points = np.repeat(centres, copies, axis=0)
    anywhere = random_points(options, len(points), rng)
    # The step is the same in all coordinates of a neighbour.
    steps = _NEAR * (_FAR / _NEAR) ** rng.random((len(points), 1))
    moved = np.clip(points + steps * rng.standard_normal(points.shape), 0, 1)
    moves = rng.random(points.shape) < _MOVES
    # A choice has no near values. A large step changes it more often.
    jumps = moves & (rng.random(points.shape) < steps / _FAR)
    points = np.where(options > 0, np.where(jumps, anywhere, points), np.where(moves, moved, points))
    return np.where(np.isnan(points), anywhere, points)
