"""The model of BOHB: the ratio of two kernel density estimates, of good and bad configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dasktune.errors import check
from dasktune.space.checks import as_float, as_int


@dataclass(frozen=True, slots=True, kw_only=True)
class BOHBConfig:
    """The parameters of BOHB [1]_, with the names of its reference implementation.

    Parameters
    ----------
    min_points_in_model : int, optional
        The paper's N_min: the smallest number of configurations in each density. By default, and at
        least, the number of parameters plus 1.
    top_n_percent : int, default=15
        The paper's q: the percentage of configurations that are modelled as good. In [1, 99].
    num_samples : int, default=64
        The paper's N_s: the number of candidates, from which the best one is chosen. At least 1.
    random_fraction : float, default=1/3
        The paper's rho: the fraction of suggestions that are random. In [0, 1].
    bandwidth_factor : float, default=3
        The paper's b_w: the factor of the bandwidths with which candidates are drawn. > 0.
    min_bandwidth : float, default=1e-3
        The smallest bandwidth of a parameter that is scaled to [0, 1]. > 0.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    References
    ----------
    .. [1] Falkner et al., ICML 2018, arXiv:1807.01774.
    """

    min_points_in_model: int | None = None
    top_n_percent: int = 15
    num_samples: int = 64
    random_fraction: float = 1 / 3
    bandwidth_factor: float = 3.0
    min_bandwidth: float = 1e-3

    def __post_init__(self) -> None:
        if self.min_points_in_model is not None:
            as_int("min_points_in_model", self.min_points_in_model, least=1)
        percent = as_int("top_n_percent", self.top_n_percent)
        check(1 <= percent <= 99, "top_n_percent", "from 1 to 99", percent)
        as_int("num_samples", self.num_samples, least=1)
        fraction = as_float("random_fraction", self.random_fraction)
        check(0 <= fraction <= 1, "random_fraction", "from 0 to 1", fraction)
        for name in ("bandwidth_factor", "min_bandwidth"):
            width = as_float(name, getattr(self, name))
            check(width > 0 and isfinite(width), name, "finite and > 0", width)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any] | None) -> BOHBConfig:
        """Create a config from a dict of some of its parameters; None means all defaults.

        Raises
        ------
        ConfigError
            If `given` is not a dict, has an unknown key, or a value is invalid.
        """
        known = [field.name for field in fields(cls)]
        options: object = {} if given is None else given
        valid = isinstance(options, Mapping) and options.keys() <= {*known}
        check(valid, "bohb_config", f"a dict with some of {known}", given)
        return cls(**(given or {}))

    def min_points(self, dimensions: int) -> int:
        """Return N_min for a space with `dimensions` parameters."""
        return max(self.min_points_in_model or 0, dimensions + 1)


def has_enough(losses: NDArray[np.float64], least: int) -> bool:
    """Return whether there are enough configurations for a model.

    The paper requires N_min + 2 of them. Here at least N_min of them must also have a finite loss,
    because failed configurations, whose loss is infinite, are never in the density of good ones.

    Parameters
    ----------
    losses : ndarray of shape (n,)
        The loss of each configuration.
    least : int
        N_min.
    """
    return len(losses) >= least + 2 and int(np.isfinite(losses).sum()) >= least


def propose(
    points: NDArray[np.float64],
    losses: NDArray[np.float64],
    options: NDArray[np.int64],
    config: BOHBConfig,
    rng: Generator,
) -> NDArray[np.float64]:
    """Return the candidate with the largest l(x) / g(x), lines 3 to 7 of algorithm 2.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        The configurations observed at one budget, scaled as for `MixedKDE`; NaN for parameters
        that a configuration does not have.
    losses : ndarray of shape (n,)
        The loss of each configuration, lower is better; inf if it failed.
    options : ndarray of shape (d,)
        Number of options of each choice; 0 for ranges.
    config : BOHBConfig
        The parameters of BOHB.
    rng : Generator
        The random generator.

    Returns
    -------
    ndarray of shape (d,)
        The candidate. It has values also for parameters whose condition does not hold.
    """
    least = config.min_points(len(options))
    # Equation 3. With few configurations, some are in both sets.
    num_good = max(least, len(losses) * config.top_n_percent // 100)
    num_bad = max(least, len(losses) - num_good)
    order = np.argsort(losses, kind="stable")
    good, bad = (
        MixedKDE(_impute(points[rows], options, rng), options, min_bandwidth=config.min_bandwidth)
        for rows in (order[: min(num_good, np.isfinite(losses).sum())], order[-num_bad:])
    )
    # Equation 2: l is `good`, g is `bad`. Candidates come from l', which is l with wider kernels.
    candidates = good.sample(config.num_samples, rng, factor=config.bandwidth_factor)
    ratios = good.log_pdf(candidates) - bad.log_pdf(candidates)
    best: NDArray[np.float64] = candidates[ratios.argmax()]
    return best


def _impute(points: NDArray[np.float64], options: NDArray[np.int64], rng: Generator) -> NDArray[np.float64]:
    """Return the points with NaN replaced, as in the reference implementation.

    A missing value is copied from a random other point of the set that has the parameter. If no
    point has it, the value is drawn uniformly. So missing values do not influence the densities.
    """
    imputed: NDArray[np.float64] = points.copy()
    for axis, c in enumerate(options):
        missing = np.isnan(points[:, axis])
        known = points[~missing, axis]
        if not len(known):
            known = np.arange(c, dtype=float) if c else rng.random(len(points))
        imputed[missing, axis] = rng.choice(known, size=int(missing.sum()))
    return imputed


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
