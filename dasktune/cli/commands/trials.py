"""``dasktune trials``: the trials of an experiment, filtered, sorted and cut to what is wanted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from dasktune.cli.arguments import add_experiment, add_format, storage_of
from dasktune.cli.columns import TrialTable
from dasktune.cli.experiments import read_experiment
from dasktune.cli.filters import parse_condition
from dasktune.cli.output import table_text, terminal_width, write, write_csv, write_json
from dasktune.dashboard.trial_log import TrialLog
from dasktune.errors import check

__all__ = ["add_arguments", "run"]

_EPILOG: Final = """\
A condition compares columns (fields, metrics of the last result, parameters), numbers and 'texts'
by < <= > >= == != ~ (contains) and in [...], joined by and, or, not and parentheses. A trial
without a loss is found by: loss == null. Names with odd characters stand in `backticks`.

  dasktune trials ~/dasktune_results/exp --filter "loss < 0.1 and lr > 1e-4" --sort loss
  dasktune trials s3://bucket/exp --filter "status == 'ERROR'" --columns trial_id,error
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    parser.epilog = _EPILOG
    add_experiment(parser)
    parser.add_argument("--filter", metavar="CONDITION", help="show only trials that meet it")
    parser.add_argument("--sort", metavar="COLUMN", help="order; by default as they were made")
    parser.add_argument("--desc", action="store_true", help="largest first")
    parser.add_argument("--columns", metavar="A,B", help="what to show; 'all' is all there is")
    parser.add_argument("--limit", type=int, metavar="N", help="show at most so many")
    add_format(parser, "table", "csv", "json")


def run(arguments: argparse.Namespace) -> int:
    """Show the trials."""
    limit = arguments.limit
    check(limit is None or limit >= 0, "--limit", "at least 0", limit)
    check(not arguments.desc or arguments.sort is not None, "--sort", "given with --desc", None)
    told = read_experiment(storage_of(arguments)).chronicle
    table = TrialTable(told)
    chosen = _chosen(told.trials, table, arguments)
    columns = _columns(table, arguments)
    rows = table.rows(chosen[:limit], columns)
    if arguments.format == "json":
        write_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif arguments.format == "csv":
        write_csv(columns, rows)
    else:
        write(table_text(columns, rows, terminal_width()))
        if len(rows) < len(told.trials):
            matching = f"{len(chosen)} match, of " if arguments.filter else ""
            write(f"{len(rows)} shown; {matching}{len(told.trials)} trials")
    return 0


def _chosen(
    trials: Sequence[TrialLog], table: TrialTable, arguments: argparse.Namespace
) -> list[TrialLog]:
    chosen = list(trials)
    if arguments.filter is not None:
        condition = parse_condition(arguments.filter, table.resolve)
        chosen = [log for log in chosen if condition.holds(lambda name: table.value(log, name))]  # noqa: B023
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
