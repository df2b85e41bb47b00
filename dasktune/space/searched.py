"""What of a configuration was searched for, apart from what is the same in all trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dasktune.space.tree import Variable
from dasktune.trial.metrics import flatten

__all__ = ["searched"]

_NOWHERE: Final = object()


def searched(space: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that a search space does not settle.

    That is what was drawn, taken from a grid, suggested by a searcher with a space of its own, or
    changed by a scheduler.

    Parameters
    ----------
    space : mapping
        The search space as the user wrote it.
    config : mapping
        A configuration of it.

    Returns
    -------
    dict
        By path, with ``/`` between the names.

    Examples
    --------
    >>> from dasktune.space import uniform
    >>> searched({"net": {"lr": uniform(0, 1), "depth": 3}}, {"net": {"lr": 0.5, "depth": 3}})
    {'net/lr': 0.5}
    """
    return dict(_walk(space, config, ""))


def _walk(node: Any, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    below = f"{path}/" if path else ""
    if node is _NOWHERE and isinstance(value, Mapping):
        yield from flatten(value, below).items()
    elif isinstance(node, Mapping) and "grid_search" not in node and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _walk(node.get(key, _NOWHERE), part, f"{below}{key}")
    elif _are_lists(node, value) and len(node) == len(value):
        for index, (inner, part) in enumerate(zip(node, value, strict=True)):
            yield from _walk(inner, part, f"{below}{index}")
    elif isinstance(node, Variable | Mapping) or (node is not value and _differs(node, value)):
        yield path, value


def _are_lists(*values: object) -> bool:
    return all(isinstance(value, list | tuple) for value in values)


def _differs(node: Any, value: Any) -> bool:
    try:
        return bool(node != value)
    except Exception:  # arrays, and whatever else has a mind of its own
        return False
