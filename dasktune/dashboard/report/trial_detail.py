"""All that there is to say of a trial, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any, Final

from bokeh.models import InlineStyleSheet, PreText

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.text import duration, printable, shown, value_text
from dasktune.dashboard.trial_log import MAX_CHECKPOINTS, TrialLog
from dasktune.progress.text import plural
from dasktune.result import is_auto_filled
from dasktune.trial.metrics import flatten

__all__ = ["detail", "trial_text"]

_SMALL: Final = {"font-size": "12px"}
#: Bokeh's own styles do not break lines.
_BROKEN: Final = "pre { white-space: pre-wrap; overflow-wrap: anywhere; }"

#: Characters of what stands above an error, and of the error.
_MOST: Final = 4_000
#: Stays on workers that are told, the newest.
_MOST_STAYS: Final = 5


def detail(text: str, *, styles: Mapping[str, str] | None = None, **more: Any) -> PreText:
    """Return a text of several lines as a model.

    Parameters
    ----------
    text : str
        What it says.
    styles : mapping of str to str, optional
        CSS, besides the size.
    **more
        Other properties of Bokeh's `PreText`.
    """
    return PreText(
        text=text,
        disable_math=True,
        sizing_mode="stretch_width",
        styles={**_SMALL, **(styles or {})},
        stylesheets=[InlineStyleSheet(css=_BROKEN)],
        **more,
    )


def trial_text(chronicle: Chronicle, log: TrialLog) -> str:
    """Return what a trial was given, what it did, and how that compares with the best trial.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    log : TrialLog
        The trial.
    """
    lines = [
        f"{log.trial_id}: {log.outcome}, iteration {log.iteration}",
        *([f"why: {log.reason}"] if log.reason else []),
        *_values(chronicle, log),
        *([f"clone of: {chronicle.trials[log.parent].trial_id}"] if log.parent >= 0 else []),
        *_counts(log),
        *_stays(chronicle, log),
        *_checkpoints(log),
        "",
        *_configuration(chronicle, log),
        "",
        "last result",
        *(
            f"  {shown(name, 60)} = {value_text(value, 120)}"
            for name, value in flatten(log.metrics).items()
            if not is_auto_filled(name)
        ),
    ]
    head = "\n".join(printable(line) for line in lines)[:_MOST]
    error = printable(log.traceback or log.error)[-_MOST:]
    return f"{head}\n\nerror\n{error}" if error else head


def _values(chronicle: Chronicle, log: TrialLog) -> Iterator[str]:
    """Tell for each goal what the trial has come to, and the best one."""
    for goal, (name, mode) in enumerate(zip(chronicle.metrics, chronicle.modes, strict=True)):
        if isnan(log.best_value(goal)):
            continue
        iteration, value = log.best[goal]
        last = f"last {value_text(log.last_value(goal))}"
        if mode is None:
            yield f"{shown(name, 60)}: {last}"
            continue
        told = f"{shown(name, 60)}: best {value_text(value)} at iteration {iteration}, {last}"
        _, best, place, _ = chronicle.improvements_of[goal][-1]
        if place == log.index:
            yield f"{told}; nobody was better"
        else:
            other = shown(chronicle.trials[place].trial_id, 60)
            yield f"{told}; the best trial, {other}, has {value_text(best)}"


def _counts(log: TrialLog) -> Iterator[str]:
    """Tell how often what has happened to it; what has not is no news."""
    counts = {
        "start": log.starts,
        "restart from a checkpoint": log.restores,
        "pause": log.pauses,
        "failure": log.failures,
        "lost worker": log.losses,
        "checkpoint": log.checkpoints,
    }
    if told := [f"{count} {_several(word, count)}" for word, count in counts.items() if count]:
        yield ", ".join(told)


def _several(word: str, count: int) -> str:
    first, space, rest = word.partition(" from")
    return f"{plural(first, count)}{space}{rest}"


def _stays(chronicle: Chronicle, log: TrialLog) -> Iterator[str]:
    if not log.attempts:
        return
    stays = log.attempts[-_MOST_STAYS:]
    more = f", the last {len(stays)} stays" if len(log.attempts) > len(stays) else ""
    yield f"on workers for {duration(log.runtime(chronicle.now))}{more}"
    for one in stays:
        lasted = (chronicle.now if one.end is None else one.end) - one.start
        began = duration(one.start - chronicle.began)
        yield f"  {shown(one.worker, 60)}: {one.outcome}, {duration(lasted)}, began after {began}"


def _checkpoints(log: TrialLog) -> Iterator[str]:
    if not log.stored:
        return
    yield f"checkpoints that are kept (of many the last {MAX_CHECKPOINTS})"
    for path, iteration in reversed(log.stored.items()):
        yield f"  iteration {iteration}: {path}"


def _configuration(chronicle: Chronicle, log: TrialLog) -> Iterator[str]:
    """Tell what the trial was given, and where the best one was given something else."""
    best = chronicle.best
    other = {} if best is None or best is log else best.config
    yield "configuration" + (
        f" (that of the best trial, {best.trial_id})" if other and best else ""
    )
    for name in dict.fromkeys([*log.config, *other]):
        own = value_text(log.config[name], 120) if name in log.config else "none"
        theirs = value_text(other[name], 120) if name in other else "none"
        differs = f"  ({theirs})" if other and own != theirs else ""
        yield f"  {shown(name, 60)} = {own}{differs}"
