"""What displays show of single trials: rows of the running and the best, and of what failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dasktune.callback import TrialView
from dasktune.errors import without_passwords
from dasktune.progress.board import Board, ListedTrials
from dasktune.progress.text import columns, crop, duration, pad, plural, printable, short
from dasktune.trial.metrics import flatten, lookup, number
from dasktune.trial.status import PublicStatus

__all__ = [
    "ERRORS",
    "ROWS",
    "SYMBOLS",
    "Table",
    "best_line",
    "errors_table",
    "failures",
    "fitted",
    "lines_of",
    "narrowed",
    "shorter_errors",
    "progress_table",
]

#: Cells as text; the first row is the head.
Table = list[list[str]]

#: Trials that are shown while an experiment runs, and how many of those are the best that do not
#: run, if there are more running ones than have room.
ROWS: Final = 10
_BEST_ROWS: Final = 3

#: Trials in the table of what failed.
ERRORS: Final = 20

SYMBOLS: Final = {
    PublicStatus.RUNNING: "▶",
    PublicStatus.PAUSED: "‖",
    PublicStatus.PENDING: "·",
    PublicStatus.TERMINATED: "✓",
    PublicStatus.ERROR: "✗",
}

_GAP: Final = "  "

#: Columns of a text, and of an error beside its traceback, where there is little room.
_SHORTEST: Final = 8
_LEAST_ERROR: Final = 24


def progress_table(board: Board, width: int | None = None, limit: int = ROWS) -> Table:
    """Return the running trials, then the best others, in as many columns as there is room for.

    Parameters
    ----------
    board : Board
        All trials. The time that this takes does not depend on how many there are.
    width : int, optional
        Columns of the terminal; no limit by default.
    limit : int, default=10
        How many trials at most.
    """
    trials = _shown(board, limit)
    metric = [] if board.metric is None else [board.metric, "best"]
    configs = [flatten(trial.config) for trial in trials]
    names = list(board.searched or dict.fromkeys(name for one in configs for name in one))
    head = ["", "trial", "iter", *metric, "time", *names]
    rows = [
        [*_about(board, trial), *(short(config.get(name)) for name in names)]
        for trial, config in zip(trials, configs, strict=True)
    ]
    return fitted([[crop(printable(name), 14) for name in head], *rows], width)


def _shown(board: Board, limit: int) -> list[TrialView]:
    others = [one for one in PublicStatus if one is not PublicStatus.RUNNING]
    best = board.best_of(others, limit)
    running = board.top(PublicStatus.RUNNING, limit - min(len(best), _BEST_ROWS))
    return [*running, *best[: limit - len(running)]]


def _about(board: Board, trial: TrialView) -> list[str]:
    last = trial.last_result
    seconds = number(last.get("time_total_s"))
    cells = [SYMBOLS[trial.status], trial.trial_id, short(last.get("training_iteration"))]
    if board.metric is not None:
        cells += [short(lookup(last, board.metric)), short(board.best_value(trial.trial_id))]
    return [*cells, "" if seconds is None else duration(seconds)]


def fitted(table: Table, width: int | None) -> Table:
    """Return a table without the last columns, those that have no room.

    Parameters
    ----------
    table : list of list of str
        Rows of equal length.
    width : int or None
        Columns of the terminal.

    Examples
    --------
    >>> fitted([["trial", "iter", "lr"], ["a_00001", "12", "0.001"]], 15)
    [['trial', 'iter'], ['a_00001', '12']]
    """
    if width is None:
        return table
    taken = kept = 0
    for cells in zip(*table, strict=True):
        taken += max(map(columns, cells)) + (len(_GAP) if kept else 0)
        if kept and taken > width:
            break
        kept += 1
    return [row[:kept] for row in table]


def narrowed(table: Table, width: int | None, spare: Sequence[int]) -> Table:
    """Return a table that fits: long texts are cropped, then columns left out.

    Parameters
    ----------
    table : list of list of str
        Rows of equal length; the first is the head.
    width : int or None
        Columns of the terminal; no limit if None.
    spare : sequence of int
        Columns that are left out before the last ones are, in this order.

    Examples
    --------
    >>> narrowed([["trial", "a_long_name", "loss"], ["a_00001", "relu", "0.5"]], 23, [1])
    [['trial', 'a_long_…', 'loss'], ['a_00001', 'relu', '0.5']]
    >>> narrowed([["trial", "a_long_name", "loss"], ["a_00001", "relu", "0.5"]], 15, [1])
    [['trial', 'loss'], ['a_00001', '0.5']]
    """
    if width is None or _width(table) <= width:
        return table
    # The first column says whose row it is, and half a number says something else.
    table = [
        [
            cell if not at or _is_number(cell) else crop(cell, _SHORTEST)
            for at, cell in enumerate(row)
        ]
        for row in table
    ]
    kept = list(range(len(table[0])))
    for column in spare:
        if _width([[row[at] for at in kept] for row in table]) > width:
            kept.remove(column)
    return fitted([[row[at] for at in kept] for row in table], width)


def _width(table: Table) -> int:
    """Return how wide a table is."""
    widths = [max(map(columns, cells)) for cells in zip(*table, strict=True)]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def lines_of(table: Table, *, right_from: int | None = None) -> list[str]:
    """Return a table as lines, with columns side by side.

    Parameters
    ----------
    table : list of list of str
        Rows of equal length.
    right_from : int, optional
        From which column on cells stand at the right; none by default.
    """
    widths = [max(map(columns, cells)) for cells in zip(*table, strict=True)]
    first = len(widths) if right_from is None else right_from
    return [
        _GAP.join(
            pad(cell, width, right=place >= first)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def errors_table(trials: Iterable[TrialView], width: int = 60) -> Table:
    """Return a table of what failed: trial, how often, the error in one line, its traceback.

    Parameters
    ----------
    trials : iterable of TrialView
        Those that failed.
    width : int, default=60
        Columns of the error.
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
        crop(printable(first), width),
        printable(without_passwords(where or "")),
    ]


