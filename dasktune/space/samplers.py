"""Samplers: the distributions that values are drawn from, and the random generators they use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import exp, isclose, isfinite, log, nextafter

import numpy as np
from numpy.random import Generator, RandomState, SeedSequence, default_rng

from dasktune.errors import ConfigError, check
from dasktune.space.checks import as_int

#: The accepted types of `random_state` arguments.
RandomSource = int | Generator | RandomState | SeedSequence | None


def random_generator(random_state: RandomSource) -> Generator:
    """Return a numpy Generator for a `random_state` argument.

    A generator is used directly, so drawing advances its stream. An integer or a seed sequence
    starts a new stream; None starts one that cannot be reproduced. numpy's global generator is not
    used.

    Parameters
    ----------
    random_state : int, Generator, RandomState, SeedSequence or None
        The source of randomness.

    Raises
    ------
    ConfigError
        If `random_state` is none of these, or a negative integer.

    Examples
    --------
    >>> int(random_generator(7).integers(100)) == int(random_generator(7).integers(100))
    True
    """
    if isinstance(random_state, Generator):
        return random_state
    if isinstance(random_state, RandomState):
        # The legacy class has no public attribute for its bit generator. numpy's default_rng
        # accepts a RandomState too, but only from numpy 2.2 on.
        return Generator(random_state._bit_generator)
    if random_state is None or isinstance(random_state, SeedSequence):
        return default_rng(random_state)
    return default_rng(as_int("random_state", random_state, least=0))


def is_multiple(value: float, q: float) -> bool:
    """Return whether `value` is a multiple of `q`, up to rounding.

    Examples
    --------
    >>> is_multiple(0.3, 0.1), is_multiple(0.25, 0.1)
    (True, False)
    """
    ratio = value / q
    return isfinite(ratio) and isclose(ratio, round(ratio))


class Sampler(ABC):
    """A distribution; its methods get the range to draw from."""

    __slots__ = ()

    @abstractmethod
    def floats(self, lower: float, upper: float, size: int, rng: Generator) -> list[float]:
        """Draw `size` floats in ``[lower, upper)``."""

    @abstractmethod
    def integers(self, lower: int, upper: int, size: int, rng: Generator) -> list[int]:
        """Draw `size` integers in ``[lower, upper)``."""


@dataclass(frozen=True, slots=True)
class Uniform(Sampler):
    """The uniform distribution."""

    def floats(self, lower: float, upper: float, size: int, rng: Generator) -> list[float]:
        """Draw `size` floats in ``[lower, upper)``."""
        last, width = nextafter(upper, lower), upper - lower
        # The sum may round up to the bound that is excluded.
        return [min(lower + width * part, last) for part in rng.random(size).tolist()]

    def integers(self, lower: int, upper: int, size: int, rng: Generator) -> list[int]:
        """Draw `size` integers in ``[lower, upper)``."""
        drawn: list[int] = rng.integers(lower, upper, size=size, dtype=np.int64).tolist()
        return drawn


@dataclass(frozen=True, slots=True)
class LogUniform(Sampler):
    """The log-uniform distribution; the range must be positive."""

    def floats(self, lower: float, upper: float, size: int, rng: Generator) -> list[float]:
        """Draw `size` floats in ``[lower, upper)``."""
        low, width, last = log(lower), log(upper) - log(lower), nextafter(upper, lower)
        values = (exp(low + width * part) for part in rng.random(size).tolist())
        # exp(log(x)) is not always x, at either bound.
        return [min(max(value, lower), last) for value in values]

    def integers(self, lower: int, upper: int, size: int, rng: Generator) -> list[int]:
        """Draw `size` integers in ``[lower, upper)``; k has the weight ``log((k + 1) / k)``."""
        values = self.floats(lower, upper, size, rng)
        # A float cannot hold every integer: near 2**63 it may round out of the range.
        return [min(max(int(value), lower), upper - 1) for value in values]


@dataclass(frozen=True, slots=True)
class Normal(Sampler):
    """The normal distribution, for floats without bounds.

    Parameters
    ----------
    mean : float, default=0.0
        The mean.
    sd : float, default=1.0
        The standard deviation, > 0.

    Raises
    ------
    ConfigError
        If a parameter is not finite, or ``sd <= 0``.
    """

    mean: float = 0.0
    sd: float = 1.0

    def __post_init__(self) -> None:
        check(isfinite(self.mean), "mean", "finite", self.mean)
        check(isfinite(self.sd) and self.sd > 0, "sd", "finite and > 0", self.sd)

    def floats(self, lower: float, upper: float, size: int, rng: Generator) -> list[float]:
        """Draw `size` floats; `lower` and `upper` are not used."""
        drawn: list[float] = rng.normal(self.mean, self.sd, size).tolist()
        return drawn

    def integers(self, lower: int, upper: int, size: int, rng: Generator) -> list[int]:
        """Raise: a normal distribution cannot draw integers.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError("sampler must be uniform or log-uniform for integers, got Normal")


@dataclass(frozen=True, slots=True)
class Quantized(Sampler):
    """Multiples of `q`, drawn by another sampler; the upper bound is included.

    Parameters
    ----------
    sampler : Sampler
        The distribution that is rounded to multiples.
    q : float
        The quantum, > 0.
    """

    sampler: Sampler
    q: float

    def floats(self, lower: float, upper: float, size: int, rng: Generator) -> list[float]:
        """Draw `size` floats and round them: ``round(x / q) * q``, in ``[lower, upper]``."""
        values = self.sampler.floats(lower, upper, size, rng)
        # 3 * 0.1 is more than 0.3.
        return [min(max(round(value / self.q) * self.q, lower), upper) for value in values]

    def integers(self, lower: int, upper: int, size: int, rng: Generator) -> list[int]:
        """Draw `size` multiples of `q` in ``[lower, upper]`` directly, without rounding.

        With rounding, the first and last multiple would have half the weight of the others.
        """
        q = int(self.q)
        if q == 1:
            # Every integer is a multiple of 1: draw as without quantisation, upper bound excluded.
            return self.sampler.integers(lower, upper, size, rng)
        multiples = self.sampler.integers(-(-lower // q), upper // q + 1, size, rng)
        return [multiple * q for multiple in multiples]
