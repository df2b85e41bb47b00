"""The best value so far."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from bokeh.models import ColumnDataSource, Range1d

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import robust_range
from dasktune.dashboard.figures.theme import (
    COLOURS,
    Figure,
    above,
    empty,
    goal_name,
    hover,
    in_order,
    new_figure,
)
from dasktune.dashboard.text import elapsed_unit, shown
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["best_so_far"]

#: Trials that are drawn; of more, a part that is the same each time.
_MOST: int = 5_000


def best_so_far(
    chronicle: Chronicle, *, x: Literal["time", "trials"] = "time", height: int = 340
) -> Figure:
    """Show the best value of the first goal as it came to be, and that of each trial.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    x : {"time", "trials"}, default="time"
        Over the time since its beginning, or over its trials.
    height : int, default=340
        Pixels.
    """
    name = goal_name(chronicle)
    title = f"Best {name} so far"
    if chronicle.mode is None and chronicle.metrics:
        return empty(title, "mode is not given, so nothing is best", height)
    if not chronicle.improvements:
        return empty(title, height=height)
    unit, seconds = elapsed_unit(chronicle.elapsed)
    label = f"time since the beginning ({unit})" if x == "time" else "trial"
    made = new_figure(title, label, name, height=height)
    dots, steps = _dots(chronicle, seconds, x), _steps(chronicle, seconds, x)
    made.y_range = Range1d(*robust_range(np.append(dots["value"], steps["value"])))
    drawn = []
    for outcome in in_order(dots["outcome"]):
        rows = [row for row, one in enumerate(dots["outcome"]) if one == outcome]
        part = ColumnDataSource(
            {key: [column[row] for row in rows] for key, column in dots.items()}
        )
        drawn.append(
            made.scatter(
                "x",
                "value",
                source=part,
                size=6,
                color=COLOURS[outcome],
                alpha=0.55,
                line_color=None,
                legend_label=outcome.lower(),
            )
        )
    line = made.step(
        "x",
        "value",
        source=ColumnDataSource(steps),
        mode="after",
        line_width=3,
        color=COLOURS["ERROR"],
        legend_label="best so far",
    )
    tips = [("trial", "@trial"), ("value", "@value{0.000000}"), ("iteration", "@iteration")]
    made.add_tools(hover(tips, drawn), hover(tips, [line], mode="mouse"))
    above(made)
    return made


def _dots(chronicle: Chronicle, seconds: float, x: str) -> dict[str, list[Any]]:
    logs = sorted(chronicle.ranked(), key=lambda log: log.index)
    logs = logs[:: -(-len(logs) // _MOST)] if logs else []
    return {
        "x": [_when(chronicle, log, seconds) if x == "time" else log.index for log in logs],
        "value": [log.best_value() for log in logs],
        "trial": [shown(log.trial_id) for log in logs],
        "iteration": [log.best[0][0] for log in logs],
        "outcome": [log.outcome for log in logs],
    }


def _when(chronicle: Chronicle, log: TrialLog, seconds: float) -> float:
    """Return when a trial was at its best, in the unit of the axis."""
    curve, at = log.curves[0], log.best[0][0]
    place = int(np.searchsorted(curve.iterations, at))
    return float(curve.times[min(place, len(curve) - 1)] - chronicle.began) / seconds


def _steps(chronicle: Chronicle, seconds: float, x: str) -> dict[str, list[Any]]:
    told = list(chronicle.improvements)
    if x == "trials":
        told = _by_trial(chronicle)
    last = (chronicle.now, *told[-1][1:])
    xs = [(time - chronicle.began) / seconds for time, *_ in [*told, last]]
    if x == "trials":
        xs = [*(float(index) for _, _, index, _ in told), float(len(chronicle.trials) - 1)]
    rows = [*told, last]
    return {
        "x": xs,
        "value": [value for _, value, _, _ in rows],
        "trial": [shown(chronicle.trials[index].trial_id) for _, _, index, _ in rows],
        "iteration": [iteration for *_, iteration in rows],
    }


def _by_trial(chronicle: Chronicle) -> list[tuple[float, float, int, int]]:
    """Return the improvements as if each trial had come to its best before the next one began."""
    told: list[tuple[float, float, int, int]] = []
    for log in sorted(chronicle.ranked(), key=lambda log: log.index):
        iteration, value = log.best[0]
        if not told or chronicle.better[0](value, told[-1][1]):
            told.append((chronicle.began, value, log.index, iteration))
    return told
