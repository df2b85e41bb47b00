"""Conversion of domains to what optimisation libraries support: closed ranges and choices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import nextafter
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.space.domain import Domain
from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import LogUniform, Normal, Quantized


class Parameter(ABC):
    """One parameter, whose value a library suggests through the methods of an Optuna trial."""

    @abstractmethod
    def suggest(self, trial: Any, name: str) -> Any:
        """Return the value that `trial`, an Optuna trial or a stand-in, suggests for `name`."""

    @abstractmethod
    def encode(self, value: Any, where: str) -> Any:
        """Return the library's value that :meth:`suggest` converts to `value`.

        Raises
        ------
        ConfigError
            If `value` is not a value of this parameter. The message begins with `where`.
        """


def parameter_for(node: Any, where: str, library: str) -> Any:
    """Convert a range to a parameter, and return anything that is not a domain unchanged.

    Parameters
    ----------
    node : object
        A range of numbers, or a value of the search space.
    where, library : str
        The location of `node` and the name of the library, for error messages.

    Raises
    ------
    ConfigError
        If `node` is a domain without bounds, which no library can search.
    """
    if not isinstance(node, Domain):
        return node
    try:
        # A range without a sampler gets the uniform one, which raises if there are no bounds.
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
    """A closed range with exactly the values of a domain.

    The library suggests a quantised value as the integer k of ``k * q``. Optuna's own steps do not
    allow a log scale, and they round wrongly if `q` is a number such as 1/3, which is no short
    decimal.

    Parameters
    ----------
    domain : Float or Integer
        A range with bounds, uniform or log-uniform, quantised or not.

    Attributes
    ----------
    low, high : float
        The bounds for the library, both included: of the values, or of k if they are quantised.
    log : bool
        Whether the range has a log scale.
    is_whole : bool
        Whether the library suggests integers.
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
            # Every integer is a multiple of 1, so the upper bound is excluded as without q.
            self._q, self.high = None, domain.upper - 1
        elif self._q is None:
            self.high = nextafter(domain.upper, domain.lower)
        elif isinstance(domain, Integer):
            self.low, self.high = -(-domain.lower // int(self._q)), domain.upper // int(self._q)
        else:
            self.low, self.high = round(domain.lower / self._q), round(domain.upper / self._q)

    def suggest(self, trial: Any, name: str) -> Any:
        """Return a value of the domain."""
        if not self.is_whole:
            return trial.suggest_float(name, self.low, self.high, log=self.log)
        # A library that computes with floats may round a large integer out of the range.
        suggested = trial.suggest_int(name, self.low, self.high, log=self.log)
        k = int(min(max(suggested, self.low), self.high))
        if self._q is None:
            return k
        if isinstance(self._domain, Integer):
            return k * int(self._q)
        # 3 * 0.1 is more than 0.3.
        return min(max(k * self._q, self._domain.lower), self._domain.upper)

    def encode(self, value: Any, where: str) -> Any:
        """Return the value itself, or the k of ``k * q`` if the domain is quantised."""
        rule = f"within {self._domain.domain_str}"
        check(self._domain.is_valid(value), where, rule, value)
        if self._q is not None:
            return round(value / self._q) if isinstance(self._domain, Float) else value // self._q
        # The upper bound of a float range is valid, but the library's range excludes it.
        return min(self._domain.cast(value), self.high)


class Options(Parameter):
    """A choice among options, which may be search spaces themselves.

    The library gets the options themselves if they are distinct plain values, which is easier to
    read in an Optuna study; otherwise it gets their indices.

    Parameters
    ----------
    items : list
        The options, with parameters instead of domains.
    branches : bool
        Whether any option contains parameters.

    Attributes
    ----------
    seen : list
        The value that the library gets for each option.
    """

    def __init__(self, items: list[Any], branches: bool) -> None:
        self.items = items
        self.branches = branches
        plain = all(item is None or type(item) in (bool, int, float, str) for item in items)
        # Libraries compare by ==: 1, 1.0 and True are equal, and NaN does not equal itself.
        distinct = plain and len({*items}) == len(items) and all(item == item for item in items)
        self.seen: list[Any] = items if distinct else list(range(len(items)))

    def suggest(self, trial: Any, name: str) -> int:
        """Return the index of the suggested option."""
        return self.seen.index(trial.suggest_categorical(name, self.seen))

    def encode(self, value: Any, where: str) -> Any:
        """Return the library's value for the option with the index `value`."""
        return self.seen[value]
