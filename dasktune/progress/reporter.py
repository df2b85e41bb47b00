"""Reporters by Ray Tune's names and arguments: what a user puts in the place of the displays."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import chain
from typing import Any, Final

from dasktune.callback import TrialView
from dasktune.errors import check
from dasktune.progress.board import Board, ListedTrials, Order, ranked
from dasktune.progress.display import Stream
from dasktune.progress.line import is_terminal, terminal_width
from dasktune.progress.notebook import NotebookCell, html_table
from dasktune.progress.table import (
    Table,
    best_line,
    errors_table,
    lines_of,
    narrowed,
    shorter_errors,
)
from dasktune.progress.text import duration, plural, printable, short
from dasktune.result import is_auto_filled
from dasktune.rules import check_bool, is_int
from dasktune.trial.metrics import Mode, flatten, lookup, number
from dasktune.trial.status import PublicStatus

__all__ = ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter"]

#: In which order trials stand in the table.
_ORDER: Final = (
    PublicStatus.RUNNING,
    PublicStatus.PAUSED,
    PublicStatus.PENDING,
    PublicStatus.TERMINATED,
    PublicStatus.ERROR,
)

#: What is shown of each result, whatever the users report.
_METRICS: Final = {"training_iteration": "iter", "time_total_s": "total time (s)"}

#: Rows of a table without a limit.
_ALL: Final = sys.maxsize


class ProgressReporter:
    """Base class of what tells the user how far an experiment is.

    It takes the place of what dasktune shows itself: ``RunConfig(progress_reporter=...)``. One that
    raises is logged and not asked again; the experiment goes on.

    Examples
    --------
    >>> class Counts(ProgressReporter):
    ...     def should_report(self, trials, done=False):
    ...         return done
    ...
    ...     def report(self, trials, done, *sys_info):
    ...         print(len(trials), "trials")
    >>> Counts().should_report([], done=True)
    True
    """

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        **kwargs: Any,
    ) -> None:
        """Get ready, before anything else.

        Parameters
        ----------
        start_time : float, optional
            When the experiment began, in seconds of the epoch.
        total_samples : int, optional
            How many trials there will be; None if nobody knows.
        metric : str, optional
            What is optimised.
        mode : {"min", "max"}, optional
            Which way it is better.
        **kwargs : object
            What later versions tell besides.
        """

    def should_report(self, trials: Sequence[TrialView], done: bool = False) -> bool:
        """Whether :meth:`report` is to be called now; asked ten times a second at most.

        Parameters
        ----------
        trials : sequence of TrialView
            All of them, not to be changed.
        done : bool, default=False
            Whether this is the end.
        """
        return True

    def report(self, trials: Sequence[TrialView], done: bool, *sys_info: str) -> None:
        """Tell the user.

        Parameters
        ----------
        trials : sequence of TrialView
            All of them, not to be changed.
        done : bool
            Whether this is the end.
        *sys_info : str
            What else there is to say, in lines: what the trial scheduler thinks, how many workers
            there are.
        """
        raise NotImplementedError


class _TableReporter(ProgressReporter):
    """What reporters have in common that show tables."""

    def __init__(
        self,
        *,
        metric_columns: Sequence[str] | Mapping[str, str] | None = None,
        parameter_columns: Sequence[str] | Mapping[str, str] | None = None,
        total_samples: int | None = None,
        max_progress_rows: int | None = 20,
        max_error_rows: int | None = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: bool | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        sort_by_metric: bool = False,
    ) -> None:
        limits = {"max_progress_rows": max_progress_rows, "max_error_rows": max_error_rows}
        for name, limit in limits.items():
            rule = "a non-negative int, or None"
            check(limit is None or is_int(limit, least=0), name, rule, limit, "None has no limit.")
        check(
            is_int(max_column_length, least=1),
            "max_column_length",
            "an int of at least 1",
            max_column_length,
        )
        check(is_int(infer_limit, least=0), "infer_limit", "a non-negative int", infer_limit)
        seconds = None if isinstance(max_report_frequency, bool) else number(max_report_frequency)
        fits = seconds is not None and seconds >= 0
        check(fits, "max_report_frequency", "a number of seconds, at least 0", max_report_frequency)
        check(mode in (None, "min", "max"), "mode", "'min' or 'max'", mode)
        check_bool("sort_by_metric", sort_by_metric)
        self._metric_columns = _columns("metric_columns", metric_columns)
        self._parameter_columns = _columns("parameter_columns", parameter_columns)
        self._total = total_samples
        self._max_rows = _ALL if max_progress_rows is None else max_progress_rows
        self._max_errors = max_error_rows
        self._max_length = max_column_length
        self._interval = max_report_frequency
        self._infer_limit = infer_limit
        self._tables = print_intermediate_tables is not False
        self._metric, self._mode = metric, mode
        self.sort_by_metric = sort_by_metric
        self._clock: Callable[[], float] = time.time
        self._started: float | None = None
        self._last = float("-inf")

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        **kwargs: Any,
    ) -> None:
        """Take what was not given to the constructor.

        Parameters
        ----------
        start_time, total_samples, metric, mode
            As for :meth:`ProgressReporter.setup`.
        **kwargs : object
            What later versions tell besides.
        """
        self._started = start_time
        self._total = total_samples if self._total is None else self._total
        if self._metric is None:
            self._metric, self._mode = metric, mode
        elif self._mode is None:
            self._mode = mode

    @property
    def ranking(self) -> tuple[str | None, Mode | None, Order]:
        """By which metric, in which direction and how the trials of one status are ordered."""
        known = self._metric is not None and self._mode is not None
        return self._metric, self._mode, "last" if self.sort_by_metric and known else "made"

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Show another metric.

        Parameters
        ----------
        metric : str
            Its name.
        representation : str, optional
            What stands above it; its name by default.

        Raises
        ------
        ConfigError
            If it is shown already.
        """
        columns = self._metric_columns or _METRICS
        self._metric_columns = _extended(columns, "metric", metric, representation)

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Show another parameter.

        Parameters
        ----------
        parameter : str
            Its name.
        representation : str, optional
            What stands above it; its name by default.

        Raises
        ------
        ConfigError
            If it is shown already.
        """
        columns = self._parameter_columns or {}
        self._parameter_columns = _extended(columns, "parameter", parameter, representation)

    def should_report(self, trials: Sequence[TrialView], done: bool = False) -> bool:
        """Whether the last report is old enough, or this is the end.

        Parameters
        ----------
        trials : sequence of TrialView
            All of them.
        done : bool, default=False
            Whether this is the end.
        """
        now = self._clock()
        if done or now - self._last >= self._interval:
            self._last = now
            return True
        return False

    def _head(self, board: Board | ListedTrials, sys_info: Iterable[str]) -> list[str]:
        seconds = 0.0 if self._started is None else self._clock() - self._started
        counts = ", ".join(f"{n} {status}" for status in _ORDER if (n := board.counts[status]))
        total = sum(board.counts.values())
        of = "" if self._total is None else f" of {self._total}"
        best = best_line(board, self._metric, tuple(self._parameter_columns or board.searched))
        lines = [
            f"Running for {duration(seconds)}",
            *chain.from_iterable(text.splitlines() for text in sys_info),
            best,
            f"Trials: {total}{of}{f' ({counts})' if counts else ''}",
        ]
        return [printable(line) for line in lines if line]

    def _rows(self, board: Board | ListedTrials, width: int | None = None) -> tuple[Table, str]:
        """Return the table of trials, and what to say of those that have no room in it."""
        shares = _shares(board.counts, self._max_rows)
        trials = [one for status, n in shares.items() for one in board.top(status, n)]
        if not trials:
            return [], _left_out(board.counts, shares)
        parameters = self._parameter_columns
        if parameters is None:
            configs = [name for trial in trials for name in flatten(trial.config)]
            parameters = {name: name for name in board.searched or dict.fromkeys(configs)}
        metrics = self._metric_columns
        if metrics is None:
            metrics = {**_METRICS, **self._inferred(trials)}
        names = ["trial", "status", "worker", *parameters.values(), *metrics.values()]
        table = [[self._cell(name) for name in names]]
        for trial in trials:
            config, last = flatten(trial.config), trial.last_result
            about = [trial.trial_id, str(trial.status), trial.worker]
            values = [
                *(lookup(config, name) for name in parameters),
                *(lookup(last, m) for m in metrics),
            ]
            table.append([self._cell(value) for value in (*about, *values)])
        # What was reported matters most, and where it was done least.
        spare = [2, *reversed(range(3, 3 + len(parameters)))]
        return narrowed(table, width, spare), _left_out(board.counts, shares)

    def _inferred(self, trials: Iterable[TrialView]) -> dict[str, str]:
        """Return metrics of the user's that are numbers, the optimised one before others."""
        found = {} if self._metric is None else {self._metric: self._metric}
        limit = self._infer_limit + len(found)
        for trial in trials:
            for name, value in trial.last_result.items():
                if len(found) >= limit:
                    return found
                if not is_auto_filled(name) and number(value) is not None:
                    found.setdefault(name, name)
        return found

    def _cell(self, value: object) -> str:
        return short(value, self._max_length)

    def _errors(self, board: Board | ListedTrials) -> tuple[str, Table]:
        count = board.num_failed
        if not count:
            return "", []
        failed = board.failed(self._max_errors)
        more = f", {count - len(failed)} of them not shown" if count > len(failed) else ""
        table = errors_table(failed) if failed else []
        return f"{count} {plural('trial', count)} failed{more}:", table


