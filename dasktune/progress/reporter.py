"""Progress reporters with Ray Tune's names and arguments, which replace the built-in displays."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from dasktune.callback import TrialView
from dasktune.config.validation import check_bool, is_int
from dasktune.errors import check
from dasktune.progress.display import Stream
from dasktune.progress.line_display import is_terminal, terminal_width
from dasktune.progress.notebook import NotebookCell
from dasktune.progress.progress_table import (
    DIGITS,
    best_line,
    errors_table,
    failure_headline,
    fit_errors,
)
from dasktune.progress.trial_counts import Order, RankedTrials, TrialCounts, rank_trials
from dasktune.results.result import is_auto_filled
from dasktune.text.formatting import format_cell, format_clock, format_counts, plural, printable
from dasktune.text.html_template import render_html
from dasktune.text.text_table import Table, html_table, narrow, table_lines
from dasktune.trial.metrics import Mode, flatten, lookup, number
from dasktune.trial.status import PublicStatus

#: The order of statuses in the table.
_ORDER: Final = (
    PublicStatus.RUNNING,
    PublicStatus.PAUSED,
    PublicStatus.PENDING,
    PublicStatus.TERMINATED,
    PublicStatus.ERROR,
)

#: Fields of each result that are always shown, and their headings.
_METRICS: Final = {"training_iteration": "iter", "time_total_s": "total time (s)"}

#: The number of rows that stands for a limit of None.
_ALL: Final = sys.maxsize


class ProgressReporter:
    """Base class of progress reporters.

    ``RunConfig(progress_reporter=...)`` replaces the built-in display by a reporter. If a reporter
    raises, the exception is logged, the reporter is not called again, and the experiment continues.

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
        """Prepare for an experiment; called once, before any other method.

        Parameters
        ----------
        start_time : float, optional
            When the experiment began, in seconds of the epoch.
        total_samples : int, optional
            The total number of trials; None if unknown.
        metric : str, optional
            The metric to optimise.
        mode : {"min", "max"}, optional
            Whether lower or higher values are better.
        **kwargs : object
            Arguments that later versions may add.
        """

    def should_report(self, trials: Sequence[TrialView], done: bool = False) -> bool:
        """Whether :meth:`report` should be called now; called at most ten times a second.

        Parameters
        ----------
        trials : sequence of TrialView
            All trials; must not be changed.
        done : bool, default=False
            Whether this is the end.
        """
        return True

    def report(self, trials: Sequence[TrialView], done: bool, *sys_info: str) -> None:
        """Show the progress.

        Parameters
        ----------
        trials : sequence of TrialView
            All trials; must not be changed.
        done : bool
            Whether this is the end.
        *sys_info : str
            More lines: the state of the trial scheduler, the resources in use, the workers.
        """
        raise NotImplementedError


class _TableReporter(ProgressReporter):
    """Base class of the reporters that show tables."""

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
            is_int(max_column_length, least=1), "max_column_length", "an int of at least 1", max_column_length
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
        """Use the experiment's values for arguments that the constructor did not get.

        Parameters
        ----------
        start_time, total_samples, metric, mode
            As for :meth:`ProgressReporter.setup`.
        **kwargs : object
            Arguments that later versions may add.
        """
        self._started = start_time
        self._total = total_samples if self._total is None else self._total
        if self._metric is None:
            self._metric, self._mode = metric, mode
        elif self._mode is None:
            self._mode = mode

    @property
    def ranking(self) -> tuple[str | None, Mode | None, Order]:
        """The metric, the mode and the order by which trials with the same status are ranked."""
        known = self._metric is not None and self._mode is not None
        return self._metric, self._mode, "last" if self.sort_by_metric and known else "made"

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Add a column for a metric.

        Parameters
        ----------
        metric : str
            The name of the metric.
        representation : str, optional
            The heading of the column. By default the name of the metric.

        Raises
        ------
        ConfigError
            If it has a column already.
        """
        columns = self._metric_columns or _METRICS
        self._metric_columns = _extended(columns, "metric", metric, representation)

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Add a column for a parameter.

        Parameters
        ----------
        parameter : str
            The name of the parameter.
        representation : str, optional
            The heading of the column. By default the name of the parameter.

        Raises
        ------
        ConfigError
            If it has a column already.
        """
        columns = self._parameter_columns or {}
        self._parameter_columns = _extended(columns, "parameter", parameter, representation)

    def should_report(self, trials: Sequence[TrialView], done: bool = False) -> bool:
        """Whether the last report is old enough, or this is the end.

        Parameters
        ----------
        trials : sequence of TrialView
            All trials.
        done : bool, default=False
            Whether this is the end.
        """
        now = self._clock()
        if done or now - self._last >= self._interval:
            self._last = now
            return True
        return False

    def _head(self, trial_counts: TrialCounts | RankedTrials, sys_info: Iterable[str]) -> list[str]:
        seconds = 0.0 if self._started is None else self._clock() - self._started
        counts = format_counts({status: trial_counts.counts[status] for status in _ORDER})
        total = sum(trial_counts.counts.values())
        known = [one for one in (self._total, trial_counts.total) if one is not None]
        of = f" of {max(*known, total)}" if known else ""
        best = best_line(trial_counts, self._metric, tuple(self._parameter_columns or trial_counts.searched))
        lines = [
            f"Running for {format_clock(seconds)}",
            *chain.from_iterable(text.splitlines() for text in sys_info),
            best,
            f"Trials: {total}{of}{f' ({counts})' if counts else ''}",
        ]
        return [printable(line) for line in lines if line]

    def _rows(self, trial_counts: TrialCounts | RankedTrials, width: int | None = None) -> tuple[Table, str]:
        """Return the table of trials, and a line about the trials that it leaves out."""
        shares = _shares(trial_counts.counts, self._max_rows)
        trials = [one for status, n in shares.items() for one in trial_counts.top(status, n)]
        if not trials:
            return [], _left_out(trial_counts.counts, shares)
        parameters = self._parameter_columns
        if parameters is None:
            configs = [name for trial in trials for name in flatten(trial.config)]
            parameters = {name: name for name in trial_counts.searched or dict.fromkeys(configs)}
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
        # The metrics matter most, the worker's address least.
        spare = [2, *reversed(range(3, 3 + len(parameters)))]
        return narrow(table, width, spare), _left_out(trial_counts.counts, shares)

    def _inferred(self, trials: Iterable[TrialView]) -> dict[str, str]:
        """Return the user's numeric metrics with their headings; the optimised metric is first."""
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
        return format_cell(value, DIGITS, self._max_length)

    def _errors(self, trial_counts: TrialCounts | RankedTrials) -> tuple[str, Table]:
        count = trial_counts.num_failed
        if not count:
            return "", []
        failed = trial_counts.failed(self._max_errors)
        more = f", {count - len(failed)} of them not shown" if count > len(failed) else ""
        table = errors_table(failed) if failed else []
        return f"{failure_headline(trial_counts)}{more}:", table


