"""What a function of the configuration sees of it while it is being filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dasktune.space.tree import Variable, closed, variables

__all__ = ["ListView", "Postponed", "View"]


class Postponed(BaseException):
    """A value was asked for that is not known yet.

    Not an `Exception`, so that a function's own ``except Exception`` cannot take it for an answer.
    """


class View(Mapping[str, Any]):
    """A partly filled in mapping; touching what is missing raises :class:`Postponed`.

    Its items are attributes too, save those whose names are private or methods of a mapping.

    Parameters
    ----------
    node : mapping
        What to look at.

    Examples
    --------
    >>> view = View({"optimizer": {"lr": 0.1}})
    >>> view["optimizer"]["lr"], view.optimizer.lr
    (0.1, 0.1)
    """

    __slots__ = ("_node",)

    def __init__(self, node: Mapping[str, Any]) -> None:
        self._node = node

    def __getitem__(self, key: str) -> Any:
        return _seen(self._node[key])

    def __getattr__(self, name: str) -> Any:
        # Private names are what copy and pickle probe for.
        if name.startswith("_") or name not in self._node:
            raise AttributeError(f"the configuration has no {name!r}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._node)

    def __len__(self) -> int:
        return len(self._node)

    def __repr__(self) -> str:
        return f"View({self._node!r})"


class ListView(Sequence[Any]):
    """A partly filled in list or tuple; touching what is missing raises :class:`Postponed`.

    Parameters
    ----------
    node : list
        What to look at.
    """

    __slots__ = ("_node",)

    def __init__(self, node: list[Any]) -> None:
        self._node = node

    def __getitem__(self, index: Any) -> Any:
        item = self._node[index]
        return [_seen(child) for child in item] if isinstance(index, slice) else _seen(item)

    def __len__(self) -> int:
        return len(self._node)


def _seen(value: Any) -> Any:
    if isinstance(value, Variable):
        raise Postponed
    if isinstance(value, Mapping):
        return View(value)
    if isinstance(value, list):
        unfinished = next(variables(value), None) is not None
        return ListView(value) if unfinished else closed(value)
    return value
