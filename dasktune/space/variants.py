"""Resolve search spaces: walk the points of the grid, and draw all other values.

Paths are visited in sorted order, so the order of keys in a dict does not change the result.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import itemgetter
from types import FunctionType
from typing import Any, Final

from numpy.random import Generator

from dasktune.errors import ConfigError, RecursiveDependencyError, check
from dasktune.space.domain import Categorical, Domain, ordered_values
from dasktune.space.primitives import uniform
from dasktune.space.samplers import RandomSource, random_generator
from dasktune.space.tree import (
    NotYetKnown,
    OpenTuple,
    PartialConfig,
    PartialList,
    Path,
    Variable,
    assign,
    close_tree,
    copy_tree,
    path_name,
    value_at,
    variables,
)
from dasktune.trial.metrics import flatten

_MAX_PASSES: Final = 20

#: Tags become parts of file names, which are limited to 255 bytes on most systems.
_MAX_TAG_LENGTH: Final = 100
_NOT_PORTABLE: Final = re.compile(r"[^a-zA-Z0-9_.+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One configuration of a search space.

    Parameters
    ----------
    config : dict
        The search space with a value for every parameter.
    resolved : dict of str to object
        The values that were drawn or taken from a grid, by path.
    """

    config: dict[str, Any]
    resolved: dict[str, Any]


