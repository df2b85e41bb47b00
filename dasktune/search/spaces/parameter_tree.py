"""Search spaces as trees of parameters, and their conversion to and from configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.parameters import Options, Parameter, parameter_for
from dasktune.space.domain import Categorical, Function


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
