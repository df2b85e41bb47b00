"""Domains as the parameters that libraries of optimisers know: closed ranges, and choices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import nextafter
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.space.domain import Domain
from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import LogUniform, Normal, Quantized

__all__ = ["Options", "Parameter", "Range", "parameter_for"]


class Parameter(ABC):
    """A value that a library is asked for, by the methods that an Optuna trial has."""

    @abstractmethod
    def ask(self, trial: Any, name: str) -> Any:
        """Return what a trial suggests under a name."""

    @abstractmethod
    def answer_for(self, value: Any, where: str) -> Any:
        """Return what the trial would have suggested for `value`.

        Raises
        ------
        ConfigError
            If `value` cannot be had; `where` says which one it is.
        """


def parameter_for(node: Any, where: str, library: str) -> Any:
    """Return the parameter for a domain of numbers, anything that is no domain as it is.

    Raises
    ------
    ConfigError
        If it is a domain that no library can search; `where` and `library` are for the message.
    """
    if not isinstance(node, Domain):
        return node
    try:
        # Without a sampler it is drawn from uniformly, for which it must have bounds.
        sampler = node.get_sampler() if isinstance(node, Float | Integer) else None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    inner = sampler.sampler if isinstance(sampler, Quantized) else sampler
    hint = f"{library} searches ranges with bounds, and choices."
    searchable = inner is not None and not isinstance(inner, Normal)
    check(searchable, where, f"a domain that {library} can search", node, hint)
    assert isinstance(node, Float | Integer)
    return Range(node)


class Range(Parameter):
    """A range of numbers, exactly as the domain has it.

    Libraries' ranges include both bounds. Multiples are counted: Optuna has no log scale for them,
    and its own steps go wrong where a quantum such as 1/3 is no short decimal.

    Parameters
    ----------
    domain : Float or Integer
        With bounds, uniform or log-uniform, quantised or not.

    Attributes
    ----------
    low, high : float
        The bounds of what is asked for, both included: of values, or of how often the quantum.
    log : bool
        Whether every order of magnitude is as likely as any other.
    is_whole : bool
        Whether it is integers that are asked for.
    """

    def __init__(self, domain: Float | Integer) -> None:
        sampler = domain.get_sampler()
        self._domain = domain
        self._q: float | None = None
        if isinstance(sampler, Quantized):
            self._q, sampler = sampler.q, sampler.sampler
        self.log = isinstance(sampler, LogUniform)
        self.is_whole = isinstance(domain, Integer) or self._q is not None
        self.low: float = domain.lower
        self.high: float = domain.upper
        if isinstance(domain, Integer) and self._q in (None, 1):
            # Nothing is quantised, and the upper bound is not included.
            self._q, self.high = None, domain.upper - 1
        elif self._q is None:
            self.high = nextafter(domain.upper, domain.lower)
        elif isinstance(domain, Integer):
            self.low, self.high = -(-domain.lower // int(self._q)), domain.upper // int(self._q)
        else:
            self.low, self.high = round(domain.lower / self._q), round(domain.upper / self._q)

    def ask(self, trial: Any, name: str) -> Any:
        """Return a value of the domain."""
        if not self.is_whole:
            return trial.suggest_float(name, self.low, self.high, log=self.log)
        # Where integers are large, a library's floats round, perhaps out of the range.
        drawn = trial.suggest_int(name, self.low, self.high, log=self.log)
        count = int(min(max(drawn, self.low), self.high))
        if self._q is None:
            return count
        if isinstance(self._domain, Integer):
            return count * int(self._q)
        # 3 * 0.1 is more than 0.3.
        return min(max(count * self._q, self._domain.lower), self._domain.upper)

    def answer_for(self, value: Any, where: str) -> Any:
        """Return the value itself, or which multiple it is."""
        rule = f"within {self._domain.domain_str}"
        check(self._domain.is_valid(value), where, rule, value)
        if self._q is not None:
            return round(value / self._q) if isinstance(self._domain, Float) else value // self._q
        # The upper bound of floats is valid, and never drawn.
        return min(self._domain.cast(value), self.high)


class Options(Parameter):
    """One of several values, which may be search spaces of their own.

    The library sees the values if they are plain and different, which is easier to read in an
    Optuna study, else their numbers.

    Parameters
    ----------
    items : list
        The values, with parameters in the place of domains.
    branches : bool
        Whether any of them has such.

    Attributes
    ----------
    seen : list
        What stands for each of them.
    """

    def __init__(self, items: list[Any], branches: bool) -> None:
        self.items = items
        self.branches = branches
        plain = all(one is None or type(one) in (bool, int, float, str) for one in items)
        # 1, 1.0 and True are one to a library, and NaN is not itself.
        distinct = plain and len({*items}) == len(items) and all(one == one for one in items)
        self.seen: list[Any] = items if distinct else list(range(len(items)))

    def ask(self, trial: Any, name: str) -> int:
        """Return the number of one of the values."""
        return self.seen.index(trial.suggest_categorical(name, self.seen))

    def answer_for(self, value: Any, where: str) -> Any:
        """Return what stands for the value of this number."""
        return self.seen[value]
