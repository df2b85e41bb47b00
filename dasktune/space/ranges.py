"""Ranges of floats and integers as domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from numbers import Integral
from typing import Any

from numpy.random import Generator

from dasktune.errors import check
from dasktune.space.checks import as_float, as_int
from dasktune.space.domain import Domain, require_no_sampler
from dasktune.space.samplers import LogUniform, Normal, Quantized, Sampler, Uniform, is_multiple
from dasktune.trial.metrics import number

_LOG_HINT = "Give the bounds themselves, not their logarithms."
_CONSTANT_HINT = "Write a constant as the value itself."


@dataclass(frozen=True, slots=True)
class Float(Domain):
    """A range of floats.

    Parameters
    ----------
    lower, upper : float or None
        The bounds, ``lower < upper``; None means unbounded.
    sampler : Sampler, optional
        The distribution; set by the methods.

    Raises
    ------
    ConfigError
        If a bound is not a number, or not ``lower < upper``.

    Examples
    --------
    >>> Float(1e-4, 1e-1).loguniform()
    Float(lower=0.0001, upper=0.1, sampler=LogUniform())
    >>> Float(0, 1).quantized(0.25).is_valid(0.3)
    False
    """

    lower: float
    upper: float
    sampler: Sampler | None = field(default=None, kw_only=True)

    def __init__(self, lower: float | None, upper: float | None, *, sampler: Sampler | None = None) -> None:
        low = -inf if lower is None else as_float("lower", lower)
        high = inf if upper is None else as_float("upper", upper)
        check(low < high, "lower", f"less than upper={high!r}", low, _CONSTANT_HINT)
        object.__setattr__(self, "lower", low)
        object.__setattr__(self, "upper", high)
        object.__setattr__(self, "sampler", sampler)

    def get_sampler(self) -> Sampler:
        """Return the sampler, :class:`Uniform` if none was chosen."""
        return self.sampler or self.uniform().get_sampler()

    def uniform(self) -> Float:
        """Return the domain with a uniform distribution.

        Raises
        ------
        ConfigError
            If a bound is missing, or another sampler was chosen.
        """
        self._require_finite_bounds()
        return self._with(Uniform())

    def loguniform(self) -> Float:
        """Return the domain with a log-uniform distribution.

        Raises
        ------
        ConfigError
            If a bound is missing, ``lower <= 0``, or another sampler was chosen.
        """
        check(self.lower > 0, "lower", "> 0 on a log scale", self.lower, _LOG_HINT)
        self._require_finite_bounds()
        return self._with(LogUniform())

    def normal(self, mean: float = 0.0, sd: float = 1.0) -> Float:
        """Return the domain with a normal distribution; the domain must have no bounds.

        Raises
        ------
        ConfigError
            If there are bounds, ``sd <= 0``, or another sampler was chosen.
        """
        bounds = (self.lower, self.upper)
        check(bounds == (-inf, inf), "bounds", "None with a normal distribution", bounds)
        return self._with(Normal(as_float("mean", mean), as_float("sd", sd)))

    def quantized(self, q: float) -> Float:
        """Return the domain with its values rounded to multiples of `q`, `upper` included.

        Raises
        ------
        ConfigError
            If ``q <= 0``, a bound is not a multiple of it, or the domain is quantised already.
        """
        quantum = as_float("q", q)
        check(quantum > 0 and isfinite(quantum), "q", "finite and > 0", q)
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            divisible = not isfinite(bound) or is_multiple(bound, quantum)
            check(divisible, name, f"divisible by q={quantum!r}", bound)
        if isinstance(self.sampler, Quantized):
            require_no_sampler(self.sampler)
        return replace(self, sampler=Quantized(self.get_sampler(), quantum))

    def _with(self, sampler: Sampler) -> Float:
        require_no_sampler(self.sampler)
        return replace(self, sampler=sampler)

    def _require_finite_bounds(self) -> None:
        bounds = (self.lower, self.upper)
        # The difference of finite bounds is infinite only if they are near the largest float.
        check(isfinite(self.upper - self.lower), "lower and upper", "finite", bounds)

    def _draw(
        self, config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, size: int, rng: Generator
    ) -> list[Any]:
        return self.get_sampler().floats(self.lower, self.upper, size, rng)

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` is a number that could be drawn, or is `upper`."""
        real = number(value)
        if real is None or not self.lower <= real <= self.upper:
            return False
        return not isinstance(self.sampler, Quantized) or is_multiple(real, self.sampler.q)

    def cast(self, value: Any) -> float:
        """Return `value` as a float."""
        return float(value)

    @property
    def domain_str(self) -> str:
        """The bounds, ``(0.0, 1.0)``."""
        return f"({self.lower}, {self.upper})"