def _extended(
    columns: Mapping[str, str], kind: str, name: str, representation: str | None
) -> dict[str, str]:
    check(name not in columns, kind, "one that is not shown yet", name)
    return {**columns, name: representation or name}


class CLIReporter(_TableReporter):
    """Prints reports with a table of trials, on ``sys.stderr``.

    On a terminal that is too narrow, cells are cropped, then columns left out: the worker, then
    parameters from the last one on, then metrics.

    Parameters
    ----------
    metric_columns : list of str or dict, optional
        Metrics that are shown, or what stands above each. By default the iteration, the time, what
        is optimised, and up to `infer_limit` others.
    parameter_columns : list of str or dict, optional
        Parameters that are shown, or what stands above each; those that are searched by default.
        Names of nested ones are joined by ``/``.
    total_samples : int, optional
        How many trials there will be, if the experiment does not know.
    max_progress_rows : int or None, default=20
        Most trials in the table. The statuses share the rows.
    max_error_rows : int or None, default=20
        Most trials in the table of failures.
    max_column_length : int, default=20
        Most characters of a cell; longer ones end in an ellipsis.
    max_report_frequency : float, default=5
        Seconds between two reports at least.
    infer_limit : int, default=3
        Most metrics that are shown because they are there, without `metric_columns`.
    print_intermediate_tables : bool, optional
        Whether each report has tables, or only the last one (False). True by default.
    metric : str, optional
        What trials are compared by; by default what is optimised.
    mode : {"min", "max"}, optional
        Which way it is better.
    sort_by_metric : bool, default=False
        Show the best trials of each status, by their last results, instead of the first.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> import dasktune as tune
    >>> reporter = tune.CLIReporter(metric_columns={"loss": "validation loss"}, infer_limit=0)
    >>> run_config = tune.RunConfig(progress_reporter=reporter)
    """

    def report(self, trials: Sequence[TrialView], done: bool, *sys_info: str) -> None:
        """Print a report.

        Parameters
        ----------
        trials : sequence of TrialView
            All of them.
        done : bool
            Whether this is the end.
        *sys_info : str
            What else there is to say.
        """
        board = ranked(trials, *self.ranking)
        width = terminal_width(sys.stderr) if is_terminal(sys.stderr) else None
        lines = ["== Trials ==", *self._head(board, sys_info)]
        if self._tables or done:
            table, more = self._rows(board, width)
            lines += [*lines_of(table), *([more] if more else [])]
        headline, failed = self._errors(board)
        if headline:
            lines += [headline, *lines_of(shorter_errors(failed, width))]
        self._print("\n".join(lines))

    def _print(self, text: str) -> None:
        Stream(sys.stderr).write(f"{text}\n\n")


