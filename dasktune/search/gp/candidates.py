"""Candidates in the unit cube: random points, and neighbours of good ones."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

#: The probability that a neighbour differs from its centre in a parameter.
_MOVES: Final = 0.5

#: Smallest and largest standard deviation of a neighbour's coordinates around its centre's.
_NEAR, _FAR = 0.003, 0.3


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
