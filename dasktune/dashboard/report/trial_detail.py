"""The details of a trial as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any, Final

from bokeh.models import InlineStyleSheet, PreText

from dasktune.dashboard.labels import label, value_label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import MAX_CHECKPOINTS, TrialProjection
from dasktune.results.result import is_auto_filled
from dasktune.text.formatting import format_duration, plural, printable_lines
from dasktune.trial.metrics import flatten

__all__ = ["text_box", "trial_text"]

_SMALL: Final = {"font-size": "12px"}
#: Breaks long lines, which Bokeh's styles do not.
_BROKEN: Final = "pre { white-space: pre-wrap; overflow-wrap: anywhere; }"

#: The most characters of the text above an error, and of the error.
_MOST: Final = 4_000
#: The newest attempts that are listed.
_MOST_ATTEMPTS: Final = 5


def text_box(text: str, *, styles: Mapping[str, str] | None = None, **more: Any) -> PreText:
    """Return a model that shows a text of several lines.

    Parameters
    ----------
    text : str
        The text.
    styles : mapping of str to str, optional
        More CSS.
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


def trial_text(projection: ExperimentProjection, log: TrialProjection) -> str:
    """Return a trial's configuration, attempts and results, compared with the best trial.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    log : TrialProjection
        The trial.
    """
    lines = [
        f"{log.trial_id}: {log.outcome}, iteration {log.iteration}",
        *([f"why: {log.reason}"] if log.reason else []),
        *_values(projection, log),
        *([f"clone of: {projection.trials[log.parent].trial_id}"] if log.parent >= 0 else []),
        *_counts(log),
        *_attempts(projection, log),
        *_checkpoints(log),
        "",
        *_configuration(projection, log),
        "",
        "last result",
        *(
            f"  {label(name, 60)} = {value_label(value, 120)}"
            for name, value in flatten(log.metrics).items()
            if not is_auto_filled(name)
        ),
    ]
    head = "\n".join(printable_lines(line) for line in lines)[:_MOST]
    error = printable_lines(log.traceback or log.error)[-_MOST:]
    return f"{head}\n\nerror\n{error}" if error else head


def _values(projection: ExperimentProjection, log: TrialProjection) -> Iterator[str]:
    """Yield the values of the trial and of the best trial, for each goal."""
    for goal, (name, mode) in enumerate(zip(projection.metrics, projection.modes, strict=True)):
        if isnan(log.best_value(goal)):
            continue
        iteration, value = log.best[goal]
        last = f"last {value_label(log.last_value(goal))}"
        if mode is None:
            yield f"{label(name, 60)}: {last}"
            continue
        values = f"{label(name, 60)}: best {value_label(value)} at iteration {iteration}, {last}"
        _, best, place, _ = projection.improvements_of[goal][-1]
        if place == log.index:
            yield f"{values}; no trial was better"
        else:
            other = label(projection.trials[place].trial_id, 60)
            yield f"{values}; the best trial, {other}, has {value_label(best)}"


def _counts(log: TrialProjection) -> Iterator[str]:
    """Yield the counts of starts, failures and so on; counts of 0 are left out."""
    counts = {
        "start": log.starts,
        "restart from a checkpoint": log.restores,
        "pause": log.pauses,
        "failure": log.failures,
        "lost worker": log.losses,
        "checkpoint": log.checkpoints,
    }
    if parts := [f"{count} {_plural(word, count)}" for word, count in counts.items() if count]:
        yield ", ".join(parts)


def _plural(word: str, count: int) -> str:
    first, space, rest = word.partition(" from")
    return f"{plural(first, count)}{space}{rest}"


def _attempts(projection: ExperimentProjection, log: TrialProjection) -> Iterator[str]:
    if not log.attempts:
        return
    attempts = log.attempts[-_MOST_ATTEMPTS:]
    more = f"; the last {len(attempts)} attempts" if len(log.attempts) > len(attempts) else ""
    yield f"on workers for {format_duration(log.runtime(projection.now))}{more}"
    for one in attempts:
        lasted = (projection.now if one.end is None else one.end) - one.start
        began = format_duration(one.start - projection.began)
        worker = label(one.worker, 60)
        yield f"  {worker}: {one.outcome}, {format_duration(lasted)}, began after {began}"


def _checkpoints(log: TrialProjection) -> Iterator[str]:
    if not log.stored_checkpoints:
        return
    yield f"stored checkpoints (at most the last {MAX_CHECKPOINTS})"
    for path, iteration in reversed(log.stored_checkpoints.items()):
        yield f"  iteration {iteration}: {path}"


def _configuration(projection: ExperimentProjection, log: TrialProjection) -> Iterator[str]:
    """Yield the configuration, and the values of the best trial that differ."""
    best = projection.best
    other = {} if best is None or best is log else best.config
    yield "configuration" + (f" (that of the best trial, {best.trial_id})" if other and best else "")
    for name in dict.fromkeys([*log.config, *other]):
        own = value_label(log.config[name], 120) if name in log.config else "none"
        theirs = value_label(other[name], 120) if name in other else "none"
        differs = f"  ({theirs})" if other and own != theirs else ""
        yield f"  {label(name, 60)} = {own}{differs}"