@dataclass(frozen=True, slots=True)
class Integer(Domain):
    """A range of integers; `upper` is excluded unless the range is quantised.

    Parameters
    ----------
    lower, upper : int
        The bounds, ``lower < upper``, both within 64 bits.
    sampler : Sampler, optional
        The distribution; set by the methods.

    Raises
    ------
    ConfigError
        If a bound is not an integer, or not ``lower < upper``.

    Examples
    --------
    >>> Integer(0, 10).quantized(5).is_valid(10), Integer(0, 10).is_valid(10)
    (True, False)
    """

    lower: int
    upper: int
    sampler: Sampler | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        low, high = as_int("lower", self.lower), as_int("upper", self.upper)
        check(low < high, "lower", f"less than upper={high!r}", low, _CONSTANT_HINT)
        fits = low >= -(2**63) and high < 2**63
        check(fits, "lower and upper", "64-bit integers", (low, high))
        object.__setattr__(self, "lower", low)
        object.__setattr__(self, "upper", high)

    def get_sampler(self) -> Sampler:
        """Return the sampler, :class:`Uniform` if none was chosen."""
        return self.sampler or Uniform()

    def uniform(self) -> Integer:
        """Return the domain with a uniform distribution.

        Raises
        ------
        ConfigError
            If another sampler was chosen.
        """
        return self._with(Uniform())

    def loguniform(self) -> Integer:
        """Return the domain with a log-uniform distribution.

        Raises
        ------
        ConfigError
            If ``lower <= 0``, or another sampler was chosen.
        """
        check(self.lower > 0, "lower", "> 0 on a log scale", self.lower, _LOG_HINT)
        return self._with(LogUniform())

    def quantized(self, q: int) -> Integer:
        """Return the domain of the multiples of `q`, with `upper` included unless ``q == 1``.

        Raises
        ------
        ConfigError
            If `q` is not a positive integer, there is no multiple of it within the bounds, or the
            domain is quantised already.
        """
        quantum = as_int("q", q, least=1)
        bounds = (self.lower, self.upper)
        holds_one = -(-self.lower // quantum) <= self.upper // quantum
        check(holds_one, "lower and upper", f"around a multiple of q={quantum!r}", bounds)
        if isinstance(self.sampler, Quantized):
            require_no_sampler(self.sampler)
        return replace(self, sampler=Quantized(self.get_sampler(), quantum))

    def _with(self, sampler: Sampler) -> Integer:
        require_no_sampler(self.sampler)
        return replace(self, sampler=sampler)

    def _draw(
        self, config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, size: int, rng: Generator
    ) -> list[Any]:
        return self.get_sampler().integers(self.lower, self.upper, size, rng)

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` is an integer that could be drawn."""
        if not isinstance(value, Integral):
            return False
        q = self.sampler.q if isinstance(self.sampler, Quantized) else 1
        last = self.upper if q > 1 else self.upper - 1
        return self.lower <= int(value) <= last and int(value) % int(q) == 0

    def cast(self, value: Any) -> int:
        """Return `value` as an int, rounded towards zero."""
        return int(value)

    @property
    def domain_str(self) -> str:
        """The bounds, ``(0, 10)``."""
        return f"({self.lower}, {self.upper})"
