"""The parameters of a search space as axes of a cube."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, floor, log

import numpy as np
from numpy.typing import NDArray

from dasktune.search.spaces.flat_space import FlatParameter

__all__ = ["UnitCube"]


class UnitCube:
    """Scales ranges to [0, 1], on their logarithms where they are so, and keeps choices.

    An integer k stands for the interval from k to k + 1, and is in its middle.

    Parameters
    ----------
    parameters : sequence of FlatParameter
        The axes.

    Attributes
    ----------
    options : ndarray of shape (d,)
        How many options each choice has, 0 for ranges.

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
            [int(one.high) + 1 if one.is_choice else 0 for one in self._axes], dtype=np.int64
        )

    def vector(self, values: Mapping[str, float]) -> list[float | None]:
        """Return the point of values by name, None where there is none."""
        return [_scaled(one, values[one.name]) if one.name in values else None for one in self._axes]

    def values(self, vector: Iterable[float]) -> dict[str, float]:
        """Return the values of a point, by name."""
        return {one.name: _unscaled(one, float(part)) for one, part in zip(self._axes, vector, strict=True)}


def _bounds(axis: FlatParameter) -> tuple[float, float]:
    low, high = axis.low, axis.high + axis.is_whole
    return (log(low), log(high)) if axis.log else (low, high)


def _scaled(axis: FlatParameter, value: float) -> float:
    if axis.is_choice:
        return value
    low, high = _bounds(axis)
    middle = value + 0.5 * axis.is_whole
    return ((log(middle) if axis.log else middle) - low) / (high - low)


def _unscaled(axis: FlatParameter, part: float) -> float:
    if axis.is_choice:
        return part
    low, high = _bounds(axis)
    at = low + part * (high - low)
    value = exp(at) if axis.log else at
    return floor(value) if axis.is_whole else value
