"""The best value so far."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final, Literal

import numpy as np

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import robust_range
from dasktune.dashboard.figures.sketch import Sketch, nothing
from dasktune.dashboard.figures.theme import (
    COLOURS,
    Figure,
    above,
    goal_name,
    hover,
    in_order,
    new_figure,
)
from dasktune.dashboard.text import elapsed_unit, shown
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["best_sketch", "best_so_far"]

#: Trials that are drawn; of more, a part that is the same each time.
_MOST: Final = 5_000

Columns = dict[str, Any]


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

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> best_so_far(chronicle, x="trials", height=300).height
    300
    """
    return best_sketch(chronicle, x=x, height=height).drawn()


def best_sketch(
    chronicle: Chronicle, *, x: Literal["time", "trials"] = "time", height: int = 340
) -> Sketch:
    """Return what :func:`best_so_far` shows, with the same parameters."""
    name = goal_name(chronicle)
    title = f"Best {name} so far"
    if chronicle.mode is None and chronicle.metrics:
        return nothing(title, "mode is not given, so nothing is best", height)
    if not chronicle.improvements:
        return nothing(title, height=height)
    unit, seconds = elapsed_unit(chronicle.elapsed)
    label = f"time since the beginning ({unit})" if x == "time" else "trial"
    dots, steps = _dots(chronicle, seconds, x), _steps(chronicle, seconds, x)
    values = [columns["value"] for columns in dots.values()]
    low, high = robust_range(np.concatenate([*values, steps["value"]]))
    return Sketch(
        draw=_draw,
        form=(title, label, name, height, tuple(in_order(dots))),
        sources={**dots, "best": steps},
        settings={("y", "start"): low, ("y", "end"): high},
    )


def _draw(sketch: Sketch) -> Figure:
    title, label, name, height, outcomes = sketch.form
    made = new_figure(title, label, name, height=height, y_range=sketch.range("y"))
    drawn = [
        made.scatter(
            "x",
            "value",
            source=sketch.source(outcome),
            size=6,
            color=COLOURS[outcome],
            alpha=0.55,
            line_color=None,
            legend_label=outcome.lower(),
        )
        for outcome in outcomes
    ]
    line = made.step(
        "x",
        "value",
        source=sketch.source("best"),
        mode="after",
        line_width=3,
        color=COLOURS["ERROR"],
        legend_label="best so far",
    )
    tips = [("trial", "@trial"), ("value", "@value{0.000000}"), ("iteration", "@iteration")]
    made.add_tools(hover(tips, drawn), hover(tips, [line], mode="mouse"))
    above(made)
    return made


class _Dots:
    """A row for each trial, by what became of it.

    Trials that have ended stay where they are in their rows, so that others only come after them.
    """

    def __init__(self) -> None:
        self._version, self._stride = 0, 1
        self.rows: dict[str, dict[int, tuple[Any, ...]]] = {}
        self._where: dict[int, str] = {}

    def update(self, chronicle: Chronicle) -> None:
        """Work out the rows of the trials that have changed."""
        changed = list(chronicle.changed_since(self._version))[::-1]
        self._version = chronicle.version
        while len(chronicle.trials) > self._stride * _MOST:
            self._stride *= 2
            self.rows, self._where, changed = {}, {}, chronicle.trials
        for log in changed:
            if log.index % self._stride == 0:
                self._take(log)

    def _take(self, log: TrialLog) -> None:
        before, outcome, value = self._where.get(log.index), log.outcome, log.best_value()
        if before is not None and (before != outcome or not isfinite(value)):
            del self.rows[before][log.index], self._where[log.index]
        if isfinite(value):
            iteration = log.best[0][0]
            row = log.curves[0].time_of(iteration), value, shown(log.trial_id), iteration
            self.rows.setdefault(outcome, {})[log.index] = row
            self._where[log.index] = outcome


def _dots(chronicle: Chronicle, seconds: float, x: str) -> dict[str, Columns]:
    """Return the columns of each outcome that there is."""
    dots = chronicle.memo.setdefault("best so far", _Dots())
    dots.update(chronicle)
    found = {}
    for outcome, rows in dots.rows.items():
        if rows:
            times, values, trials, iterations = zip(*rows.values(), strict=True)
            when = (np.array(times) - chronicle.began) / seconds
            found[outcome] = {
                "x": when if x == "time" else np.array(list(rows), dtype=np.float64),
                "value": np.array(values),
                "trial": list(trials),
                "iteration": np.array(iterations),
            }
    return found


def _steps(chronicle: Chronicle, seconds: float, x: str) -> Columns:
    told = list(chronicle.improvements)
    if x == "trials":
        told = _by_trial(chronicle)
    rows = [*told, (chronicle.now, *told[-1][1:])]
    times, values, places, iterations = zip(*rows, strict=True)
    xs = (np.array(times) - chronicle.began) / seconds
    if x == "trials":
        xs = np.array([*places[:-1], len(chronicle.trials) - 1], dtype=np.float64)
    return {
        "x": xs,
        "value": np.array(values),
        "trial": [shown(chronicle.trials[place].trial_id) for place in places],
        "iteration": np.array(iterations),
    }


def _by_trial(chronicle: Chronicle) -> list[tuple[float, float, int, int]]:
    """Return the improvements as if each trial had come to its best before the next one began."""
    told: list[tuple[float, float, int, int]] = []
    for log in sorted(chronicle.ranked(), key=lambda log: log.index):
        iteration, value = log.best[0]
        if not told or chronicle.better[0](value, told[-1][1]):
            told.append((chronicle.began, value, log.index, iteration))
    return told
