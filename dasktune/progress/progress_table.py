"""Tables of single trials: the running ones, the best ones, and failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dasktune.callback import TrialView
from dasktune.errors import without_passwords
from dasktune.progress.trial_counts import RankedTrials, TrialCounts
from dasktune.text.formatting import (
    format_cell,
    format_clock,
    format_config,
    one_line,
    plural,
    printable,
    truncate,
)
from dasktune.text.text_table import Table, drop_columns, table_lines, table_width
from dasktune.trial.metrics import flatten, lookup, number
from dasktune.trial.status import PublicStatus

#: Maximum number of rows while an experiment runs, and how many of them are reserved for the best
#: trials that are not running.
ROWS: Final = 10
_BEST_ROWS: Final = 3

#: Maximum number of rows of the table at the end.
_FINAL_ROWS: Final = 5

#: Maximum number of rows of the table of failures.
ERRORS: Final = 20

SYMBOLS: Final = {
    PublicStatus.RUNNING: "▶",
    PublicStatus.PAUSED: "‖",
    PublicStatus.PENDING: "·",
    PublicStatus.TERMINATED: "✓",
    PublicStatus.ERROR: "✗",
}

#: Significant digits of numbers, and maximum width of a cell in terminal columns.
DIGITS: Final = 4
_CELL: Final = 14

#: Minimum width of an error message beside its traceback, in terminal columns.
_LEAST_ERROR: Final = 24


def progress_table(trial_counts: TrialCounts, width: int | None = None, limit: int = ROWS) -> Table:
    """Return a table of the running trials, then the best other trials, in as many columns as fit.

    Parameters
    ----------
    trial_counts : TrialCounts
        All trials. The cost does not depend on their number.
    width : int, optional
        Columns of the terminal; no limit by default.
    limit : int, default=10
        Maximum number of trials.
    """
    trials = _shown_trials(trial_counts, limit)
    metric = [] if trial_counts.metric is None else [trial_counts.metric, "best"]
    configs = [flatten(trial.config) for trial in trials]
    names = list(trial_counts.searched or dict.fromkeys(name for one in configs for name in one))
    head = ["", "trial", "iter", *metric, "time", *names]
    rows = [
        [*_about(trial_counts, trial), *(format_brief(config.get(name)) for name in names)]
        for trial, config in zip(trials, configs, strict=True)
    ]
    return drop_columns([[one_line(name, _CELL) for name in head], *rows], width)


def _shown_trials(trial_counts: TrialCounts, limit: int) -> list[TrialView]:
    others = [one for one in PublicStatus if one is not PublicStatus.RUNNING]
    best = trial_counts.best_of(others, limit)
    running = trial_counts.top(PublicStatus.RUNNING, limit - min(len(best), _BEST_ROWS))
    return [*running, *best[: limit - len(running)]]


def _about(trial_counts: TrialCounts, trial: TrialView) -> list[str]:
    last = trial.last_result
    seconds = number(last.get("time_total_s"))
    cells = [SYMBOLS[trial.status], trial.trial_id, format_brief(last.get("training_iteration"))]
    if trial_counts.metric is not None:
        cells += [
            format_brief(lookup(last, trial_counts.metric)),
            format_brief(trial_counts.best_value(trial.trial_id)),
        ]
    return [*cells, "" if seconds is None else format_clock(seconds)]


def format_brief(value: object) -> str:
    """Return a value as a cell of the progress table: numbers have four digits."""
    return format_cell(value, DIGITS, _CELL)


def errors_table(trials: Iterable[TrialView], width: int = 60) -> Table:
    """Return a table of failed trials: number of failures, last error, file of the traceback.

    Parameters
    ----------
    trials : iterable of TrialView
        The failed trials.
    width : int, default=60
        Maximum width of an error message, in columns.
    """
    head = ["trial", "failures", "error", "traceback"]
    return [head, *(_failure(trial, width) for trial in trials)]


def _failure(trial: TrialView, width: int) -> list[str]:
    message = trial.error_message or trial.reason
    first = message.splitlines()[0] if message else ""
    where = trial.error_file if trial.num_failures else None
    return [
        trial.trial_id,
        str(trial.num_failures),
        one_line(first, width),
        printable(without_passwords(where or "")),
    ]


def fit_errors(table: Table, width: int | None) -> Table:
    """Return a table of failures that fits into a terminal, as far as possible.

    In a narrow terminal, paths of tracebacks are relative to the experiment's directory. If an
    error would still get fewer than 24 columns, the paths are left out.

    Parameters
    ----------
    table : list of list of str
        The result of :func:`errors_table`.
    width : int or None
        Columns of the terminal; no limit if None.
    """
    if width is None or not table or table_width(table) <= width:
        return table
    below = [[trial, error, "/".join(file.split("/")[-3:])] for trial, _, error, file in table]
    room = width - table_width([[trial, "", file] for trial, _, file in below])
    if room >= _LEAST_ERROR:
        return [[trial, truncate(error, room), file] for trial, error, file in below]
    room = max(1, width - table_width([[trial, ""] for trial, _, _ in below]))
    return [[trial, truncate(error, room)] for trial, error, _ in below]


def failure_lines(
    trial_counts: TrialCounts | RankedTrials, limit: int | None = ERRORS, width: int | None = None
) -> list[str]:
    """Return failures as lines: a headline, a table, and the number of trials left out.

    Parameters
    ----------
    trial_counts : TrialCounts or RankedTrials
        All trials.
    limit : int, optional
        Maximum number of rows.
    width : int, optional
        Columns of the terminal; no limit by default.
    """
    count = trial_counts.num_failed
    shown = trial_counts.failed(limit)
    if not count:
        return []
    lines = [f"{failure_headline(trial_counts)}:"]
    if shown:
        table = fit_errors(errors_table(shown), width and width - 2)
        lines += [f"  {line}" for line in table_lines(table)]
    if count > len(shown):
        lines.append(f"  … {count - len(shown)} more")
    return lines


def failure_headline(trial_counts: TrialCounts | RankedTrials) -> str:
    """Return how many trials have failed, and whether they will not run again.

    Parameters
    ----------
    trial_counts : TrialCounts or RankedTrials
        All trials, at least one of them with a failure.
    """
    count, permanently = trial_counts.num_failed, trial_counts.counts[PublicStatus.ERROR]
    text = f"{count} {plural('trial', count)} failed"
    if permanently == count:
        return text
    # The others run again, or have ended well after another attempt.
    return f"{text}, {permanently} of them permanently" if permanently else f"{text} in an earlier attempt"


def best_lines(trial_counts: TrialCounts, width: int | None = None) -> list[str]:
    """Return a table of the best trials and their parameters; empty if fewer than two are ranked.

    Parameters
    ----------
    trial_counts : TrialCounts
        All trials.
    width : int, optional
        Columns of the terminal; no limit by default.
    """
    trials = trial_counts.best_of(list(PublicStatus), _FINAL_ROWS)
    ranked = sum(trial_counts.best_value(trial.trial_id) is not None for trial in trials)
    if trial_counts.metric is None or ranked < 2:
        return []
    table = progress_table(trial_counts, None if width is None else width - 2, _FINAL_ROWS)
    return [f"  {line}" for line in table_lines(table)]


def best_line(trial_counts: TrialCounts | RankedTrials, metric: str | None, names: Sequence[str]) -> str:
    """Return a line about the best trial and its parameters; empty without a best trial.

    Parameters
    ----------
    trial_counts : TrialCounts or RankedTrials
        All trials.
    metric : str or None
        The metric by which trials are compared.
    names : sequence of str
        The parameters to show; all if empty.
    """
    if trial_counts.best is None or metric is None:
        return ""
    points, trial_id = trial_counts.best
    value = points if trial_counts.mode == "max" else 0.0 - points
    config = flatten(trial_counts.named(trial_id).config)
    shown = {name: config[name] for name in names or config if name in config}
    parameters = f" with {format_config(shown, DIGITS, _CELL)}" if shown else ""
    return f"Best: {one_line(metric)} {value:.4g} in {trial_id}{parameters}"
