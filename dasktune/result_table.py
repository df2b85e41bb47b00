"""A table of results, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from dasktune.cells import cell, clip, html_row
from dasktune.comparison import Scope, condense, rank
from dasktune.result import Result
from dasktune.trial.metrics import Mode, flatten, lookup

__all__ = ["ranked_results", "result_table", "table_html", "table_text"]

#: Rows that are shown.
_SHOWN: Final = 5


def ranked_results(
    results: Iterable[Result], metric: str, mode: Mode, scope: Scope, *, finite: bool
) -> list[Result]:
    """Return the trials that can be compared, best first; equal ones in their order."""
    condensed = (
        (condense(result.history, metric, mode, scope, finite=finite), result) for result in results
    )
    scored = [(value, result) for value, result in condensed if value is not None]
    scored.sort(key=lambda pair: rank(pair[0], mode), reverse=True)
    return [result for _, result in scored]


def result_table(
    results: Sequence[Result], metric: str | None, mode: Mode | None
) -> list[list[str]]:
    """Return cells: a head, and rows of the best trials, of the first ones if none is best."""
    columns = ["trial_id", "status", "training_iteration"]
    if metric is not None and mode is not None:
        columns.append(metric)
        results = ranked_results(results, metric, mode, "last", finite=True) or results
    table = [[*columns, "config"]]
    for result in results[:_SHOWN]:
        metrics = [cell(lookup(result.metrics, name)) for name in columns[2:]]
        config = ", ".join(f"{k}={cell(v)}" for k, v in flatten(result.config).items())
        table.append([result.trial_id, result.status.value, *metrics, clip(config)])
    return table


def table_text(headline: str, table: Sequence[Sequence[str]]) -> str:
    """Return a table as lines of text; of one without rows the headline alone."""
    head, *rows = table
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
    return "\n".join([headline, *(line.rstrip() for line in lines if rows)])


def table_html(headline: str, table: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, with everything escaped."""
    head, *rows = table
    body = "".join(html_row(row, "td") for row in rows)
    shown = f"<table><thead>{html_row(head, 'th')}</thead><tbody>{body}</tbody></table>"
    return f"<div><p>{escape(headline)}</p>{shown if rows else ''}</div>"
