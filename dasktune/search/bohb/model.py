"""The model of BOHB: the density ratio of good and bad configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dasktune.errors import check
from dasktune.search.bohb.kde import MixedKDE
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
