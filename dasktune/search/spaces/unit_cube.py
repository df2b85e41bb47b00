"""Scaling of parameters to the unit cube."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, floor, log

import numpy as np
from numpy.typing import NDArray

from dasktune.search.spaces.flat_space import FlatParameter

__all__ = ["UnitCube"]


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
            [int(one.high) + 1 if one.is_choice else 0 for one in self._axes], dtype=np.int64
        )

    def vector(self, values: Mapping[str, float]) -> list[float | None]:
        """Return the scaled values in the order of the axes; None for a missing value."""
        return [_scaled(one, values[one.name]) if one.name in values else None for one in self._axes]

    def values(self, vector: Iterable[float]) -> dict[str, float]:
        """Return the values by name for a scaled value of each axis."""
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
