"""Search spaces as open trees, which are mutable: dicts, lists and open tuples around leaves.

Any other object is a leaf, which copies of a tree share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: The keys and indices from the root to a value; ``()`` is the root.
Path = tuple[str | int, ...]


class Variable:
    """A placeholder in a tree for a value that has not been chosen yet."""

    __slots__ = ()


class OpenTuple(list[Any]):
    """A tuple of an open tree, as a list so that its items can be assigned."""


#: Types that survive a round trip through JSON.
_PLAIN = frozenset({bool, float, int, str, type(None)})


def is_plain(node: Any) -> bool:
    """Whether a value consists only of dicts with string keys, lists, strings, numbers and None.

    Examples
    --------
    >>> is_plain({"layers": [64, 64]}), is_plain({"layers": (64, 64)})
    (True, False)
    """
    if type(node) is dict:
        return all(type(key) is str and is_plain(child) for key, child in node.items())
    return all(map(is_plain, node)) if type(node) is list else type(node) in _PLAIN


def path_name(path: Path) -> str:
    """Return `path` joined by ``/``.

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


def copy_tree(node: Any) -> Any:
    """Return a copy of an open tree; only the leaves are shared."""
    if isinstance(node, dict):
        return {key: copy_tree(child) for key, child in node.items()}
    if isinstance(node, list):
        return type(node)(map(copy_tree, node))
    return node


def close_tree(node: Any) -> Any:
    """Return a copy of an open tree in which open tuples are tuples again."""
    if isinstance(node, dict):
        return {key: close_tree(child) for key, child in node.items()}
    if isinstance(node, list):
        return (tuple if isinstance(node, OpenTuple) else list)(map(close_tree, node))
    return node


def assign(root: Any, path: Path, value: Any) -> Any:
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