class JupyterNotebookReporter(CLIReporter):
    """Shows reports as tables in the output of a notebook's cell.

    Outside of notebooks it prints what :class:`CLIReporter` prints.

    Parameters
    ----------
    overwrite : bool, default=True
        Whether each report replaces the last one, or stands below it.
    **options : object
        As for :class:`CLIReporter`, all by name.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> import dasktune as tune
    >>> reporter = tune.JupyterNotebookReporter(max_progress_rows=5)
    >>> run_config = tune.RunConfig(progress_reporter=reporter)
    """

    def __init__(self, overwrite: bool = True, **options: Any) -> None:
        super().__init__(**options)
        check_bool("overwrite", overwrite)
        self._overwrite = overwrite
        self._cell_of_all = NotebookCell()

    def report(self, trials: Sequence[TrialView], done: bool, *sys_info: str) -> None:
        """Show a report.

        Parameters
        ----------
        trials : sequence of TrialView
            All of them.
        done : bool
            Whether this is the end.
        *sys_info : str
            What else there is to say.
        """
        from dasktune.progress.modes import in_notebook

        if not in_notebook():
            super().report(trials, done, *sys_info)
            return
        board = ranked(trials, *self.ranking)
        parts = [_paragraph(line) for line in self._head(board, sys_info)]
        if self._tables or done:
            table, more = self._rows(board)
            parts += [html_table(table), _paragraph(more)]
        headline, failed = self._errors(board)
        parts += [_paragraph(headline), html_table(failed)]
        cell = self._cell_of_all if self._overwrite else NotebookCell()
        cell.draw(f"<div>{''.join(parts)}</div>")


