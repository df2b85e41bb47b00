"""Kernel density estimation in spaces of ranges and choices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


class MixedKDE:
    """A multivariate kernel density estimate: the mean of a product kernel around each point.

    The kernel is Gaussian for a range, and that of Aitchison and Aitken [1]_ for a choice. The
    bandwidths follow the normal reference rule, ``h_j = 1.06 sigma_j n**(-1 / (4 + d))``.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        The points: values in [0, 1] for ranges, indices of options for choices.
    options : ndarray of shape (d,)
        Number of options of each choice; 0 for ranges.
    min_bandwidth : float
        The smallest bandwidth, > 0. Without it, the bandwidth would be 0 if all values are equal.

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
        # A kernel on c options is uniform with the bandwidth (c - 1) / c, which is the largest.
        widest = np.where(self._options > 0, 1 - 1 / np.maximum(self._options, 1), np.inf)
        return np.minimum(bandwidths, widest)

    def log_pdf(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density at each of m points.

        Parameters
        ----------
        points : ndarray of shape (m, d)
            The points, scaled like those of the constructor.

        Returns
        -------
        ndarray of shape (m,)
            The logarithms.
        """
        logs = np.zeros((len(points), len(self._points)))
        for axis, (h, c) in enumerate(zip(self._bandwidths, self._options, strict=True)):
            distances = points[:, axis, None] - self._points[None, :, axis]
            if c:
                logs += np.where(distances == 0, np.log1p(-h), np.log(h / (c - 1)))
            else:
                logs += -0.5 * (distances / h) ** 2 - np.log(h * np.sqrt(2 * np.pi))
        # log-mean-exp; subtracting the maximum keeps all exponentials from underflowing to 0.
        highest = logs.max(axis=1)
        log_pdf: NDArray[np.float64] = highest + np.log(np.exp(logs - highest[:, None]).mean(axis=1))
        return log_pdf

    def sample(self, size: int, rng: Generator, *, factor: float) -> NDArray[np.float64]:
        """Draw points from the density with scaled bandwidths, truncated to the space.

        Parameters
        ----------
        size : int
            Number of points.
        rng : Generator
            The random generator.
        factor : float
            Factor of each bandwidth, > 0.

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
                # A shift by 1 to c - 1, modulo c, reaches each of the other options equally often.
                steps = rng.integers(1, c, size=size)
                drawn[:, axis] = np.where(moved, (drawn[:, axis] + steps) % c, drawn[:, axis])
            else:
                drawn[:, axis] = _truncated_normal(drawn[:, axis], h, rng)
        return drawn


def _truncated_normal(centres: NDArray[np.float64], sd: float, rng: Generator) -> NDArray[np.float64]:
    """Draw from normal distributions with centres in [0, 1], truncated to [0, 1].

    Values outside are drawn again. Bandwidths are small enough that a few repetitions suffice.
    """
    values = rng.normal(centres, sd)
    while (outside := (values < 0) | (values > 1)).any():
        values[outside] = rng.normal(centres[outside], sd)
    return values
