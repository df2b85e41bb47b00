"""Conversion of search spaces to trees of closed ranges and choices, which libraries support."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from math import nextafter
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.space.domain import Categorical, Domain, Function
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


def compile_tree(
    node: Any,
    path: str,
    root: str,
    library: str,
    parameter_of: Callable[[Any, str, str], Any] = parameter_for,
) -> Any:
    """Return a copy of a search space in which each domain is replaced by a parameter.

    Parameters
    ----------
    node : object
        A search space, or a part of one.
    path : str
        The path of `node`, with ``/`` between levels; "" for a whole space.
    root, library : str
        The names of the whole space and of the library, for error messages.
    parameter_of : callable
        Converts leaves other than choices and functions; by default :func:`parameter_for`.

    Raises
    ------
    ConfigError
        If the space has a grid, a key with ``/``, or a domain that the library cannot search.
    """

    def inside(child: Any, where: str) -> Any:
        return compile_tree(child, where, root, library, parameter_of)

    where = f"{root} at {path!r}" if path else root
    if isinstance(node, Mapping):
        hint = f"{library} cannot search a grid: use choice() instead of grid_search()."
        check("grid_search" not in node, where, "a domain or a plain value", dict(node), hint)
        for key in node:
            slashed = isinstance(key, str) and "/" in key
            check(not slashed, f"keys of {where}", "without '/'", key, "Nest dicts instead.")
        return {key: inside(child, join_path(path, key)) for key, child in node.items()}
    if type(node) in (list, tuple):
        return type(node)(inside(child, join_path(path, index)) for index, child in enumerate(node))
    if isinstance(node, Function):
        return node
    if isinstance(node, Categorical):
        branches = [inside(option, f"{path}[{index}]") for index, option in enumerate(node.categories)]
        return Options(branches, any(map(varies, branches)))
    return parameter_of(node, where, library)


def varies(node: Any) -> bool:
    """Return whether a node contains a parameter or a function, so its value may vary."""
    return any(isinstance(leaf, Parameter | Function) for leaf in leaves(node))


def leaves(node: Any) -> Iterator[Any]:
    """Yield the leaves under a node: all but dicts, lists and tuples, also inside options."""
    if isinstance(node, dict):
        node = list(node.values())
    if type(node) in (list, tuple):
        for child in node:
            yield from leaves(child)
        return
    yield node
    if isinstance(node, Options):
        yield from leaves(node.items)


def draw_tree(node: Any, trial: Any, path: str) -> Any:
    """Return the tree with each parameter replaced by the value that `trial` suggests."""
    if isinstance(node, dict):
        return {key: draw_tree(child, trial, join_path(path, key)) for key, child in node.items()}
    if type(node) in (list, tuple):
        items = (draw_tree(child, trial, join_path(path, index)) for index, child in enumerate(node))
        return type(node)(items)
    if isinstance(node, Options):
        index = node.suggest(trial, path)
        return draw_tree(node.items[index], trial, f"{path}[{index}]")
    return node.suggest(trial, path) if isinstance(node, Parameter) else node


def parameter_values(node: Any, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and library values of the parameters with which `node` becomes `value`.

    Raises
    ------
    ConfigError
        If no values of the parameters lead to `value`.
    """
    where = f"the point at {path!r}" if path else "the point"
    if isinstance(node, dict):
        check(isinstance(value, Mapping), where, "a dict", value)
        for key, inner in value.items():
            check(key in node, where, f"made of {list(node)}", key)
            yield from parameter_values(node[key], inner, join_path(path, key))
    elif type(node) in (list, tuple):
        alike = isinstance(value, list | tuple) and len(value) == len(node)
        check(alike, where, f"a list of {len(node)} values", value)
        for index, inner in enumerate(value):
            yield from parameter_values(node[index], inner, join_path(path, index))
    elif isinstance(node, Options):
        yield from _option(node, value, path)
    elif isinstance(node, Parameter):
        yield path, node.encode(value, where)
    elif not isinstance(node, Function):
        check(_same(node, value), where, repr(node), value)


def _option(node: Options, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the option that matches `value`, and the parameters inside it."""
    # Try options of the same type first, because 1 == True.
    order = sorted(range(len(node.items)), key=lambda index: type(node.items[index]) is not type(value))
    for index in order:
        try:
            inner = list(parameter_values(node.items[index], value, f"{path}[{index}]"))
        except ConfigError:
            continue
        yield path, node.encode(index, path)
        yield from inner
        return
    check(False, f"the point at {path!r}", "one of its choices", value)


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # arrays have no single truth value, and users' classes may raise anything
        return False


def join_path(path: str, key: Any) -> str:
    """Return the path of the child `key` of the node at `path`."""
    return f"{path}/{key}" if path else str(key)


def nest(flat: Mapping[Any, Any]) -> dict[str, Any]:
    """Return nested dicts for values by path, with ``/`` between levels.

    Raises
    ------
    ConfigError
        If one path is a prefix of another and has a plain value.

    Examples
    --------
    >>> nest({"lr": 0.1, "optimizer/name": "sgd"})
    {'lr': 0.1, 'optimizer': {'name': 'sgd'}}
    """
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *above, last = path.split("/") if isinstance(path, str) else [path]
        level: Any = tree
        for name in above:
            level = level.setdefault(name, {})
            check(isinstance(level, dict), f"{path!r}", "no path through another value", dict(flat))
        inner = nest(value) if isinstance(value, Mapping) else value
        both = isinstance(level.get(last), dict) and isinstance(inner, dict)
        level[last] = {**level[last], **inner} if both else inner
    return tree