def _extended(columns: Mapping[str, str], kind: str, name: str, representation: str | None) -> dict[str, str]:
    check(name not in columns, kind, "one that is not shown yet", name)
    return {**columns, name: representation or name}


class CLIReporter(_TableReporter):
    """Prints reports with a table of trials, on ``sys.stderr``.

    On a narrow terminal, cells are truncated, then columns are left out: the worker, then the
    parameters from the last one on, then the metrics.

    Parameters
    ----------
    metric_columns : list of str or dict, optional
        The metrics to show, or a dict of metrics and their headings. By default the iteration, the
        time, the optimised metric, and up to `infer_limit` others.
    parameter_columns : list of str or dict, optional
        The parameters to show, or a dict of parameters and their headings; by default the searched
        ones. Nested names are joined by ``/``.
    total_samples : int, optional
        The total number of trials, if the experiment does not know it.
    max_progress_rows : int or None, default=20
        Maximum number of trials in the table, divided among the statuses; None for all trials.
    max_error_rows : int or None, default=20
        Maximum number of trials in the table of failures; None for all trials.
    max_column_length : int, default=20
        Maximum width of a cell in columns; longer texts end in an ellipsis.
    max_report_frequency : float, default=5
        Minimum number of seconds between two reports.
    infer_limit : int, default=3
        Maximum number of metrics to add without `metric_columns`.
    print_intermediate_tables : bool, optional
        Whether every report has tables (True, the default), or only the last one.
    metric : str, optional
        The metric by which trials are compared; by default the optimised one.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better.
    sort_by_metric : bool, default=False
        Whether to show the best trials of each status, by their last results, or the oldest.

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
            All trials.
        done : bool
            Whether this is the end.
        *sys_info : str
            More lines.
        """
        trial_counts = rank_trials(trials, *self.ranking)
        width = terminal_width(sys.stderr) if is_terminal(sys.stderr) else None
        lines = ["== Trials ==", *self._head(trial_counts, sys_info)]
        if self._tables or done:
            table, more = self._rows(trial_counts, width)
            lines += [*table_lines(table), *([more] if more else [])]
        headline, failed = self._errors(trial_counts)
        if headline:
            lines += [headline, *table_lines(fit_errors(failed, width))]
        self._print("\n".join(lines))

    def _print(self, text: str) -> None:
        Stream(sys.stderr).write(f"{text}\n\n")


class JupyterNotebookReporter(CLIReporter):
    """Shows reports as tables in the output of a notebook's cell.

    Outside of notebooks it prints what :class:`CLIReporter` prints.

    Parameters
    ----------
    overwrite : bool, default=True
        Whether each report replaces the previous one instead of being shown below it.
    **options : object
        Arguments of :class:`CLIReporter`, by name.

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
            All trials.
        done : bool
            Whether this is the end.
        *sys_info : str
            More lines.
        """
        from dasktune.progress.choose import in_notebook

        if not in_notebook():
            super().report(trials, done, *sys_info)
            return
        trial_counts = rank_trials(trials, *self.ranking)
        table, more = self._rows(trial_counts) if self._tables or done else ([], "")
        headline, failed = self._errors(trial_counts)
        blocks = [*self._head(trial_counts, sys_info), html_table(table), more, headline, html_table(failed)]
        cell = self._cell_of_all if self._overwrite else NotebookCell()
        parts = "{% for block in blocks if block %}<div>{{ block }}</div>{% endfor %}"
        cell.draw(render_html(f"<div>{parts}</div>", blocks=blocks))


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
    """Divide rows among the statuses, in rounds; no status gets more rows than it has trials."""
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
    total = sum(rest.values())
    return f"… {total} more {plural('trial', total)} ({format_counts(rest)})"
