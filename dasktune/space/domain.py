"""Domains: the sets from which the values of a search space are drawn.

A domain is frozen, comparable, and hashable if its values are. Its *sampler* is the distribution
that values are drawn from; a domain without a sampler is drawn from uniformly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from inspect import Signature, signature
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import Generator

from dasktune.errors import check
from dasktune.space.checks import as_int
from dasktune.space.samplers import (
    RandomSource,
    Sampler,
    Uniform,
    random_generator,
)
from dasktune.space.tree import PartialConfig, Variable, WholeConfig
from dasktune.trial.nesting import check_nesting


def ordered_values(name: str, values: Any) -> list[Any]:
    """Return `values` as a non-empty list, with numpy scalars converted to Python values.

    Raises
    ------
    ConfigError
        If there are no values, or `values` is a set, the order of which differs between processes.
    """
    listable = isinstance(values, Iterable) and not isinstance(values, Set)
    hint = "A set has no fixed order." if isinstance(values, Set) else f"Write [{values!r}]."
    check(listable, name, "a list of values", values, hint)
    items = [item.item() if isinstance(item, np.generic) else item for item in values]
    check(bool(items), name, "at least one value", values)
    return items


class Domain(Variable, ABC):
    """The set of values that one parameter of a search space may have.

    Methods of the subclasses that choose a sampler return a new domain.
    """

    __slots__ = ()

    def sample(
        self,
        config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        size: int = 1,
        random_state: RandomSource = None,
    ) -> Any:
        """Draw values.

        Parameters
        ----------
        config : mapping or sequence of mappings, optional
            The configuration that a :class:`Function` depends on; a sequence has one for each draw.
        size : int, default=1
            Number of values, at least 1.
        random_state : int, Generator, RandomState, SeedSequence or None
            Source of randomness. None gives values that cannot be reproduced.

        Returns
        -------
        object or list of object
            One plain Python value, or a list of them if ``size > 1``.

        Raises
        ------
        ConfigError
            If `size` or `random_state` is invalid.
        """
        count = as_int("size", size, least=1)
        values = self._draw(config, count, random_generator(random_state))
        return values if count > 1 else values[0]

    @abstractmethod
    def _draw(
        self, config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, size: int, rng: Generator
    ) -> list[Any]:
        """Draw `size` values."""

    @abstractmethod
    def is_valid(self, value: Any) -> bool:
        """Return whether `value` lies in this domain."""

    def cast(self, value: Any) -> Any:
        """Return `value` as the type of this domain."""
        return value

    @property
    @abstractmethod
    def domain_str(self) -> str:
        """The domain as text, such as ``(0.0, 1.0)``."""


def require_no_sampler(sampler: Sampler | None) -> None:
    """Raise ConfigError if a domain already has a sampler."""
    hint = "A domain takes one sampler, and quantized() comes last."
    check(sampler is None, "sampler", "chosen once", sampler, hint)


@dataclass(frozen=True, slots=True)
class Categorical(Domain):
    """One of several values, which may themselves be search spaces.

    Parameters
    ----------
    categories : iterable of object
        The values, at least one. A set is rejected, because it has no fixed order.
    sampler : Sampler, optional
        The distribution; set by the methods.

    Raises
    ------
    ConfigError
        If there are no values, or they are a set.

    Examples
    --------
    >>> Categorical(["relu", "tanh"]).domain_str
    "['relu', 'tanh']"
    """

    categories: tuple[Any, ...]
    sampler: Sampler | None = field(default=None, kw_only=True)

    def __init__(self, categories: Iterable[Any], *, sampler: Sampler | None = None) -> None:
        object.__setattr__(self, "categories", tuple(ordered_values("categories", categories)))
        check_nesting(self.categories, "categories")
        object.__setattr__(self, "sampler", sampler)

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, item: int) -> Any:
        return self.categories[item]

    def get_sampler(self) -> Sampler:
        """Return the sampler, always :class:`Uniform`."""
        return self.sampler or Uniform()

    def uniform(self) -> Categorical:
        """Return the domain with every value as likely as any other.

        Raises
        ------
        ConfigError
            If a sampler was chosen.
        """
        require_no_sampler(self.sampler)
        return replace(self, sampler=Uniform())

    def _draw(
        self, config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, size: int, rng: Generator
    ) -> list[Any]:
        indices = self.get_sampler().integers(0, len(self.categories), size, rng)
        return [self.categories[index] for index in indices]

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` is one of the categories."""
        return value in self.categories

    @property
    def domain_str(self) -> str:
        """The values as a list."""
        return str(list(self.categories))


@dataclass(frozen=True, slots=True)
class Function(Domain):
    """A domain whose values are computed by a function.

    Parameters
    ----------
    func : callable
        Called as ``func()`` or ``func(config)``, depending on its signature. Whatever the
        parameter is named, ``.config`` of the argument is the configuration, as in Ray Tune.

    Raises
    ------
    ConfigError
        If `func` is not callable, or needs more arguments.

    Examples
    --------
    >>> Function(lambda config: config["width"] * 2).sample({"width": 8})
    16
    """

    func: Callable[..., Any]
    #: "" if the function takes nothing, else "config" or "spec".
    argument: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(callable(self.func), "func", "callable", self.func)
        object.__setattr__(self, "argument", _argument_of(self.func))

    def _draw(
        self, config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, size: int, rng: Generator
    ) -> list[Any]:
        if not isinstance(config, Sequence):
            config = [{} if config is None else config] * size
        check(len(config) == size, "config", f"one for each of size={size} draws", config)
        return [self._call(each_config) for each_config in config]

    def _call(self, config: Mapping[str, Any]) -> Any:
        if not self.argument:
            value = self.func()
        elif self.argument == "spec":
            value = self.func(SimpleNamespace(config=PartialConfig(config)))
        else:
            value = self.func(WholeConfig(config))
        return value.item() if isinstance(value, np.generic) else value

    def is_valid(self, value: Any) -> bool:
        """Return True: the values of a function cannot be checked."""
        return True

    @property
    def domain_str(self) -> str:
        """A call of the function, as text."""
        return f"{self.func}()"


def _argument_of(func: Callable[..., Any]) -> str:
    """Return which argument `func` takes: "" (none), "config" or "spec"."""
    try:
        expected = signature(func)
    except ValueError:
        # Functions written in C may have no signature. numpy's functions that draw values need no
        # argument.
        return ""
    if _accepts(expected, None):
        return "spec" if next(iter(expected.parameters)) == "spec" else "config"
    hint = f"Its signature is {expected}."
    check(_accepts(expected), "func", "callable as func() or func(config)", func, hint)
    return ""


def _accepts(expected: Signature, *arguments: Any) -> bool:
    try:
        expected.bind(*arguments)
    except TypeError:
        return False
    return True
