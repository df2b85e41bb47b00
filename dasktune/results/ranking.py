"""Rank trials by their results, and show the best ones in a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import fsum, isfinite, isnan, nan
from typing import Any, Final, Literal

from dasktune.errors import check
from dasktune.results.result import Result
from dasktune.text.formatting import format_cell, format_config, truncate
from dasktune.text.text_table import Table, table_lines
from dasktune.trial.metrics import Mode, flatten, lookup, number, score

#: The value of a trial: its last one, its best one, or the mean of all or of the last rows.
Scope = Literal["last", "all", "avg", "last-5-avg", "last-10-avg"]

#: Number of last rows with the metric that a scope averages; None averages all.
_WINDOWS: Final = {"last": 1, "avg": None, "last-5-avg": 5, "last-10-avg": 10}

_SCOPES: Final = ("last", "all", "avg", "last-5-avg", "last-10-avg")

Rows = Sequence[Mapping[str, Any]]

#: Rows of the table.
_SHOWN: Final = 5

#: Maximum length of a configuration in a table, in characters.
_CONFIG_WIDTH: Final = 60


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
    if scope == "all":
        every = _values(rows, metric)
        values = (value for value in every if isfinite(value)) if finite else every
        return max(values, key=lambda value: rank(value, mode), default=None)
    # Older rows may have to be unpacked, or read from the journal: only as many as the scope needs.
    last = list(islice(_values(reversed(rows), metric), _WINDOWS[scope]))
    if not last:
        return None
    value = last[0] if scope == "last" else _mean(last)
    return value if isfinite(value) or not finite else None


def best_row(rows: Rows, metric: str, mode: Mode) -> Mapping[str, Any]:
    """Return the first row with the best value; without any value the last row, or ``{}``.

    Examples
    --------
    >>> best_row([{"acc": 0.5}, {"acc": 0.9}, {"acc": 0.7}], "acc", "max")
    {'acc': 0.9}
    """
    # The rows may be too many to hold them all at once, so only the best one so far is kept.
    best: tuple[float, Mapping[str, Any]] | None = None
    for row in rows:
        points = score(row, metric, mode)
        if points is not None and (best is None or points > best[0]):
            best = points, row
    if best is not None:
        return best[1]
    return rows[-1] if rows else {}


def _values(rows: Iterable[Mapping[str, Any]], metric: str) -> Iterator[float]:
    found = (number(lookup(row, metric)) for row in rows)
    return (value for value in found if value is not None)


def _mean(values: list[float]) -> float:
    try:
        return fsum(values) / len(values)
    except (OverflowError, ValueError):  # beyond what a float holds, or inf - inf
        return nan


def ranked_results(
    results: Iterable[Result], metric: str, mode: Mode, scope: Scope, *, finite: bool
) -> list[Result]:
    """Return the results with a value of the metric, best first; equal ones keep their order."""
    summaries = (
        (summarize(result.history, metric, mode, scope, finite=finite), result) for result in results
    )
    scored = [(value, result) for value, result in summaries if value is not None]
    scored.sort(key=lambda pair: rank(pair[0], mode), reverse=True)
    return [result for _, result in scored]


def result_table(results: Sequence[Result], metric: str | None, mode: Mode | None) -> list[list[str]]:
    """Return a header and a row for each of the best trials; without a metric, the first ones."""
    columns = ["trial_id", "status", "training_iteration"]
    if metric is not None and mode is not None:
        columns.append(metric)
        results = ranked_results(results, metric, mode, "last", finite=True) or results
    table = [[*columns, "config"]]
    for result in results[:_SHOWN]:
        metrics = [format_cell(lookup(result.metrics, name)) for name in columns[2:]]
        config = truncate(format_config(flatten(result.config)), _CONFIG_WIDTH)
        table.append([result.trial_id, result.status.value, *metrics, config])
    return table


def grid_text(headline: str, table: Table) -> str:
    """Return a headline and a table as lines of text; only the headline if there are no rows."""
    lines = [f"  {line}" for line in table_lines(table)] if len(table) > 1 else []
    return "\n".join([headline, *lines])
