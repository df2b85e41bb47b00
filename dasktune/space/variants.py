"""Resolving search spaces: grids taken point by point, everything else drawn.

Paths are taken in sorted order, so that the order in which a dict was written changes nothing.
"""

from __future__ import annotations

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
    OpenTuple,
    Path,
    Variable,
    assigned,
    closed,
    copied,
    path_name,
    value_at,
    variables,
)
from dasktune.space.view import ListView, Postponed, View

__all__ = ["Variant", "Variants", "overlay", "resolve"]

_MAX_PASSES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A configuration that came of a search space.

    Parameters
    ----------
    config : dict
        The space with all its values known.
    resolved : dict of str to object
        The values that were variable, by path.
    """

    config: dict[str, Any]
    resolved: dict[str, Any]


class Variants:
    """A search space, checked and taken apart once, to be drawn from many times.

    Its containers are dicts, lists and tuples. Keys on the way to a variable are strings without
    ``/``, which joins them to paths.

    Parameters
    ----------
    space : mapping of str to object
        The search space.

    Attributes
    ----------
    size : int
        How many points its grid has; 1 if there is none.

    Raises
    ------
    ConfigError
        If the space breaks a rule; the message names the path.

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
        self._tree = _opened(dict(space), ())
        check(isinstance(self._tree, dict), "param_space", "more than a grid or a domain", space)
        self._axes = _axes_of(self._tree)
        self._paths = sorted(path for path, _ in variables(self._tree))
        self.size = _size_of(self._axes)

    @property
    def grid_paths(self) -> tuple[str, ...]:
        """The paths of the grid's axes, the one that varies fastest first."""
        return tuple(path_name(path) for path, _ in self._axes)

    def draw(self, point: int, rng: Generator, *, start: Any = None) -> Variant:
        """Return the variant at a point of the grid.

        Costs O(size of one configuration), whatever the size of the grid.

        Parameters
        ----------
        point : int
            Which point, ``0 <= point < size``; the first axis varies fastest.
        rng : Generator
            Where the values come from that are not on the grid.
        start : object, optional
            What :meth:`draw_constants` returned: values to be the same at all points.

        Raises
        ------
        RecursiveDependencyError
            If values wait for each other.
        ConfigError
            If a function of the space raises, or returns a grid.
        """
        tree = copied(self._tree if start is None else start)
        tree, waiting = _settled(_placed(tree, self._axes, point), rng)
        if waiting:
            names = ", ".join(repr(path_name(path)) for path, _ in waiting)
            raise RecursiveDependencyError(
                f"param_space must be free of values that wait for each other, got {names}. "
                f"No more than {_MAX_PASSES} values are followed in a row."
            )
        config = closed(tree)
        resolved = {path_name(path): value_at(config, path) for path in self._paths}
        return Variant(config=config, resolved=resolved)

    @property
    def domains(self) -> dict[str, Domain]:
        """The domains by path, sorted; without those inside a grid or inside another domain."""
        return {path_name(path): domain for path, domain in _domains(self._tree)}

    def filled(self, values: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """Return a configuration with chosen values for domains.

        Parameters
        ----------
        values : mapping of str to object
            By path, as in `domains`. What they lack is drawn, and so is what is inside them.
        rng : Generator
            Where the values come from that are drawn.

        Raises
        ------
        RecursiveDependencyError
            If values wait for each other.
        ConfigError
            If a function of the space raises.

        Examples
        --------
        >>> from dasktune.space import randint, sample_from
        >>> double = sample_from(lambda config: 2 * config["a"])
        >>> variants = Variants({"a": randint(0, 9), "b": double})
        >>> variants.filled({"a": 4}, random_generator(0))
        {'a': 4, 'b': 8}
        """
        tree = copied(self._tree)
        for path, _ in _domains(tree):
            if path_name(path) in values:
                chosen = _opened(values[path_name(path)], path, drawn=True)
                tree = assigned(tree, path, chosen)
        return self.draw(0, rng, start=tree).config

    def chosen(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that a configuration has where the space has domains, by path.

        Raises
        ------
        ConfigError
            If it lacks one.
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
        """Draw all that does not depend on the grid, for :meth:`draw` to start from."""
        return _settled(copied(self._tree), rng)[0]


def resolve(space: Mapping[str, Any], random_state: RandomSource = None) -> dict[str, Any]:
    """Draw one configuration from a search space without grids.

    Parameters
    ----------
    space : mapping of str to object
        The search space.
    random_state : int, Generator, RandomState, SeedSequence or None
        Where randomness comes from; None cannot be repeated.

    Raises
    ------
    ConfigError
        If the space breaks a rule, or has a grid.

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
    """Return `space` with the values of `preset` in the place of its own.

    Dicts are gone into, as far as both are plain dicts; anything else is replaced whole.

    Parameters
    ----------
    space, preset : mapping of str to object
        The search space, and what is to be fixed in it.
    path : tuple of str or int, default=()
        Where both are.

    Raises
    ------
    ConfigError
        If the preset has a key that the space has not.

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
    """Values that are tried in turn; each may have grids of its own.

    `ends` holds, for each value, how many points it and those before it have.
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


def _placed(tree: Any, axes: tuple[_Axis, ...], point: int) -> Any:
    """Fill in the values of one point of the grid: `point` is a number in mixed radix."""
    for path, grid in axes:
        point, digit = divmod(point, grid.ends[-1])
        index = bisect_right(grid.ends, digit)
        inner = digit - (grid.ends[index - 1] if index else 0)
        value = _placed(copied(grid.values[index]), grid.axes[index], inner)
        tree = assigned(tree, path, value)
    return tree


def _opened(node: Any, path: Path, *, drawn: bool = False) -> Any:
    """Return `node` as an open tree of its own; within a `drawn` value there can be no grid."""
    if isinstance(node, Mapping):
        return _opened_mapping(node, path, drawn)
    # A named tuple could not be put together again: it is a leaf.
    if isinstance(node, list | ListView) or type(node) is tuple:
        kind = OpenTuple if isinstance(node, tuple) else list
        return kind(_opened(child, (*path, i), drawn=drawn) for i, child in enumerate(node))
    if isinstance(node, Categorical):
        for category in node.categories:
            _opened(category, path, drawn=True)
    elif isinstance(node, FunctionType) and node.__module__ == uniform.__module__:
        rule, hint = "a value or a domain", f"Call it: {node.__name__}(...)."
        check(False, f"param_space at {path_name(path)!r}", rule, node, hint)
    return node


def _opened_mapping(node: Mapping[Any, Any], path: Path, drawn: bool) -> Any:
    name = path_name(path)
    if len(node) == 1 and isinstance(node.get("eval"), str):
        hint = "Strings are not evaluated."
        check(False, f"param_space at {name!r}", "written with sample_from(function)", node, hint)
    if _is_grid(node):
        hint = "Its number of trials would be a matter of chance: use choice() there."
        check(not drawn, f"the drawn value at {name!r}", "without grid_search", node, hint)
        return _opened_grid(node["grid_search"], path)
    result = {}
    for key, value in node.items():
        child = result[key] = _opened(value, (*path, key), drawn=drawn)
        if not isinstance(key, str) or "/" in key:
            leads_nowhere = next(variables(child), None) is None
            rule = "strings without '/' on the way to a domain or a grid"
            check(leads_nowhere, f"keys of param_space at {name!r}", rule, key)
    return result


def _opened_grid(values: Any, path: Path) -> _Grid:
    items = ordered_values(f"grid_search at {path_name(path)!r}", values)
    nodes = tuple(_opened(item, path) for item in items)
    axes = tuple(map(_axes_of, nodes))
    return _Grid(nodes, axes, tuple(accumulate(map(_size_of, axes))))


def _settled(tree: Any, rng: Generator) -> tuple[Any, list[tuple[Path, Domain]]]:
    """Draw what can be drawn, again and again while that makes more of it possible.

    Returns the tree, and what could not be drawn.
    """
    waiting = _domains(tree)
    for _ in range(_MAX_PASSES):
        progress = False
        for path, domain in waiting:
            try:
                value = _drawn(domain, path, View(tree), rng)
            except Postponed:
                continue
            tree, progress = assigned(tree, path, value), True
        if not progress:
            break
        waiting = _domains(tree)
    return tree, waiting


def _domains(tree: Any) -> list[tuple[Path, Domain]]:
    found = ((path, domain) for path, domain in variables(tree) if isinstance(domain, Domain))
    return sorted(found, key=itemgetter(0))


def _drawn(domain: Domain, path: Path, config: View, rng: Generator) -> Any:
    try:
        value = domain.sample(config, random_state=rng)
    except Exception as error:
        name, problem = path_name(path), f"{type(error).__name__}: {error}"
        raise ConfigError(f"sample_from at {name!r} must not raise, got {problem}") from error
    return _opened(value, path, drawn=True)
