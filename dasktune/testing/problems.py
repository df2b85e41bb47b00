"""Synthetic learning curves with known optima, to judge early stopping and searchers in seconds.

A problem has a search space, a curve of losses for each configuration (lower is better), and a
known best configuration::

    problem = Hartmann(6)                       # or Crossing()
    problem.param_space                         # {name: domain}, for Tuner and simulate
    problem.curve(config, seed=0)               # losses after 1 .. problem.max_resource epochs
    problem.curves(configs, seed=0)             # the same of many, an array (configs, epochs)
    problem.expected_curves(configs)            # the same without noise
    problem.optimum.config, problem.optimum.loss
    problem.regret(config)                      # how much worse it is than the best one
    problem.sample(100, seed=0)                 # random configurations
    simulate(problem.trainable(seed=0), param_space=problem.param_space, ...)

`PROBLEMS` maps the names ``"hartmann3"``, ``"hartmann6"`` and ``"crossing"`` to functions that make
a problem with its defaults. A curve depends on its configuration and the seed only, not on the
order in which curves are read. The seed is that of a training run: it changes the noise, and
neither the expected curves nor the optimum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, Final

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from dasktune.errors import check
from dasktune.in_process.trial_kind import SimulatedTrainable, Steps
from dasktune.space import Float, uniform

__all__ = ["PROBLEMS", "Crossing", "CurveProblem", "Hartmann", "Optimum"]

#: An array of losses or of points, see the shapes in the docstrings.
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Optimum:
    """The best configuration of a problem.

    Examples
    --------
    >>> round(Hartmann(3).optimum.loss, 4)
    -3.8628
    """

    #: A configuration with the lowest expected loss at the full resource.
    config: Mapping[str, float]
    #: This loss.
    loss: float


class CurveProblem(ABC):
    """A loss that falls, or rises, with the epochs of a trial, as a formula.

    Parameters
    ----------
    names : sequence of str
        The names of the parameters. Each is a number from 0 to 1.
    max_resource : int
        The full resource in epochs, the length of each curve. At least 2.
    noise : float
        The scale of the noise, in units of the loss, at least 0. Zero gives the expected curves.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Notes
    -----
    A subclass defines `_expected`, `_deviation` and `optimum`.

    Examples
    --------
    >>> problem = Crossing()
    >>> [config] = problem.sample(1, seed=0)
    >>> problem.curve(config, seed=1).shape
    (81,)
    >>> problem.regret(problem.optimum.config)
    0.0
    """

    #: The name of the loss in the results of `trainable`.
    metric: Final = "loss"
    mode: Final = "min"

    def __init__(self, names: Sequence[str], *, max_resource: int, noise: float) -> None:
        valid = type(max_resource) is int and max_resource >= 2
        check(valid, "max_resource", "an int, at least 2", max_resource)
        check(isfinite(noise) and noise >= 0, "noise", "a finite number, at least 0", noise)
        #: The full resource in epochs.
        self.max_resource = max_resource
        self.noise = float(noise)
        #: ``{name: domain}``; each domain is the numbers from 0 to 1.
        self.param_space: dict[str, Float] = {name: uniform(0.0, 1.0) for name in names}

    @property
    @abstractmethod
    def optimum(self) -> Optimum:
        """The best configuration and its expected loss at the full resource."""

    @abstractmethod
    def _expected(self, points: _Array) -> _Array:
        """Return the curves without noise, of shape (configs, epochs).

        Parameters
        ----------
        points : ndarray of shape (configs, parameters)
            The configurations, in the order of `param_space`.
        """

    @abstractmethod
    def _deviation(self) -> _Array:
        """Return the standard deviation of the noise after each epoch, of shape (epochs,)."""

    def sample(self, size: int, seed: int) -> list[dict[str, float]]:
        """Return random configurations, uniform in the search space.

        Parameters
        ----------
        size : int
            The number of configurations, at least 1.
        seed : int
            The seed, at least 0.

        Raises
        ------
        ConfigError
            If an argument is invalid.
        """
        check(type(size) is int and size >= 1, "size", "an int, at least 1", size)
        points = default_rng(_checked(seed)).random((size, len(self.param_space)))
        return [dict(zip(self.param_space, row, strict=True)) for row in points.tolist()]

    def expected_curves(self, configs: Sequence[Mapping[str, Any]]) -> _Array:
        """Return the losses without noise of configurations, an array of shape (configs, epochs).

        Parameters
        ----------
        configs : sequence of mapping
            The configurations. Keys that are not in `param_space` are ignored.

        Raises
        ------
        ConfigError
            If a parameter is missing, or is not a number from 0 to 1.
        """
        return self._expected(self._points(configs))

    def curves(self, configs: Sequence[Mapping[str, Any]], seed: int = 0) -> _Array:
        """Return the losses of configurations, an array of shape (configs, epochs).

        Parameters
        ----------
        configs : sequence of mapping
            The configurations. Keys that are not in `param_space` are ignored.
        seed : int, default=0
            The seed of the training runs, at least 0.

        Raises
        ------
        ConfigError
            If a parameter is missing or not a number from 0 to 1, or the seed is invalid.
        """
        points, seed = self._points(configs), _checked(seed)
        normal = np.empty((len(points), self.max_resource))
        for row, point in zip(normal, points, strict=True):
            row[:] = _stream(point, seed).standard_normal(self.max_resource)
        return self._expected(points) + self._deviation() * normal

    def curve(self, config: Mapping[str, Any], seed: int = 0) -> _Array:
        """Return the losses of a configuration after 1 to `max_resource` epochs.

        Parameters
        ----------
        config : mapping
            The configuration. Keys that are not in `param_space` are ignored.
        seed : int, default=0
            The seed of the training run, at least 0.

        Raises
        ------
        ConfigError
            If a parameter is missing or not a number from 0 to 1, or the seed is invalid.
        """
        curve: _Array = self.curves([config], seed)[0]
        return curve

    def regret(self, config: Mapping[str, Any]) -> float:
        """Return by how much the expected loss at the full resource exceeds the optimum's.

        Parameters
        ----------
        config : mapping
            The configuration. Keys that are not in `param_space` are ignored.

        Raises
        ------
        ConfigError
            If a parameter is missing, or is not a number from 0 to 1.
        """
        return float(self.expected_curves([config])[0, -1]) - self.optimum.loss

    def trainable(self, seed: int = 0, *, pace: tuple[float, float] = (0.5, 2.0)) -> SimulatedTrainable:
        """Return a trainable for :func:`~dasktune.testing.simulate` that reports ``loss``.

        It resumes from its checkpoint, the number of epochs so far.

        Parameters
        ----------
        seed : int, default=0
            The seed of the training runs, at least 0.
        pace : tuple of float, default=(0.5, 2.0)
            The least and the most virtual seconds of an epoch. Each configuration has its own
            duration in between; with equal durations trials would report in the order of their
            start.

        Returns
        -------
        callable
            A generator function ``fn(config, checkpoint)``.

        Raises
        ------
        ConfigError
            If an argument is invalid.

        Examples
        --------
        >>> import dasktune as tune
        >>> from dasktune.testing import simulate
        >>> problem = Hartmann(3)
        >>> results = simulate(
        ...     problem.trainable(),
        ...     param_space=problem.param_space,
        ...     tune_config=tune.TuneConfig(
        ...         metric=problem.metric, mode=problem.mode, num_samples=4, seed=0
        ...     ),
        ...     slots=2,
        ... )
        >>> results.get_best_result().metrics["training_iteration"]
        81
        """
        _checked(seed)
        least, most = pace
        check(0 <= least <= most < float("inf"), "pace", "two numbers, 0 <= least <= most", pace)

        def train(config: dict[str, Any], checkpoint: int | None) -> Steps:
            curve = self.curve(config, seed)
            # The next number of the configuration's stream, after its noise.
            stream = _stream(self._points([config])[0], seed)
            stream.standard_normal(self.max_resource)
            seconds = float(stream.uniform(least, most))
            for epoch in range(checkpoint or 0, self.max_resource):
                yield {self.metric: float(curve[epoch])}, seconds, epoch + 1

        return train

    def _points(self, configs: Sequence[Mapping[str, Any]]) -> _Array:
        points = np.empty((len(configs), len(self.param_space)))
        for row, config in zip(points, configs, strict=True):
            for column, (name, domain) in enumerate(self.param_space.items()):
                value = config.get(name)
                check(domain.is_valid(value), name, "a number from 0 to 1", value)
                row[column] = value
        return points

    @property
    def _log_fidelity(self) -> _Array:
        """``z = log r / log R`` of each epoch, from 0 to 1."""
        return np.log(np.arange(1, self.max_resource + 1)) / log(self.max_resource)


class Hartmann(CurveProblem):
    r"""Multi-fidelity Hartmann function: at few epochs, its local minima have other depths.

    Parameters
    ----------
    dimensions : {3, 6}
        The number of parameters, ``x0``, ``x1`` and so on.
    max_resource : int, default=81
        The full resource R in epochs. At least 2.
    bias : float, default=0.8
        How much the weights of the minima differ at one epoch from those at R. At 0 all epochs
        rank configurations alike, but for the noise. At least 0.
    noise : float, default=0.1
        The standard deviation of the noise falls from ``1.05 * noise`` at one epoch to
        ``0.05 * noise`` at R.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Notes
    -----
    With :math:`z = \log r / \log R` after r epochs, the expected loss is

    .. math::

        f(x, z) = b (1 - z)
            - \sum_{i=1}^4 \bigl(\alpha_i + b (1 - z) \delta_i\bigr)
              \exp\Bigl(-\sum_j A_{ij} (x_j - P_{ij})^2\Bigr)

    with :math:`\delta = (1.2, 0.6, -1.2, -1.6)`. At R it is the function of Hartmann with the
    usual constants [2]_. To change the weights :math:`\alpha` with the fidelity is the idea of
    [1]_, which subtracts :math:`0.1 (1 - z)` from each and leaves their order. Here few epochs
    make the four minima about equally deep, and move the lowest one: the best configuration after
    one epoch has a regret of 0.16 with three parameters, and of 0.09 with six. The first term makes
    curves fall on average. The rank correlations of random configurations after r and after R = 81
    epochs are 0.93 (r = 1) and 0.98 (r = 9) with three parameters, and 0.77 and 0.90 with six.

    References
    ----------
    .. [1] Kandasamy, Dasarathy, Schneider and Póczos, "Multi-fidelity Bayesian Optimisation with
       Continuous Approximations", ICML 2017, arXiv:1703.06240.
    .. [2] Surjanovic and Bingham, "Virtual Library of Simulation Experiments: Test Functions and
       Datasets", https://www.sfu.ca/~ssurjano/hart6.html.

    Examples
    --------
    >>> problem = Hartmann(6)
    >>> round(problem.optimum.loss, 5)
    -3.32237
    >>> [curve] = problem.expected_curves([problem.optimum.config])
    >>> [round(float(curve[epochs - 1]), 2) for epochs in (1, 9, 81)]
    [-1.99, -2.66, -3.32]
    """

    def __init__(
        self, dimensions: int, *, max_resource: int = 81, bias: float = 0.8, noise: float = 0.1
    ) -> None:
        check(dimensions in _HARTMANN, "dimensions", "3 or 6", dimensions)
        check(isfinite(bias) and bias >= 0, "bias", "a finite number, at least 0", bias)
        names = [f"x{index}" for index in range(dimensions)]
        super().__init__(names, max_resource=max_resource, noise=noise)
        self.dimensions = dimensions
        self.bias = float(bias)

    @property
    def optimum(self) -> Optimum:
        """The global minimum at the full resource, to all digits of a float."""
        config = dict(zip(self.param_space, _HARTMANN[self.dimensions][2], strict=True))
        return Optimum(config, float(self.expected_curves([config])[0, -1]))

    def _expected(self, points: _Array) -> _Array:
        scales, centres, _ = _HARTMANN[self.dimensions]
        distances = (scales * (points[:, None, :] - centres) ** 2).sum(axis=2)
        shift = self.bias * (1 - self._log_fidelity)
        weights = _ALPHA[:, None] + _DELTA[:, None] * shift
        # Not a product of matrices: its last digits depend on the number of rows.
        losses: _Array = shift - (np.exp(-distances)[:, :, None] * weights).sum(axis=1)
        return losses

    def _deviation(self) -> _Array:
        return self.noise * (1.05 - self._log_fidelity)


class Crossing(CurveProblem):
    r"""Curves that cross: configurations that learn more slowly end lower.

    Parameters
    ----------
    max_resource : int, default=81
        The full resource R in epochs. At least 2.
    noise : float, default=0.01
        The standard deviation of the noise after each epoch.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Notes
    -----
    The expected loss after r epochs is a power law, a usual model of learning curves [1]_,

    .. math::

        f(x, r) &= a + (1 - a) r^{-c}, \\
        a &= 0.05 + 0.25 x_0 + 0.3 \bigl((x_1 - 0.6)^2 + (x_2 - 0.3)^2\bigr) + 0.1 [x_3 > 0.5], \\
        c &= 0.25 + x_0.

    ``x0`` is the rate: a high one learns fast, and has a high asymptote. ``x4`` and ``x5`` have no
    effect. All curves begin at 1, so the first epoch says nothing. Two curves cross later if the
    slower one has the lower asymptote. The slowest ones are not yet low at R = 81, where the best
    rate is 0.38. The rank correlations after r and after 81 epochs are 0.00 (r = 1) and 0.72
    (r = 9).

    References
    ----------
    .. [1] Viering and Loog, "The Shape of Learning Curves: a Review", arXiv:2103.10948.

    Examples
    --------
    >>> problem = Crossing()
    >>> rates = [{**problem.optimum.config, "x0": rate} for rate in (0.4, 0.9)]
    >>> slow, fast = problem.expected_curves(rates)
    >>> bool(slow[8] > fast[8]), bool(slow[80] < fast[80])
    (True, True)
    """

    def __init__(self, *, max_resource: int = 81, noise: float = 0.01) -> None:
        names = [f"x{index}" for index in range(6)]
        super().__init__(names, max_resource=max_resource, noise=noise)

    @property
    def optimum(self) -> Optimum:
        """One of the best configurations; ``x3`` below 0.5, ``x4`` and ``x5`` are arbitrary."""
        # The loss rises with the asymptote, so x1, x2 and x3 are at their best values.
        values = (self._best_rate(), 0.6, 0.3, 0.25, 0.5, 0.5)
        config = dict(zip(self.param_space, values, strict=True))
        return Optimum(config, float(self.expected_curves([config])[0, -1]))

    def _best_rate(self) -> float:
        """Return the `x0` with the lowest loss at R, to all digits, if the others are best."""
        # The derivative by x0 is 0.25 - R^-c (0.25 + (1 - a) log R) and rises with x0.
        low, high, ends = 0.0, 1.0, self.max_resource
        for _ in range(60):
            rate = (low + high) / 2
            remaining = 1 - (0.05 + 0.25 * rate)
            slope = 0.25 - ends ** -(0.25 + rate) * (0.25 + remaining * log(ends))
            low, high = (rate, high) if slope < 0 else (low, rate)
        return (low + high) / 2

    def _expected(self, points: _Array) -> _Array:
        rate, x1, x2, x3 = points.T[:4]
        end = 0.05 + 0.25 * rate + 0.3 * ((x1 - 0.6) ** 2 + (x2 - 0.3) ** 2) + 0.1 * (x3 > 0.5)
        epochs = np.arange(1, self.max_resource + 1)
        fall: _Array = epochs ** -(0.25 + rate)[:, None]
        curves: _Array = end[:, None] + (1 - end)[:, None] * fall
        return curves

    def _deviation(self) -> _Array:
        return np.full(self.max_resource, self.noise)


#: Functions that make a problem with its defaults, by name.
PROBLEMS: Final[Mapping[str, Callable[[], CurveProblem]]] = {
    "hartmann3": lambda: Hartmann(3),
    "hartmann6": lambda: Hartmann(6),
    "crossing": Crossing,
}


def _checked(seed: int) -> int:
    given: object = seed
    is_valid = isinstance(given, int | np.integer) and given >= 0
    check(bool(is_valid), "seed", "an int, at least 0", seed)
    return int(seed)


def _stream(point: _Array, seed: int) -> Generator:
    """Return the random numbers of a training run, which depend on nothing else."""
    # 0.0 instead of -0.0, which is equal and has other bits.
    bits = (point + 0.0).view(np.uint64)
    return default_rng([seed, *map(int, bits)])


#: The weights of the four minima at the full resource, and their change at one epoch.
_ALPHA: Final = np.array([1.0, 1.2, 3.0, 3.2])
_DELTA: Final = np.array([1.2, 0.6, -1.2, -1.6])

#: By dimension: A, P, and the place of the global minimum.
_HARTMANN: Final[Mapping[int, tuple[_Array, _Array, tuple[float, ...]]]] = {
    3: (
        np.array([[3.0, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]]),
        1e-4 * np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]),
        (0.11458887665506896, 0.5556488946169301, 0.8525469846866774),
    ),
    6: (
        np.array(
            [
                [10.0, 3, 17, 3.5, 1.7, 8],
                [0.05, 10, 17, 0.1, 8, 14],
                [3, 3.5, 1.7, 10, 17, 8],
                [17, 8, 0.05, 10, 0.1, 14],
            ]
        ),
        1e-4
        * np.array(
            [
                [1312, 1696, 5569, 124, 8283, 5886],
                [2329, 4135, 8307, 3736, 1004, 9991],
                [2348, 1451, 3522, 2883, 3047, 6650],
                [4047, 8828, 8732, 5743, 1091, 381],
            ]
        ),
        (
            0.20168951100670543,
            0.15001069182345797,
            0.47687397422189703,
            0.2753324304940561,
            0.31165161660011326,
            0.6573005340656204,
        ),
    ),
}
