"""Domains as Optuna's parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import nextafter
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.space.domain import Domain
from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import LogUniform, Normal, Quantized

__all__ = ["Given", "Options", "Parameter", "Range", "parameter_of"]


class Parameter(ABC):
    """A value that Optuna is asked for."""

    @abstractmethod
    def ask(self, trial: Any, name: str) -> Any:
        """Return what an Optuna trial suggests under a name."""

    @abstractmethod
    def told(self, value: Any, where: str) -> Any:
        """Return what Optuna would have suggested for `value`.

        Raises
        ------
        ConfigError
            If `value` cannot be had; `where` says which one it is.
        """


def parameter_of(node: Any, where: str) -> Any:
    """Return the parameter for a domain or an Optuna distribution, anything else as it is.

    Raises
    ------
    ConfigError
        If Optuna cannot search the domain.
    """
    from optuna.distributions import BaseDistribution

    if isinstance(node, BaseDistribution):
        return Given(node)
    if not isinstance(node, Domain):
        return node
    try:
        # Without a sampler it is drawn from uniformly, for which it must have bounds.
        sampler = node.get_sampler() if isinstance(node, Float | Integer) else None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    inner = sampler.sampler if isinstance(sampler, Quantized) else sampler
    hint = "Optuna searches ranges with bounds, and choices."
    searchable = inner is not None and not isinstance(inner, Normal)
    check(searchable, where, "a domain that Optuna can search", node, hint)
    assert isinstance(node, Float | Integer)
    return Range(node)


class Range(Parameter):
    """A range of numbers, exactly as the domain has it.

    Optuna's ranges include both bounds. Multiples are counted: Optuna has no log scale for them,
    and its own steps go wrong where a quantum such as 1/3 is no short decimal.

    Parameters
    ----------
    domain : Float or Integer
        With bounds, and a sampler that Optuna knows.
    """

    def __init__(self, domain: Float | Integer) -> None:
        sampler = domain.get_sampler()
        self._domain = domain
        self._q: float | None = None
        if isinstance(sampler, Quantized):
            self._q, sampler = sampler.q, sampler.sampler
        self._log = isinstance(sampler, LogUniform)
        self._low: float = domain.lower
        self._high: float = domain.upper
        if isinstance(domain, Integer) and self._q in (None, 1):
            # Nothing is quantised, and the upper bound is not included.
            self._q, self._high = None, domain.upper - 1
        elif self._q is None:
            self._high = nextafter(domain.upper, domain.lower)
        elif isinstance(domain, Integer):
            self._low, self._high = -(-domain.lower // int(self._q)), domain.upper // int(self._q)
        else:
            self._low, self._high = round(domain.lower / self._q), round(domain.upper / self._q)

    def ask(self, trial: Any, name: str) -> Any:
        """Return a value of the domain."""
        if isinstance(self._domain, Float) and self._q is None:
            return trial.suggest_float(name, self._low, self._high, log=self._log)
        # Where integers are large, Optuna's floats round, perhaps out of the range.
        drawn = trial.suggest_int(name, self._low, self._high, log=self._log)
        count = int(min(max(drawn, self._low), self._high))
        if self._q is None:
            return count
        if isinstance(self._domain, Integer):
            return count * int(self._q)
        # 3 * 0.1 is more than 0.3.
        return min(max(count * self._q, self._domain.lower), self._domain.upper)

    def told(self, value: Any, where: str) -> Any:
        """Return the value itself, or which multiple it is."""
        rule = f"within {self._domain.domain_str}"
        check(self._domain.is_valid(value), where, rule, value)
        if self._q is not None:
            return round(value / self._q) if isinstance(self._domain, Float) else value // self._q
        # The upper bound of floats is valid, and never drawn.
        return min(self._domain.cast(value), self._high)


class Given(Parameter):
    """A distribution of Optuna's own.

    Parameters
    ----------
    distribution : optuna.distributions.BaseDistribution
        As the user wrote it.
    """

    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution

    def ask(self, trial: Any, name: str) -> Any:
        """Return a value of the distribution."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        given = self._distribution
        if isinstance(given, CategoricalDistribution):
            return trial.suggest_categorical(name, given.choices)
        kind = trial.suggest_float if isinstance(given, FloatDistribution) else trial.suggest_int
        return kind(name, given.low, given.high, step=given.step, log=given.log)

    def told(self, value: Any, where: str) -> Any:
        """Return the value."""
        return value


class Options(Parameter):
    """One of several values, which may be search spaces of their own.

    Optuna sees the values if they are plain and different, which is easier to read in the study,
    else their numbers.

    Parameters
    ----------
    items : list
        The values, with parameters in the place of domains.
    branches : bool
        Whether any of them has such.

    """

    def __init__(self, items: list[Any], branches: bool) -> None:
        self.items = items
        self.branches = branches
        plain = all(one is None or type(one) in (bool, int, float, str) for one in items)
        # 1, 1.0 and True are one to Optuna, and NaN is not itself.
        distinct = plain and len({*items}) == len(items) and all(one == one for one in items)
        self._seen: list[Any] = items if distinct else list(range(len(items)))

    def ask(self, trial: Any, name: str) -> int:
        """Return the number of one of the values."""
        return self._seen.index(trial.suggest_categorical(name, self._seen))

    def told(self, value: Any, where: str) -> Any:
        """Return what stands for the value of this number."""
        return self._seen[value]
