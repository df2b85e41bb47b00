"""Reading values out of results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf, isnan
from numbers import Real
from sys import intern
from typing import Any, Literal

__all__ = ["Mode", "flatten", "lookup", "number", "score"]

#: Which way a metric is better.
Mode = Literal["min", "max"]


#: What most metrics are; asking whether a value is a Mapping takes far longer.
_LEAVES = frozenset({bool, float, int, str, type(None)})


@lru_cache(1024)
def _interned(names: tuple[str, ...]) -> tuple[str, ...]:
    # The rows of a trial mostly have the same names.
    return tuple(intern(str(name)) for name in names)


def flatten(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested metrics as one level, with ``/`` between the names.

    The names are interned: the rows of a trial's history share them.

    Examples
    --------
    >>> flatten({"loss": 1.0, "eval": {"acc": 0.5}})
    {'loss': 1.0, 'eval/acc': 0.5}
    """
    if prefix or not _LEAVES.issuperset(map(type, result.values())):
        return _flattened(result, prefix)
    return dict(zip(_interned(tuple(result)), result.values(), strict=True))


def _flattened(result: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in result.items():
        name = intern(f"{prefix}{key}")
        if type(value) not in _LEAVES and isinstance(value, Mapping) and value:
            flat.update(_flattened(value, f"{name}/"))
        else:
            flat[name] = value
    return flat


def lookup(result: Mapping[str, Any], name: str) -> Any:
    """Return the metric `name`, which may be a path with ``/``, or None if it is not there.

    Examples
    --------
    >>> lookup({"eval": {"acc": 0.5}}, "eval/acc")
    0.5
    """
    if name in result:
        return result[name]
    value: Any = result
    for part in name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def number(value: object) -> float | None:
    """Return `value` as a float, None if it is no number; bools and numpy scalars are numbers."""
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:  # integers and fractions have no largest value
            return inf if value > 0 else -inf  # type: ignore[operator]
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return number(item())
    return None


def score(result: Mapping[str, Any], metric: str, mode: Mode) -> float | None:
    """Return the metric turned so that higher is better.

    None if it is missing, no number, or NaN: nothing may ever be preferred for being undefined.

    Examples
    --------
    >>> score({"loss": 2.0}, "loss", "min")
    -2.0
    """
    value = number(lookup(result, metric))
    if value is None or isnan(value):
        return None
    return value if mode == "max" else -value
