"""Search spaces as trees that can be filled in: dicts, lists and open tuples around leaves.

Anything else is a leaf, and is shared between the copies of a tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = [
    "OpenTuple",
    "Path",
    "Variable",
    "assigned",
    "closed",
    "copied",
    "is_plain",
    "path_name",
    "variables",
]

#: The keys and indices that lead from the root to a value; ``()`` is the root.
Path = tuple[str | int, ...]


class Variable:
    """What stands in a tree for a value that is not known yet."""

    __slots__ = ()


class OpenTuple(list[Any]):
    """A tuple to be, as long as its items are assigned."""


#: What JSON gives back as it was.
_PLAIN = frozenset({bool, float, int, str, type(None)})


def is_plain(node: Any) -> bool:
    """Whether a value is nothing but dicts with texts as keys, lists, texts, numbers and None.

    Examples
    --------
    >>> is_plain({"layers": [64, 64]}), is_plain({"layers": (64, 64)})
    (True, False)
    """
    if type(node) is dict:
        return all(type(key) is str and is_plain(child) for key, child in node.items())
    return all(map(is_plain, node)) if type(node) is list else type(node) in _PLAIN


def path_name(path: Path) -> str:
    """Return `path` as people write it.

    Examples
    --------
    >>> path_name(("optimizer", "betas", 0))
    'optimizer/betas/0'
    """
    return "/".join(map(str, path))


def variables(node: Any, path: Path = ()) -> Iterator[tuple[Path, Variable]]:
    """Yield every variable under `node` with its path."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from variables(child, (*path, key))
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from variables(child, (*path, index))
    elif isinstance(node, Variable):
        yield path, node


def copied(node: Any) -> Any:
    """Return a copy of an open tree that shares only leaves with it."""
    if isinstance(node, dict):
        return {key: copied(child) for key, child in node.items()}
    if isinstance(node, list):
        return type(node)(map(copied, node))
    return node


def closed(node: Any) -> Any:
    """Return a copy of an open tree, with its tuples as such."""
    if isinstance(node, dict):
        return {key: closed(child) for key, child in node.items()}
    if isinstance(node, list):
        return (tuple if isinstance(node, OpenTuple) else list)(map(closed, node))
    return node


def assigned(root: Any, path: Path, value: Any) -> Any:
    """Set the value at `path` and return the root, which is `value` if the path is empty."""
    if not path:
        return value
    value_at(root, path[:-1])[path[-1]] = value
    return root


def value_at(root: Any, path: Path) -> Any:
    """Return the value at `path`."""
    for key in path:
        root = root[key]
    return root
