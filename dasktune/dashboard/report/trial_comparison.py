"""Several trials side by side as text: what differs first, then what is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dasktune.dashboard.labels import label, value_label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.results.result import is_auto_filled
from dasktune.text.formatting import format_duration, plural
from dasktune.trial.metrics import flatten

#: Maximum number of trials side by side.
MOST_TRIALS: Final = 8
#: Widths in characters of the names and of each trial's values.
_NAME: Final = 28
_CELL: Final = 18
#: Maximum number of lines of each part.
_MOST_LINES: Final = 60

_Row = tuple[str, list[str]]


def comparison_text(projection: ExperimentProjection, trials: Sequence[TrialProjection]) -> str:
    """Return a table of trials: status, values, and the configurations, with differences first.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    trials : sequence of TrialProjection
        The trials, at most `MOST_TRIALS`.
    """
    configuration = _configuration(trials)
    differs = [row for row in configuration if len(set(row[1])) > 1]
    same = [row for row in configuration if len(set(row[1])) == 1]
    lines = [
        _line("", [label(trial.trial_id, _CELL) for trial in trials]),
        *(_line(*row) for row in _outcomes(projection, trials)),
        "",
        f"configuration: {len(differs)} {plural('difference', len(differs))}",
        *_lines(differs),
    ]
    if same:
        lines += ["", "the same in all", *(f"  {name} = {cells[0]}" for name, cells in same[:_MOST_LINES])]
    metrics = _last_metrics(trials)
    if metrics:
        lines += ["", "last result", *_lines(metrics)]
    return "\n".join(lines)


def _lines(rows: Sequence[_Row]) -> Iterator[str]:
    yield from (_line(f"  {name}", cells) for name, cells in rows[:_MOST_LINES])
    if len(rows) > _MOST_LINES:
        yield f"  and {len(rows) - _MOST_LINES} more"


def _line(name: str, cells: Sequence[str]) -> str:
    parts = "".join(f"  {label(cell, _CELL):<{_CELL}}" for cell in cells)
    return f"{label(name, _NAME) if name.strip() else '':<{_NAME}}{parts}".rstrip()


def _outcomes(projection: ExperimentProjection, trials: Sequence[TrialProjection]) -> Iterator[_Row]:
    yield "status", [trial.outcome for trial in trials]
    for goal, name in enumerate(projection.metrics):
        yield f"best {name}", [value_label(trial.best_value(goal), _CELL) for trial in trials]
        yield f"last {name}", [value_label(trial.last_value(goal), _CELL) for trial in trials]
    yield "iteration", [f"{trial.iteration:,}" for trial in trials]
    yield "time on workers", [format_duration(trial.runtime(projection.now)) for trial in trials]


def _configuration(trials: Sequence[TrialProjection]) -> list[_Row]:
    names = dict.fromkeys(name for trial in trials for name in trial.config)
    return [
        (
            name,
            [value_label(trial.config[name], _CELL) if name in trial.config else "none" for trial in trials],
        )
        for name in names
    ]


def _last_metrics(trials: Sequence[TrialProjection]) -> list[_Row]:
    results = [flatten(trial.metrics) for trial in trials]
    names = dict.fromkeys(name for one in results for name in one if not is_auto_filled(name))
    return [
        (name, [value_label(one[name], _CELL) if name in one else "none" for one in results])
        for name in names
    ]
