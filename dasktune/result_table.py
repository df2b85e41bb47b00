"""A table of results, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from reprlib import Repr
from typing import Final

from dasktune.comparison import Scope, condense, rank
from dasktune.result import Result
from dasktune.trial.metrics import Mode, flatten, lookup, number

__all__ = ["ranked_results", "result_table", "table_html", "table_text"]

#: Rows that are shown.
_SHOWN: Final = 5

_brief = Repr()
_brief.maxstring = _brief.maxother = 40
_brief.maxdict = _brief.maxlist = _brief.maxtuple = 4
_brief.maxlevel = 2


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
        metrics = [_cell(lookup(result.metrics, name)) for name in columns[2:]]
        config = ", ".join(f"{k}={_cell(v)}" for k, v in flatten(result.config).items())
        table.append([result.trial_id, result.status.value, *metrics, _clip(config)])
    return table


def table_text(headline: str, table: Sequence[Sequence[str]]) -> str:
    """Return a table as lines of text; of one without rows the headline alone."""
    head, *rows = table
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
    return "\n".join([headline, *(line.rstrip() for line in lines if rows)])


def table_html(headline: str, table: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, with everything escaped."""
    head, *rows = table
    body = "".join(_html_row(row, "td") for row in rows)
    shown = f"<table><thead>{_html_row(head, 'th')}</thead><tbody>{body}</tbody></table>"
    return f"<div><p>{escape(headline)}</p>{shown if rows else ''}</div>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    real = None if isinstance(value, bool) else number(value)
    return _brief.repr(value) if real is None else f"{real:.6g}"


def _clip(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _html_row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
