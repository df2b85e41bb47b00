"""Search spaces as open trees, which are mutable: dicts, lists and open tuples around leaves.

Any other object is a leaf, which copies of a tree share. Functions of `sample_from` read a partly
resolved tree through views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: The keys and indices from the root to a value; ``()`` is the root.
Path = tuple[str | int, ...]

#: Types that survive a round trip through JSON.
_PLAIN = frozenset({bool, float, int, str, type(None)})


class Variable:
    """A placeholder in a tree for a value that has not been chosen yet."""

    __slots__ = ()


class OpenTuple(list[Any]):
    """A tuple of an open tree, as a list so that its items can be assigned."""


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


class NotYetKnown(BaseException):
    """A function read a value that has not been drawn yet.

    It derives from `BaseException`, so ``except Exception`` in a user's function does not catch it.
    """


class PartialConfig(Mapping[str, Any]):
    """A partly resolved mapping; reading a value that is not drawn yet raises :class:`NotYetKnown`.

    Items are attributes too, except for names that are private or methods of a mapping.

    Parameters
    ----------
    node : mapping
        A container of the open tree.

    Examples
    --------
    >>> view = PartialConfig({"optimizer": {"lr": 0.1}})
    >>> view["optimizer"]["lr"], view.optimizer.lr
    (0.1, 0.1)
    """

    __slots__ = ("_node",)

    def __init__(self, node: Mapping[str, Any]) -> None:
        self._node = node

    def __getitem__(self, key: str) -> Any:
        return _known(self._node[key])

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look for private names, which must not raise NotYetKnown.
        if name.startswith("_") or name not in self._node:
            raise AttributeError(f"the configuration has no {name!r}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._node)

    def __len__(self) -> int:
        return len(self._node)

    def __repr__(self) -> str:
        return f"View({self._node!r})"


class WholeConfig(PartialConfig):
    """The configuration that a function of `sample_from` gets, also as its attribute ``config``.

    Programs for Ray Tune read ``spec.config.lr``, whatever the argument is named. If the
    configuration has a value of its own named ``config``, the attribute is this value.

    Parameters
    ----------
    node : mapping
        The configuration.

    Examples
    --------
    >>> whole = WholeConfig({"lr": 0.1})
    >>> whole["lr"], whole.lr, whole.config.lr
    (0.1, 0.1, 0.1)
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name == "config" and name not in self._node:
            return self
        return super().__getattr__(name)


class PartialList(Sequence[Any]):
    """A partly resolved list or tuple; reading a missing value raises :class:`NotYetKnown`.

    Parameters
    ----------
    node : list
        A container of the open tree.
    """

    __slots__ = ("_node",)

    def __init__(self, node: list[Any]) -> None:
        self._node = node

    def __getitem__(self, index: Any) -> Any:
        item = self._node[index]
        return [_known(child) for child in item] if isinstance(index, slice) else _known(item)

    def __len__(self) -> int:
        return len(self._node)


def _known(value: Any) -> Any:
    if isinstance(value, Variable):
        raise NotYetKnown
    if isinstance(value, Mapping):
        return PartialConfig(value)
    if isinstance(value, list):
        unfinished = next(variables(value), None) is not None
        return PartialList(value) if unfinished else close_tree(value)
    return value
