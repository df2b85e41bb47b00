"""The model of BOHB: where good configurations are dense, and bad ones are not."""

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

__all__ = ["BOHBConfig", "has_enough", "propose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BOHBConfig:
    """The parameters of the method, by the names of its reference implementation.

    Parameters
    ----------
    min_points_in_model : int, optional
        N_min of [1]_, the least number of configurations behind each density. By default, and at
        least, one more than there are parameters.
    top_n_percent : int, default=15
        q, the percentage of the configurations that counts as good. In [1, 99].
    num_samples : int, default=64
        N_s, among how many candidates the best one is chosen.
    random_fraction : float, default=1/3
        rho, the share of configurations that are drawn at random all the same. In [0, 1].
    bandwidth_factor : float, default=3
        b_w, how much wider the kernels are from which candidates are drawn. > 0.
    min_bandwidth : float, default=1e-3
        The least bandwidth, of a parameter that is scaled to [0, 1]. > 0.

    Raises
    ------
    ConfigError
        If one breaks its rule.

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
        share = as_float("random_fraction", self.random_fraction)
        check(0 <= share <= 1, "random_fraction", "from 0 to 1", share)
        for name in ("bandwidth_factor", "min_bandwidth"):
            width = as_float(name, getattr(self, name))
            check(width > 0 and isfinite(width), name, "finite and > 0", width)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any] | None) -> BOHBConfig:
        """Return what a dict says.

        Raises
        ------
        ConfigError
            If it is none, or names what there is not.
        """
        known = [one.name for one in fields(cls)]
        told: object = {} if given is None else given
        valid = isinstance(told, Mapping) and told.keys() <= {*known}
        check(valid, "bohb_config", f"a dict with some of {known}", given)
        return cls(**(given or {}))

    def min_points(self, dimensions: int) -> int:
        """Return N_min in a space of so many parameters."""
        return max(self.min_points_in_model or 0, dimensions + 1)


def has_enough(losses: NDArray[np.float64], least: int) -> bool:
    """Return whether configurations are enough for a model: N_min + 2 of them.

    Those that have failed have an infinite loss. No density of good ones is made of them.
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
        What was observed at one budget, scaled as `MixedKDE` wants it; NaN where a parameter is not
        there.
    losses : ndarray of shape (n,)
        Its loss, lower is better; inf if it failed.
    options : ndarray of shape (d,)
        How many options each choice has, 0 for ranges.
    config : BOHBConfig
        The parameters of the method.
    rng : Generator
        Where randomness comes from.

    Returns
    -------
    ndarray of shape (d,)
        A point. Parameters that are not there under its choices have a value, too.
    """
    least = config.min_points(len(options))
    # Equation 3. The two sets overlap as long as there are few.
    num_good = max(least, len(losses) * config.top_n_percent // 100)
    num_bad = max(least, len(losses) - num_good)
    order = np.argsort(losses, kind="stable")
    good, bad = (
        MixedKDE(_impute(points[rows], options, rng), options, min_bandwidth=config.min_bandwidth)
        for rows in (order[: min(num_good, np.isfinite(losses).sum())], order[-num_bad:])
    )
    # Equation 2: l and g, and l' with wider kernels, where candidates come from.
    candidates = good.sample(config.num_samples, rng, factor=config.bandwidth_factor)
    ratios = good.log_pdf(candidates) - bad.log_pdf(candidates)
    best: NDArray[np.float64] = candidates[ratios.argmax()]
    return best


def _impute(points: NDArray[np.float64], options: NDArray[np.int64], rng: Generator) -> NDArray[np.float64]:
    """Return points with a value wherever a parameter was not there.

    It is that of another point of the same set, if any has one, else drawn at random. So does the
    reference implementation, and nothing is learnt of a parameter where it was not there.
    """
    whole: NDArray[np.float64] = points.copy()
    for axis, c in enumerate(options):
        missing = np.isnan(points[:, axis])
        known = points[~missing, axis]
        if not len(known):
            known = np.arange(c, dtype=float) if c else rng.random(len(points))
        whole[missing, axis] = rng.choice(known, size=int(missing.sum()))
    return whole