class Variants:
    """A checked search space from which configurations are drawn.

    The containers of a space are dicts, lists and tuples. A key above a domain or a grid must be a
    string without ``/``, because ``/`` joins the keys of a path.

    Parameters
    ----------
    space : mapping of str to object
        The search space.

    Attributes
    ----------
    size : int
        Number of points of the grid; 1 without a grid.

    Raises
    ------
    ConfigError
        If the space is invalid; the message names the path.

    Examples
    --------
    >>> from dasktune.space import grid_search, sample_from
    >>> double = sample_from(lambda config: 2 * config["a"])
    >>> variants = Variants({"a": grid_search([1, 2]), "b": grid_search([3, 4]), "c": double})
    >>> [variants.draw(point, random_generator(0)).config for point in range(variants.size)]
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'a': 1, 'b': 3, 'c': 2}, {'a': 2, 'b': 3, 'c': 4},
     {'a': 1, 'b': 4, 'c': 2}, {'a': 2, 'b': 4, 'c': 4}]
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        check(isinstance(space, Mapping), "param_space", "a dict", space)
        self._tree = _open(dict(space), ())
        check(isinstance(self._tree, dict), "param_space", "more than a grid or a domain", space)
        self._axes = _axes_of(self._tree)
        self._paths = sorted(path for path, _ in variables(self._tree))
        self.size = _size_of(self._axes)

    @property
    def grid_paths(self) -> tuple[str, ...]:
        """The paths of the grid's axes; the first one varies fastest."""
        return tuple(path_name(path) for path, _ in self._axes)

    def draw(self, point: int, rng: Generator, *, start: Any = None) -> Variant:
        """Return the variant at a point of the grid.

        The cost is O(size of one configuration) and does not depend on the size of the grid.

        Parameters
        ----------
        point : int
            Number of the point, ``0 <= point < size``; the first axis varies fastest.
        rng : Generator
            Generator for the values that are not on the grid.
        start : object, optional
            Return value of :meth:`draw_constants`: values that are the same at all points.

        Raises
        ------
        RecursiveDependencyError
            If functions of the space depend on each other in a cycle.
        ConfigError
            If a function of the space raises, or returns a grid.
        """
        tree = copy_tree(self._tree if start is None else start)
        tree, waiting = _draw_domains(_select_grid_point(tree, self._axes, point), rng)
        if waiting:
            names = ", ".join(repr(path_name(path)) for path, _ in waiting)
            raise RecursiveDependencyError(
                f"param_space must be free of functions that depend on each other, got {names}. "
                f"Chains of more than {_MAX_PASSES} dependent values are not resolved either."
            )
        config = close_tree(tree)
        resolved = {path_name(path): value_at(config, path) for path in self._paths}
        return Variant(config=config, resolved=resolved)

    @property
    def domains(self) -> dict[str, Domain]:
        """The domains by path, sorted; domains inside a grid or another domain are left out."""
        return {path_name(path): domain for path, domain in _domains(self._tree)}

    def fill_in(self, values: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """Return a configuration with given values for domains.

        Parameters
        ----------
        values : mapping of str to object
            Values by path, as in `domains`. Missing values and domains inside values are drawn.
        rng : Generator
            Generator for the values that are drawn.

        Raises
        ------
        RecursiveDependencyError
            If functions of the space depend on each other in a cycle.
        ConfigError
            If a function of the space raises.

        Examples
        --------
        >>> from dasktune.space import randint, sample_from
        >>> double = sample_from(lambda config: 2 * config["a"])
        >>> variants = Variants({"a": randint(0, 9), "b": double})
        >>> variants.fill_in({"a": 4}, random_generator(0))
        {'a': 4, 'b': 8}
        """
        tree = copy_tree(self._tree)
        for path, _ in _domains(tree):
            if path_name(path) in values:
                chosen = _open(values[path_name(path)], path, drawn=True)
                tree = assign(tree, path, chosen)
        return self.draw(0, rng, start=tree).config

    def domain_values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a configuration at the domains of the space, by path.

        Raises
        ------
        ConfigError
            If the configuration has no value at the path of a domain.
        """
        values = {}
        for path, _ in _domains(self._tree):
            try:
                values[path_name(path)] = value_at(config, path)
            except (LookupError, TypeError):
                rule = f"a dict with a value at {path_name(path)!r}"
                raise ConfigError(f"a configuration must be {rule}, got {config!r}") from None
        return values

    def draw_constants(self, rng: Generator) -> Any:
        """Draw all values that do not depend on the grid, as `start` of :meth:`draw`."""
        return _draw_domains(copy_tree(self._tree), rng)[0]


def resolve(space: Mapping[str, Any], random_state: RandomSource = None) -> dict[str, Any]:
    """Draw one configuration from a search space without grids.

    Parameters
    ----------
    space : mapping of str to object
        The search space.
    random_state : int, Generator, RandomState, SeedSequence or None
        Source of randomness. None gives a configuration that cannot be reproduced.

    Raises
    ------
    ConfigError
        If the space is invalid, or has a grid.

    Examples
    --------
    >>> from dasktune.space import randint, sample_from
    >>> space = {"width": randint(8, 9), "half": sample_from(lambda config: config["width"] // 2)}
    >>> resolve(space)
    {'width': 8, 'half': 4}
    """
    variants = Variants(space)
    hint = "Use choice() to draw one of the values."
    check(not variants.grid_paths, "param_space", "without grid_search", variants.grid_paths, hint)
    return variants.draw(0, random_generator(random_state)).config


def overlay(space: Mapping[str, Any], preset: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    """Return `space` with its values replaced by those of `preset`.

    Where both have a dict, the dicts are merged recursively; any other value is replaced.

    Parameters
    ----------
    space, preset : mapping of str to object
        The search space, and the values that replace its own.
    path : tuple of str or int, default=()
        Path of both, for error messages.

    Raises
    ------
    ConfigError
        If the preset has a key that the space does not have.

    Examples
    --------
    >>> overlay({"a": {"grid_search": [1, 2]}, "b": {"c": 3, "d": 4}}, {"a": 1, "b": {"c": 5}})
    {'a': 1, 'b': {'c': 5, 'd': 4}}
    """
    check(isinstance(preset, Mapping), "points_to_evaluate", "a list of dicts", preset)
    result = dict(space)
    for key, value in preset.items():
        name = path_name((*path, key))
        hint = f"param_space has no {name!r} there."
        check(key in space, "points_to_evaluate", "made of keys of param_space", name, hint)
        old = space[key]
        nested = isinstance(old, Mapping) and isinstance(value, Mapping) and not _is_grid(old)
        result[key] = overlay(old, value, (*path, key)) if nested else value
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Grid(Variable):
    """The values of one grid axis; each may contain further grids.

    `ends[i]` is the number of grid points of the values up to and including number i.
    """

    values: tuple[Any, ...]
    axes: tuple[tuple[_Axis, ...], ...]
    ends: tuple[int, ...]


_Axis = tuple[Path, _Grid]


def _is_grid(node: Mapping[Any, Any]) -> bool:
    return len(node) == 1 and "grid_search" in node


def _axes_of(node: Any) -> tuple[_Axis, ...]:
    grids = ((path, grid) for path, grid in variables(node) if isinstance(grid, _Grid))
    return tuple(sorted(grids, key=itemgetter(0)))


def _size_of(axes: tuple[_Axis, ...]) -> int:
    return prod(grid.ends[-1] for _, grid in axes)


def _select_grid_point(tree: Any, axes: tuple[_Axis, ...], point: int) -> Any:
    """Assign the values of one grid point; `point` is a mixed-radix number, a digit per axis."""
    for path, grid in axes:
        point, digit = divmod(point, grid.ends[-1])
        index = bisect_right(grid.ends, digit)
        inner = digit - (grid.ends[index - 1] if index else 0)
        value = _select_grid_point(copy_tree(grid.values[index]), grid.axes[index], inner)
        tree = assign(tree, path, value)
    return tree


def _open(node: Any, path: Path, *, drawn: bool = False) -> Any:
    """Return a copy of `node` as an open tree; a `drawn` value must not contain a grid."""
    if isinstance(node, Mapping):
        return _open_mapping(node, path, drawn)
    # A named tuple is a leaf, because in general it cannot be rebuilt from its items.
    if isinstance(node, list | PartialList) or type(node) is tuple:
        kind = OpenTuple if isinstance(node, tuple) else list
        return kind(_open(child, (*path, i), drawn=drawn) for i, child in enumerate(node))
    if isinstance(node, Categorical):
        for category in node.categories:
            _open(category, path, drawn=True)
    elif isinstance(node, FunctionType) and node.__module__ == uniform.__module__:
        rule, hint = "a value or a domain", f"Call it: {node.__name__}(...)."
        check(False, f"param_space at {path_name(path)!r}", rule, node, hint)
    return node


def _open_mapping(node: Mapping[Any, Any], path: Path, drawn: bool) -> Any:
    name = path_name(path)
    if len(node) == 1 and isinstance(node.get("eval"), str):
        hint = "Strings are not evaluated."
        check(False, f"param_space at {name!r}", "written with sample_from(function)", node, hint)
    if _is_grid(node):
        hint = "The number of trials would be random: use choice() there."
        check(not drawn, f"the drawn value at {name!r}", "without grid_search", node, hint)
        return _open_grid(node["grid_search"], path)
    result = {}
    for key, value in node.items():
        child = result[key] = _open(value, (*path, key), drawn=drawn)
        if not isinstance(key, str) or "/" in key:
            is_constant = next(variables(child), None) is None
            rule = "strings without '/' above a domain or a grid"
            check(is_constant, f"keys of param_space at {name!r}", rule, key)
    return result


def _open_grid(values: Any, path: Path) -> _Grid:
    items = ordered_values(f"grid_search at {path_name(path)!r}", values)
    nodes = tuple(_open(item, path) for item in items)
    axes = tuple(map(_axes_of, nodes))
    return _Grid(nodes, axes, tuple(accumulate(map(_size_of, axes))))


def _draw_domains(tree: Any, rng: Generator) -> tuple[Any, list[tuple[Path, Domain]]]:
    """Draw domains in passes, until a pass draws nothing or all are drawn.

    A function that reads a value which has not been drawn yet is retried in the next pass. Returns
    the tree and the domains that could not be drawn.
    """
    waiting = _domains(tree)
    for _ in range(_MAX_PASSES):
        progress = False
        for path, domain in waiting:
            try:
                value = _draw(domain, path, PartialConfig(tree), rng)
            except NotYetKnown:
                continue
            tree, progress = assign(tree, path, value), True
        if not progress:
            break
        waiting = _domains(tree)
    return tree, waiting


def _domains(tree: Any) -> list[tuple[Path, Domain]]:
    found = ((path, domain) for path, domain in variables(tree) if isinstance(domain, Domain))
    return sorted(found, key=itemgetter(0))


def _draw(domain: Domain, path: Path, config: PartialConfig, rng: Generator) -> Any:
    try:
        value = domain.sample(config, random_state=rng)
    except Exception as error:
        name, problem = path_name(path), f"{type(error).__name__}: {error}"
        raise ConfigError(f"sample_from at {name!r} must not raise, got {problem}") from error
    return _open(value, path, drawn=True)


def experiment_tag(number: int, resolved: Mapping[str, Any]) -> str:
    """Return the tag of a variant: its number and the values that distinguish it.

    The tag has at most 100 characters, all allowed in file names; further values are left out.

    Parameters
    ----------
    number : int
        Number of variants before this one.
    resolved : mapping of str to object
        Values by path, with ``/`` between the names; only the last name is shown.

    Examples
    --------
    >>> experiment_tag(3, {"optimizer/lr": 0.000123456, "layers/0": 64, "act": "re lu"})
    '3_act=re_lu,layers_0=64,lr=0.0001235'
    """
    tag, separator = str(number), "_"
    for path, value in sorted(flatten(resolved).items()):
        pair = f"{separator}{_short_name(path)}={_short_value(value)}"
        if len(tag) + len(pair) > _MAX_TAG_LENGTH:
            break
        tag, separator = tag + pair, ","
    return tag


def _short_name(path: str) -> str:
    """Return the last name of `path`, with the indices after it."""
    parts = path.split("/")
    first = len(parts) - 1
    while first > 0 and parts[first].isdigit():
        first -= 1
    return _portable("_".join(parts[first:]))


def _short_value(value: Any) -> str:
    return _portable(f"{value:.4g}" if isinstance(value, float) else str(value))


def _portable(text: str) -> str:
    return _NOT_PORTABLE.sub("_", text).strip("_")
