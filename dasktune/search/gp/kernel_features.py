"""`KernelFeatures`, which maps configurations to vectors whose distances a kernel can use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dasktune.search.spaces.flat_space import FlatParameter

#: The length of an option's vector. Two options are then about 1 apart, as far as the two ends of a
#: range.
_OPTION: Final = 0.7


class KernelFeatures:
    """Maps points of the unit cube, some of whose parameters may not exist, to vectors.

    A range is a coordinate. A choice is a one-hot vector times 0.7. A range inside an option of a
    choice exists only with that option. It is a point on an arc of radius 1 and of 1 radian, and
    the centre of the arc if it does not exist. So two configurations that both have it are about as
    far apart as their values; two of which one has it are 1 apart; and two without it are equal.
    This is the embedding of [1]_. A kernel of the distance of vectors is positive definite, which a
    sum over the parameters that both configurations have is not.

    Parameters
    ----------
    parameters : sequence of FlatParameter
        The parameters; d is their number.

    Attributes
    ----------
    owners : ndarray of shape (f,)
        The parameter of each of the f columns, by its position.

    References
    ----------
    .. [1] Hutter and Osborne, "A Kernel for Hierarchical Parameter Spaces", 2013, arXiv:1310.5738.

    Examples
    --------
    >>> kind = FlatParameter("kind", 0, 1, False, True, True, None)
    >>> beta = FlatParameter("kind[1]/beta", 0, 1, False, False, False, ("kind", 1))
    >>> features = KernelFeatures([kind, beta])
    >>> points = features.without_inactive(np.array([[0, 0.5], [1, 0.0]]))
    >>> points.tolist()
    [[0.0, nan], [1.0, 0.0]]
    >>> features.vectors(points).tolist()
    [[0.7, 0.0, 0.0, 0.0], [0.0, 0.7, 1.0, 0.0]]
    """

    def __init__(self, parameters: Sequence[FlatParameter]) -> None:
        self._parameters = tuple(parameters)
        self._index = {parameter.name: index for index, parameter in enumerate(self._parameters)}
        widths = [_width(parameter) for parameter in self._parameters]
        self.owners: NDArray[np.int64] = np.repeat(np.arange(len(widths)), widths)

    def without_inactive(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the points with NaN for each parameter whose condition does not hold.

        Parameters
        ----------
        points : ndarray of shape (n, d)
            The points, with a value of each parameter; options as indices.
        """
        masked: NDArray[np.float64] = points.astype(float)
        # A parameter comes after the choice that it depends on, which is NaN if it does not exist.
        for index, parameter in enumerate(self._parameters):
            if parameter.condition is not None:
                choice, option = parameter.condition
                masked[masked[:, self._index[choice]] != option, index] = np.nan
        return masked

    def vectors(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a vector for each point.

        Parameters
        ----------
        points : ndarray of shape (n, d)
            The points; NaN for parameters that do not exist.

        Returns
        -------
        ndarray of shape (n, f)
            The vectors.
        """
        columns: list[Any] = []
        for parameter, values in zip(self._parameters, points.T, strict=True):
            if parameter.is_choice:
                columns += [_OPTION * (values == option) for option in range(_width(parameter))]
            elif parameter.condition is None:
                columns.append(values)
            else:
                columns += [np.nan_to_num(np.cos(values)), np.nan_to_num(np.sin(values))]
        return np.column_stack(columns).astype(float)


def _width(parameter: FlatParameter) -> int:
    if parameter.is_choice:
        return int(parameter.high) + 1
    return 1 if parameter.condition is None else 2
