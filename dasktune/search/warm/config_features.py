"""Configurations of different search spaces as rows of one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dasktune.search.spaces.parameters import Options, Range, compile_tree
from dasktune.search.warm.past_experiments import plain
from dasktune.space import Domain, Function
from dasktune.trial.metrics import number

#: The largest number of categories; scikit-learn's trees have 255 bins. Further ones are missing.
_MOST_CATEGORIES: Final = 250


#: Stands for a value that a configuration does not have.
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class _Feature:
    """A value inside a configuration: at a path of the space, and there at further keys."""

    path: str
    inside: tuple[str, ...]
    #: The number of each known category; None if the value is a number.
    codes: dict[str, int] | None

    def find(self, config: Mapping[str, Any]) -> Any:
        """Return the value in a configuration, or `_MISSING`."""
        keys = (self.path,) if self.path in config else tuple(self.path.split("/"))
        found: Any = config
        for key in (*keys, *self.inside):
            found = _child(found, key)
        return found

    def learn(self, configs: Iterable[Mapping[str, Any]]) -> bool:
        """Give numbers to new categories; return whether any configuration has the parameter."""
        found = [value for config in configs if (value := self.find(config)) is not _MISSING]
        if self.codes is None:
            return any(_number(value) is not None for value in found)
        for value in found:
            if len(self.codes) < _MOST_CATEGORIES:
                self.codes.setdefault(_category(value), len(self.codes))
        return bool(found)

    def number(self, config: Mapping[str, Any]) -> float:
        """Return the value in a configuration as a number, NaN if it is missing."""
        found = self.find(config)
        if found is _MISSING:
            return nan
        code = _number(found) if self.codes is None else self.codes.get(_category(found))
        return nan if code is None else code


class ConfigFeatures:
    """A table with a row for each configuration and a column for each parameter of a space.

    A configuration of another space has the columns by the names of its parameters. What it does
    not have, such as a parameter inside an option that it has not chosen, is missing (NaN), and
    what the space does not have is dropped. Numbers are as they are, whatever their range and scale
    was. Choices of numbers are numbers; other choices are categories, which are equal if
    their values are. A category that the space does not have is one of its own.

    Parameters
    ----------
    domains : mapping of str to Domain
        The domains of the space by path.
    configs : sequence of mapping
        Configurations of other spaces, of plain values.

    Attributes
    ----------
    is_category : ndarray of shape (d,)
        Whether a column has numbers of categories.

    Examples
    --------
    >>> from dasktune.space import choice, loguniform
    >>> space = {"lr": loguniform(1e-3, 1), "kind": choice(["a", "b"])}
    >>> past = [{"lr": 3.0, "kind": "c", "depth": 5}, {"kind": "b"}]
    >>> ConfigFeatures(space, past).table(past).tolist()
    [[3.0, 2.0], [nan, 1.0]]
    """

    def __init__(self, domains: Mapping[str, Domain], configs: Sequence[Mapping[str, Any]]) -> None:
        features = (
            _feature(path, inside, leaves)
            for path, domain in domains.items()
            for inside, leaves in _leaves_by_key(domain, path).items()
        )
        # What no earlier configuration has says nothing.
        self._features = [one for one in features if one.learn(configs)]
        self.is_category: NDArray[np.bool_] = np.array(
            [one.codes is not None for one in self._features], bool
        )

    def table(self, configs: Iterable[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Return the table of some configurations, an array of shape (n, d).

        Parameters
        ----------
        configs : iterable of mapping
            Configurations, nested or with a value for each path of the space.
        """
        rows = [[one.number(config) for one in self._features] for config in configs]
        return np.array(rows, dtype=float).reshape(len(rows), len(self._features))


def _child(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key, _MISSING)
    if isinstance(value, list | tuple) and key.isdecimal() and int(key) < len(value):
        return value[int(key)]
    return _MISSING


def _leaves_by_key(domain: Domain, path: str) -> dict[tuple[str, ...], list[Any]]:
    """Return the ranges and the options' constants inside a domain, by their keys."""
    leaves: dict[tuple[str, ...], list[Any]] = {}
    for inside, leaf in _leaves(compile_tree(domain, path, "param_space", "WarmStart"), ()):
        leaves.setdefault(inside, []).append(leaf)
    return leaves


def _leaves(node: Any, inside: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _leaves(child, (*inside, str(key)))
    elif type(node) in (list, tuple):
        for index, child in enumerate(node):
            yield from _leaves(child, (*inside, str(index)))
    elif isinstance(node, Options):
        for option in node.items:
            yield from _leaves(option, inside)
    elif not isinstance(node, Function):
        yield inside, node


def _feature(path: str, inside: tuple[str, ...], leaves: list[Any]) -> _Feature:
    constants = [leaf for leaf in leaves if not isinstance(leaf, Range)]
    # None beside numbers, such as the depth of a tree without a limit, is a missing number.
    if all(one is None or _number(one) is not None for one in constants):
        return _Feature(path, inside, None)
    codes: dict[str, int] = {}
    for constant in constants[:_MOST_CATEGORIES]:
        codes.setdefault(_category(constant), len(codes))
    return _Feature(path, inside, codes)


def _number(value: Any) -> float | None:
    # Trees have no use for infinity, which scikit-learn refuses. An integer can be too large to be
    # a float.
    real = None if isinstance(value, bool) or not isinstance(value, int | float) else number(value)
    return real if real is not None and isfinite(real) else None


def _category(value: Any) -> str:
    """Return a text that equal options have in common, also if one was read from a journal."""
    value = plain(value)
    if isinstance(value, dict) and list(value) == ["$repr"]:
        return str(value["$repr"])
    if isinstance(value, dict | list):
        return "a container"
    real = _number(value)
    return repr(value if real is None else real)