def shorter_errors(table: Table, width: int | None) -> Table:
    """Return a table of what failed that fits, as far as it can be told in so little.

    Tracebacks are then named below the experiment's directory, and left out if there is no room.

    Parameters
    ----------
    table : list of list of str
        Of :func:`errors_table`.
    width : int or None
        Columns of the terminal; no limit if None.
    """
    if width is None or not table or _width(table) <= width:
        return table
    names = [[trial, "/".join(where.split("/")[-3:])] for trial, _, _, where in table]
    told = [error for _, _, error, _ in table]
    # Beside the place there is to be enough to tell errors from each other.
    where = width - _width(names) - len(_GAP)
    if where >= _LEAST_ERROR:
        return [[a, crop(e, where), b] for (a, b), e in zip(names, told, strict=True)]
    room = max(1, width - _width([[a] for a, _ in names]) - len(_GAP))
    return [[a, crop(e, room)] for (a, _), e in zip(names, told, strict=True)]


def failures(
    board: Board | ListedTrials, limit: int | None = ERRORS, width: int | None = None
) -> list[str]:
    """Return what failed as lines: a headline, a table, and how many have no room in it.

    Parameters
    ----------
    board : Board or ListedTrials
        All trials.
    limit : int, optional
        How many failures are shown at most.
    width : int, optional
        Columns of the terminal; no limit by default.
    """
    count = board.num_failed
    shown = board.failed(limit)
    if not count:
        return []
    lines = [f"{count} {plural('trial', count)} failed:"]
    if shown:
        table = shorter_errors(errors_table(shown), width and width - 2)
        lines += [f"  {line}" for line in lines_of(table)]
    if count > len(shown):
        lines.append(f"  … {count - len(shown)} more")
    return lines


def best_line(board: Board | ListedTrials, metric: str | None, names: Sequence[str]) -> str:
    """Return which trial is the best, and with what parameters; empty if nobody knows.

    Parameters
    ----------
    board : Board or ListedTrials
        All trials.
    metric : str or None
        What they are compared by.
    names : sequence of str
        The parameters that matter; all if there are none.
    """
    if board.best is None or metric is None:
        return ""
    points, trial_id = board.best
    value = points if board.mode == "max" else 0.0 - points
    config = flatten(board.named(trial_id).config)
    shown = [f"{printable(name)}={short(config.get(name))}" for name in names or config]
    told = f" with {', '.join(shown)}" if shown else ""
    return f"Best: {printable(metric)} {value:.4g} in {trial_id}{told}"
