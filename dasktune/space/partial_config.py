"""The partly resolved configuration that functions of `sample_from` read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dasktune.space.tree import Variable, close_tree, variables


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
        A container of the open tree (see ``dasktune.space.tree``).

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
        A container of the open tree (see ``dasktune.space.tree``).
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
