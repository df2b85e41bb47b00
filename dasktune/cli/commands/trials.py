"""``dasktune trials``: the trials of an experiment, filtered, sorted and limited."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from dasktune.cli.arguments import add_experiment, add_format, add_storage_options, storage_of
from dasktune.cli.columns import TrialTable
from dasktune.cli.experiment_overview import read_experiment
from dasktune.cli.output import terminal_width, write, write_csv, write_json
from dasktune.dashboard.model.filter_columns import searchable_text
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.errors import check
from dasktune.results.trial_filter import parse_filter
from dasktune.text.text_table import table_text

_EPILOG: Final = """\
A filter EXPRESSION compares columns (fields of a trial, metrics of its last
result, parameters) with numbers and texts by < <= > >= == != ~ (contains) and
in [...]. Join comparisons by and, or, not and parentheses; those beside each
other must all hold. status:ERROR is short for status == ERROR, loss == null
finds trials without a loss, and a word alone is searched for in all texts of a
trial. Put names with spaces in `backticks`. The dashboard has the same filters.

Examples:

  dasktune trials exp --filter "loss < 0.1 and lr > 1e-4" --sort loss --limit 10
  dasktune trials s3://bucket/exp --filter status:ERROR --columns trial_id,error
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = _EPILOG
    add_experiment(parser)
    parser.add_argument(
        "--filter",
        metavar="EXPRESSION",
        help="show only trials for which EXPRESSION holds (default: all trials)",
    )
    parser.add_argument(
        "--sort", metavar="COLUMN", help="sort by this column (default: in order of creation)"
    )
    parser.add_argument("--desc", action="store_true", help="with --sort: the largest values first")
    parser.add_argument(
        "--columns",
        metavar="A,B",
        help=(
            "the columns to show, or 'all' (default: all in CSV and JSON; in a table the status, the "
            "objectives and the parameters that vary)"
        ),
    )
    parser.add_argument("--limit", type=int, metavar="N", help="show at most N trials (default: all trials)")
    add_format(parser, "table", "csv", "json")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the trials."""
    limit = arguments.limit
    check(limit is None or limit >= 0, "--limit", "at least 0", limit)
    check(not arguments.desc or arguments.sort is not None, "--sort", "given with --desc", None)
    projection = read_experiment(storage_of(arguments)).projection
    table = TrialTable(projection)
    chosen = _chosen(projection.trials, table, arguments)
    columns = _columns(table, arguments)
    rows = table.rows(chosen[:limit], columns)
    if arguments.format == "json":
        write_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif arguments.format == "csv":
        write_csv(columns, rows)
    else:
        write(table_text(columns, rows, terminal_width()))
        if len(rows) < len(projection.trials):
            matching = f"{len(chosen)} match, of " if arguments.filter else ""
            write(f"{len(rows)} shown; {matching}{len(projection.trials)} trials")
    return 0


def _chosen(
    trials: Sequence[TrialProjection], table: TrialTable, arguments: argparse.Namespace
) -> list[TrialProjection]:
    chosen = list(trials)
    if arguments.filter is not None:
        holds = parse_filter(arguments.filter, table.filter_columns(), searchable_text)
        chosen = [trial for trial in chosen if holds(trial)]
    if arguments.sort is not None:
        column = table.resolve(arguments.sort)
        chosen = table.ordered(chosen, column, descending=arguments.desc)
    return chosen


def _columns(table: TrialTable, arguments: argparse.Namespace) -> list[str]:
    if arguments.columns is None and arguments.format == "table":
        return table.usual
    if arguments.columns in (None, "all"):
        return table.names
    names = [name.strip() for name in arguments.columns.split(",")]
    return list(dict.fromkeys(table.resolve(name) for name in names if name))
