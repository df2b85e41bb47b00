"""``dasktune trials``: the trials of an experiment, filtered, sorted and limited."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from math import isnan
from typing import Any, Final

from dasktune.cli.arguments import add_experiment, add_format, add_storage_options, storage_of
from dasktune.cli.experiment_overview import read_experiment
from dasktune.cli.output import terminal_width, write, write_csv, write_json
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.filter_columns import (
    filter_value,
    message_text,
    searchable_text,
    status_words,
    trial_name,
    worker_names,
)
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.errors import ConfigError, check
from dasktune.results.result import is_auto_filled
from dasktune.results.trial_filter import parse_filter
from dasktune.text.formatting import first_few, one_line
from dasktune.text.text_table import table_text
from dasktune.trial.metrics import flatten, number

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

#: Maximum number of names that a message lists.
_LISTED: Final = 40
_CONFIG: Final = "config/"

_FIELDS: Final[Mapping[str, Callable[[TrialProjection, ExperimentProjection], Any]]] = {
    "trial_id": lambda trial, experiment: trial.trial_id,
    "status": lambda trial, experiment: trial.status,
    "iteration": lambda trial, experiment: trial.iteration,
    "best": lambda trial, experiment: None if isnan(trial.best_value()) else trial.best_value(),
    "runtime_s": lambda trial, experiment: round(trial.runtime(experiment.now), 3),
    "stopped_early": lambda trial, experiment: trial.stopped_early,
    "reason": lambda trial, experiment: trial.reason or None,
    "error": lambda trial, experiment: trial.error or None,
    "failures": lambda trial, experiment: trial.failures,
    "losses": lambda trial, experiment: trial.losses,
    "restores": lambda trial, experiment: trial.restores,
    "pauses": lambda trial, experiment: trial.pauses,
    "checkpoints": lambda trial, experiment: trial.checkpoints,
    "worker": lambda trial, experiment: trial.worker or None,
}

#: For these fields a filter compares the texts of the dashboard's page, not the values above.
_FILTER_FIELDS: Final[Mapping[str, Callable[[TrialProjection], Any]]] = {
    "trial_id": trial_name,
    "status": status_words,
    "reason": lambda trial: message_text(trial.reason),
    "error": lambda trial: message_text(trial.error),
    "worker": worker_names,
}

#: Column names of the dashboard's table. A metric or parameter of the same name has precedence.
_ALIASES: Final = {"trial": "trial_id", "seconds": "runtime_s", "training_iteration": "iteration"}
_ALIAS_FIELDS: Final[Mapping[str, Callable[[TrialProjection], Any]]] = {
    "last": lambda trial: trial.last_value(),
    "why": lambda trial: message_text(trial.error or trial.reason),
}


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


class TrialTable:
    """The trials of an experiment as a table.

    Columns are fields of a trial (``trial_id``, ``status``, ...), metrics of the last result by
    their names, and parameters as ``config/lr``, or ``lr`` if no other column has that name.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.

    Examples
    --------
    >>> projection = ExperimentProjection(metric="loss", mode="min")
    >>> projection.add({"event": "Suggested", "trial_id": "a", "config": {"lr": 0.1}, "time": 1.0})
    >>> table = TrialTable(projection)
    >>> table.resolve("lr"), table.value(projection.trials[0], "config/lr")
    ('config/lr', 0.1)
    """

    def __init__(self, projection: ExperimentProjection) -> None:
        self._projection = projection
        self._metrics = {id(trial): flatten(trial.metrics) for trial in projection.trials}
        metrics = dict.fromkeys(name for one in self._metrics.values() for name in one)
        own = [name for name in metrics if not is_auto_filled(name)]
        #: Names of metrics: first the user's metrics, then the metrics that dasktune adds.
        self.metrics = [*own, *(n for n in metrics if is_auto_filled(n) and n not in _FIELDS)]
        self.metrics = [name for name in self.metrics if not name.startswith(_CONFIG)]
        names = dict.fromkeys(name for trial in projection.trials for name in trial.config)
        self.parameters = [f"{_CONFIG}{name}" for name in names]
        self._known = {*_FIELDS, *self.metrics, *self.parameters}

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [*_FIELDS, *self.metrics, *self.parameters]

    @property
    def usual(self) -> list[str]:
        """The columns shown by default: status, objectives, and parameters that vary."""
        goals = [name for name in self._projection.metrics if name in self._known]
        varying = [name for name in self.parameters if self._varies(name)]
        error = ["error"] if any(trial.error for trial in self._projection.trials) else []
        return ["trial_id", "status", "iteration", *goals, *varying, "runtime_s", *error]

    def resolve(self, name: str) -> str:
        """Return the full name of a column.

        Raises
        ------
        ConfigError
            If there is no such column; the message lists the columns.
        """
        for full in (name, f"{_CONFIG}{name}"):
            if full in self._known:
                return full
        short = [one.removeprefix(_CONFIG) for one in self.parameters]
        close = get_close_matches(name, [*self.names, *short])
        hint = f" Did you mean {close[0]!r}?" if close else ""
        listed = first_few([*map(one_line, self.names)], _LISTED)
        raise ConfigError(f"column must be one of {listed}, got {name!r}.{hint}")

    def filter_columns(self) -> dict[str, Callable[[TrialProjection], Any]]:
        """Return the columns of a filter: functions that return a trial's value, by name."""
        columns: dict[str, Callable[[TrialProjection], Any]] = {
            name: partial(self._filter_value, column=name) for name in self.names
        }
        columns |= _FILTER_FIELDS
        for name in self.parameters:
            columns.setdefault(name.removeprefix(_CONFIG), columns[name])
        for goal, name in enumerate(self._projection.metrics):
            columns.setdefault(f"best {name}", partial(TrialProjection.best_value, goal=goal))
            columns.setdefault(f"last {name}", partial(TrialProjection.last_value, goal=goal))
        for alias, name in _ALIASES.items():
            columns.setdefault(alias, columns[name])
        for alias, value_of in _ALIAS_FIELDS.items():
            columns.setdefault(alias, value_of)
        return columns

    def _filter_value(self, trial: TrialProjection, column: str) -> Any:
        return filter_value(self.value(trial, column))

    def value(self, trial: TrialProjection, column: str) -> Any:
        """Return the value of a trial in a column, None if it has none.

        Parameters
        ----------
        trial : TrialProjection
            The trial.
        column : str
            Full name of the column.
        """
        if column in _FIELDS:
            return _FIELDS[column](trial, self._projection)
        if column.startswith(_CONFIG):
            return trial.config.get(column[len(_CONFIG) :])
        value = self._metrics[id(trial)].get(column)
        if value is None and column in self._projection.metrics:
            # The last result may lack an objective: use the value that was reported last.
            last = trial.last_value(self._projection.metrics.index(column))
            return None if isnan(last) else last
        return value

    def rows(self, trials: Iterable[TrialProjection], columns: Sequence[str]) -> list[list[Any]]:
        """Return a row for each trial, with its value in each column."""
        return [[self.value(trial, column) for column in columns] for trial in trials]

    def ordered(
        self, trials: Iterable[TrialProjection], column: str, *, descending: bool
    ) -> list[TrialProjection]:
        """Return trials sorted by a column: numbers, then texts; missing values are always last."""
        numbers: list[tuple[float, TrialProjection]] = []
        texts: list[tuple[str, TrialProjection]] = []
        rest: list[TrialProjection] = []
        for trial in trials:
            value = self.value(trial, column)
            real = number(value)
            if real is not None and not isnan(real):
                numbers.append((real, trial))
            elif real is None and value is not None:
                texts.append((str(value), trial))
            else:
                rest.append(trial)
        numbers.sort(key=lambda pair: pair[0], reverse=descending)
        texts.sort(key=lambda pair: pair[0], reverse=descending)
        return [*(trial for _, trial in numbers), *(trial for _, trial in texts), *rest]

    def _varies(self, column: str) -> bool:
        values = (repr(self.value(trial, column)) for trial in self._projection.trials)
        first = next(values, None)
        return any(value != first for value in values)
