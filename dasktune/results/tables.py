"""The table of the best results that a `ResultGrid` shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dasktune.results.ranking import Scope, rank, summarize
from dasktune.results.result import Result
from dasktune.text.formatting import format_cell, format_config, truncate
from dasktune.text.text_table import Table, table_lines
from dasktune.trial.metrics import Mode, flatten, lookup

#: Rows of the table.
_SHOWN: Final = 5
#: Maximum length of a configuration in a table, in characters.
_CONFIG_WIDTH: Final = 60


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