def _paragraph(text: str) -> str:
    return f"<div>{escape(text)}</div>" if text else ""


def _columns(name: str, given: object) -> dict[str, str] | None:
    if given is None:
        return None
    listed = isinstance(given, list | tuple | Mapping)
    pairs: dict[Any, Any] = {}
    if isinstance(given, Mapping):
        pairs = dict(given)
    elif isinstance(given, list | tuple):
        pairs = {str(one): one for one in given}
    texts = all(isinstance(text, str) for pair in pairs.items() for text in pair)
    check(listed and texts, name, "a list of names, or a dict of names to headings", given)
    return pairs


def _shares(counts: Mapping[PublicStatus, int], limit: int) -> dict[PublicStatus, int]:
    """Share rows among the statuses: in turns, each as many as it has."""
    shares = dict.fromkeys(_ORDER, 0)
    open_ones = [status for status in _ORDER if counts[status]]
    while limit > 0 and open_ones:
        turn = max(1, limit // len(open_ones))
        for status in tuple(open_ones):
            more = min(turn, counts[status] - shares[status], limit)
            shares[status] += more
            limit -= more
            if shares[status] == counts[status]:
                open_ones.remove(status)
    return shares


def _left_out(counts: Mapping[PublicStatus, int], shares: Mapping[PublicStatus, int]) -> str:
    rest = {status: counts[status] - shares[status] for status in _ORDER}
    if not any(rest.values()):
        return ""
    told = ", ".join(f"{count} {status}" for status, count in rest.items() if count)
    total = sum(rest.values())
    return f"… {total} more {plural('trial', total)} ({told})"
