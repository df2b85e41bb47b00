"""Kernel density estimates over ranges and choices at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ["MixedKDE"]


class MixedKDE:
    """A multivariate density: the mean of product kernels around known points.

    Along a range the kernel is Gaussian, along a choice that of Aitchison and Aitken [1]_. The
    bandwidths are those of the normal reference rule, ``h_j = 1.06 sigma_j n**(-1 / (4 + d))``.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        The known points: in [0, 1] along ranges, numbers of options along choices.
    options : ndarray of shape (d,)
        How many options there are along each axis; 0 along ranges.
    min_bandwidth : float
        The least bandwidth, > 0. It keeps a kernel from shrinking to a point where all values are
        the same.

    References
    ----------
    .. [1] Aitchison and Aitken, "Multivariate Binary Discrimination by the Kernel Method",
       Biometrika 63, 1976.

    Examples
    --------
    >>> density = MixedKDE(np.array([[0.2, 1], [0.3, 1]]), np.array([0, 2]), min_bandwidth=1e-3)
    >>> near, far, other = density.log_pdf(np.array([[0.25, 1], [0.9, 1], [0.25, 0]]))
    >>> bool(near > far and near > other)
    True
    """

    def __init__(
        self, points: NDArray[np.float64], options: NDArray[np.int64], *, min_bandwidth: float
    ) -> None:
        n, d = points.shape
        self._points = points
        self._options = options
        self._bandwidths = self._bounded(
            np.maximum(1.06 * points.std(axis=0) * n ** (-1 / (4 + d)), min_bandwidth)
        )

    def _bounded(self, bandwidths: NDArray[np.float64]) -> Any:
        # With (c - 1) / c all of c options are as likely: no kernel on a choice is wider.
        widest = np.where(self._options > 0, 1 - 1 / np.maximum(self._options, 1), np.inf)
        return np.minimum(bandwidths, widest)

    def log_pdf(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density at each of some points.

        Parameters
        ----------
        points : ndarray of shape (m, d)
            Where.
        """
        logs = np.zeros((len(points), len(self._points)))
        for axis, (h, c) in enumerate(zip(self._bandwidths, self._options, strict=True)):
            apart = points[:, axis, None] - self._points[None, :, axis]
            if c:
                logs += np.where(apart == 0, np.log1p(-h), np.log(h / (c - 1)))
            else:
                logs += -0.5 * (apart / h) ** 2 - np.log(h * np.sqrt(2 * np.pi))
        # The logarithm of a mean of exponentials, none of which may vanish before it is added.
        highest = logs.max(axis=1)
        log_pdf: NDArray[np.float64] = highest + np.log(np.exp(logs - highest[:, None]).mean(axis=1))
        return log_pdf

    def sample(self, size: int, rng: Generator, *, factor: float) -> NDArray[np.float64]:
        """Draw points of the same density with wider kernels, within the space.

        Parameters
        ----------
        size : int
            How many.
        rng : Generator
            Where randomness comes from.
        factor : float
            By how much each bandwidth is multiplied.

        Returns
        -------
        ndarray of shape (size, d)
            The points.
        """
        drawn = self._points[rng.integers(len(self._points), size=size)]
        widths = self._bounded(self._bandwidths * factor)
        for axis, (h, c) in enumerate(zip(widths, self._options, strict=True)):
            if c:
                moved = rng.random(size) < h
                # One of the others: so many steps on in a circle.
                steps = rng.integers(1, c, size=size)
                drawn[:, axis] = np.where(moved, (drawn[:, axis] + steps) % c, drawn[:, axis])
            else:
                drawn[:, axis] = _truncated_normal(drawn[:, axis], h, rng)
        return drawn


def _truncated_normal(centres: NDArray[np.float64], sd: float, rng: Generator) -> NDArray[np.float64]:
    """Draw from normal distributions around points of [0, 1] until all have hit it.

    No bandwidth is so wide that more than a few throws would be needed.
    """
    values = rng.normal(centres, sd)
    while (missed := (values < 0) | (values > 1)).any():
        values[missed] = rng.normal(centres[missed], sd)
    return values
