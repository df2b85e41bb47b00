"""The details of a trial as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any, Final

from bokeh.models import InlineStyleSheet, PreText

from dasktune.dashboard.labels import label, value_label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import MAX_CHECKPOINTS, TrialProjection
from dasktune.dashboard.report.rank_lines import rank_lines
from dasktune.results.result import is_auto_filled
from dasktune.text.formatting import format_duration, plural, printable_lines
from dasktune.trial.metrics import flatten

_SMALL: Final = {"font-size": "12px"}
#: Breaks long lines, which Bokeh's styles do not.
_BROKEN: Final = "pre { white-space: pre-wrap; overflow-wrap: anywhere; }"
_SCROLLED: Final = "pre { overflow-x: auto; }"

#: Maximum length of an error, and of the text above it, in characters.
_MOST: Final = 4_000
#: Maximum number of attempts listed: the newest ones.
_MOST_ATTEMPTS: Final = 5


def text_box(
    text: str, *, styles: Mapping[str, str] | None = None, is_table: bool = False, **more: Any
) -> PreText:
    """Return a model that shows a text of several lines.

    Parameters
    ----------
    text : str
        The text.
    styles : mapping of str to str, optional
        More CSS.
    is_table : bool, default=False
        Whether the lines have columns, so that long lines scroll; otherwise they break.
    **more
        Other properties of Bokeh's `PreText`.
    """
    return PreText(
        text=text,
        disable_math=True,
        sizing_mode="stretch_width",
        styles={**_SMALL, **(styles or {})},
        stylesheets=[InlineStyleSheet(css=_SCROLLED if is_table else _BROKEN)],
        **more,
    )


def trial_text(projection: ExperimentProjection, trial: TrialProjection) -> str:
    """Return a trial's configuration, attempts and results, compared with the best trial.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    trial : TrialProjection
        The trial.
    """
    lines = [
        f"{trial.trial_id}: {trial.outcome}, iteration {trial.iteration}",
        *([f"why: {trial.reason}"] if trial.reason else []),
        *_values(projection, trial),
        *([f"clone of: {projection.trials[trial.parent].trial_id}"] if trial.parent >= 0 else []),
        *_counts(trial),
        *_attempts(projection, trial),
        *rank_lines(trial),
        *_checkpoints(trial),
        "",
        *_configuration(projection, trial),
        "",
        "last result",
        *(
            f"  {label(name, 60)} = {value_label(value, 120)}"
            for name, value in flatten(trial.metrics).items()
            if not is_auto_filled(name)
        ),
    ]
    head = "\n".join(printable_lines(line) for line in lines)[:_MOST]
    error = printable_lines(trial.traceback or trial.error)[-_MOST:]
    return f"{head}\n\nerror\n{error}" if error else head


def _values(projection: ExperimentProjection, trial: TrialProjection) -> Iterator[str]:
    """Yield the values of the trial and of the best trial, for each goal."""
    for goal, (name, mode) in enumerate(zip(projection.metrics, projection.modes, strict=True)):
        if isnan(trial.best_value(goal)):
            continue
        iteration, value = trial.best[goal]
        last = f"last {value_label(trial.last_value(goal))}"
        if mode is None:
            yield f"{label(name, 60)}: {last}"
            continue
        values = f"{label(name, 60)}: best {value_label(value)} at iteration {iteration}, {last}"
        _, best, place, _ = projection.improvements_of[goal][-1]
        if place == trial.index:
            yield f"{values}; no trial was better"
        else:
            other = label(projection.trials[place].trial_id, 60)
            yield f"{values}; the best trial, {other}, has {value_label(best)}"


def _counts(trial: TrialProjection) -> Iterator[str]:
    """Yield the counts of starts, failures and so on; counts of 0 are left out."""
    counts = {
        "start": trial.starts,
        "restart from a checkpoint": trial.restores,
        "pause": trial.pauses,
        "failure": trial.failures,
        "lost worker": trial.losses,
        "checkpoint": trial.checkpoints,
    }
    if parts := [f"{count} {_plural(word, count)}" for word, count in counts.items() if count]:
        yield ", ".join(parts)


def _plural(word: str, count: int) -> str:
    first, space, rest = word.partition(" from")
    return f"{plural(first, count)}{space}{rest}"


def _attempts(projection: ExperimentProjection, trial: TrialProjection) -> Iterator[str]:
    if not trial.attempts:
        return
    attempts = trial.attempts[-_MOST_ATTEMPTS:]
    more = f"; the last {len(attempts)} attempts" if len(trial.attempts) > len(attempts) else ""
    yield f"on workers for {format_duration(trial.runtime(projection.now))}{more}"
    for one in attempts:
        lasted = (projection.now if one.end is None else one.end) - one.start
        began = format_duration(one.start - projection.began)
        worker = label(one.worker, 60)
        yield f"  {worker}: {one.outcome}, {format_duration(lasted)}, began after {began}"


def _checkpoints(trial: TrialProjection) -> Iterator[str]:
    if not trial.stored_checkpoints:
        return
    yield f"stored checkpoints (at most the last {MAX_CHECKPOINTS})"
    for path, iteration in reversed(trial.stored_checkpoints.items()):
        yield f"  iteration {iteration}: {path}"


def _configuration(projection: ExperimentProjection, trial: TrialProjection) -> Iterator[str]:
    """Yield the configuration, and the values of the best trial that differ."""
    best = projection.best
    other = {} if best is None or best is trial else best.config
    yield "configuration" + (f" (that of the best trial, {best.trial_id})" if other and best else "")
    for name in dict.fromkeys([*trial.config, *other]):
        own = value_label(trial.config[name], 120) if name in trial.config else "none"
        theirs = value_label(other[name], 120) if name in other else "none"
        differs = f"  ({theirs})" if other and own != theirs else ""
        yield f"  {label(name, 60)} = {own}{differs}"
