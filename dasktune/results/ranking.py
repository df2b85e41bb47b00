"""Reduce a trial's results to the value by which trials are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, isfinite, isnan, nan
from typing import Any, Final, Literal

from dasktune.errors import check
from dasktune.trial.metrics import Mode, lookup, number, score

__all__ = ["Scope", "best_row", "rank", "summarize"]

#: The value of a trial: its last one, its best one, or the mean of all or of the last rows.
Scope = Literal["last", "all", "avg", "last-5-avg", "last-10-avg"]

#: Number of last rows that a scope averages; 0 averages all.
_WINDOWS: Final = {"avg": 0, "last-5-avg": 5, "last-10-avg": 10}

_SCOPES: Final = ("last", "all", *_WINDOWS)

Rows = Sequence[Mapping[str, Any]]


def rank(value: float, mode: Mode) -> tuple[bool, float]:
    """Return a sort key that is greater for better values; NaN is worse than any number.

    Examples
    --------
    >>> max([float("nan"), 2.0, 1.0], key=lambda value: rank(value, "min"))
    1.0
    """
    if isnan(value):
        return False, 0.0
    return True, value if mode == "max" else -value


def summarize(rows: Rows, metric: str, mode: Mode, scope: Scope, *, finite: bool) -> float | None:
    """Return the value by which a trial is compared, or None if it has none.

    Rows without the metric are ignored, so ``"last-5-avg"`` averages the last 5 rows that have it.

    Parameters
    ----------
    rows : sequence of mapping
        The trial's results, oldest first.
    metric : str
        The metric to compare.
    mode : {"min", "max"}
        Whether lower or higher values are better.
    scope : {"last", "all", "avg", "last-5-avg", "last-10-avg"}
        How the rows are reduced to a value.
    finite : bool
        Ignore NaN and infinity: the scope ``"all"`` skips such rows, and with any other scope such
        a value counts as none.

    Raises
    ------
    ConfigError
        If there is no such scope.

    Examples
    --------
    >>> summarize([{"loss": 3.0}, {"loss": 1.0}, {"lr": 0.1}], "loss", "min", "avg", finite=True)
    2.0
    """
    check(scope in _SCOPES, "scope", f"one of {', '.join(map(repr, _SCOPES))}", scope)
    found = (number(lookup(row, metric)) for row in rows)
    values = [value for value in found if value is not None]
    if scope == "all":
        values = [value for value in values if isfinite(value)] if finite else values
        return max(values, key=lambda value: rank(value, mode), default=None)
    if not values:
        return None
    # A slice from -0 is the whole list.
    value = values[-1] if scope == "last" else _mean(values[-_WINDOWS[scope] :])
    return value if isfinite(value) or not finite else None


def best_row(rows: Rows, metric: str, mode: Mode) -> Mapping[str, Any]:
    """Return the first row with the best value; without any value the last row, or ``{}``.

    Examples
    --------
    >>> best_row([{"acc": 0.5}, {"acc": 0.9}, {"acc": 0.7}], "acc", "max")
    {'acc': 0.9}
    """
    scored = [(score(row, metric, mode), row) for row in rows]
    defined = [(points, row) for points, row in scored if points is not None]
    if defined:
        return max(defined, key=lambda pair: pair[0])[1]
    return rows[-1] if rows else {}


def _mean(values: list[float]) -> float:
    try:
        return fsum(values) / len(values)
    except (OverflowError, ValueError):  # beyond what a float holds, or inf - inf
        return nan
