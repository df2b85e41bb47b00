"""Figure of the best value so far."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from math import isfinite
from typing import Any, Final, Literal

import numpy as np

from dasktune.dashboard.figures import theme
from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.focus_range import focus_range
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.text.formatting import elapsed_unit, plural

#: Maximum number of trials that are drawn; of more trials, every second, fourth, ... is drawn.
_MOST: Final = 5_000

Columns = dict[str, Any]


def best_so_far(
    projection: ExperimentProjection, *, x: Literal["time", "trials"] = "time", height: int = 340
) -> theme.Figure:
    """Show the best value of the first goal so far, and the best value of each trial.

    The axis shows the values that matter, by `focus_range`; a button at the figure shows all.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    x : {"time", "trials"}, default="time"
        The x axis: time since the beginning, or trials.
    height : int, default=340
        Height in pixels.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> best_so_far(projection, x="trials", height=300).height
    300
    """
    return best_spec(projection, x=x, height=height).build()


def best_spec(
    projection: ExperimentProjection, *, x: Literal["time", "trials"] = "time", height: int = 340
) -> FigureSpec:
    """Return the spec of :func:`best_so_far`; the parameters are the same."""
    name = theme.goal_name(projection)
    title = f"Best {name} so far"
    if projection.mode is None and projection.metrics:
        return empty_spec(title, "without mode no value is the best", height)
    if not projection.improvements:
        return empty_spec(title, height=height)
    unit, seconds = elapsed_unit(projection.elapsed)
    x_label = f"time since the beginning ({unit})" if x == "time" else "trial"
    dots, steps = _dots(projection, seconds, x), _steps(projection, seconds, x)
    values = np.concatenate([np.empty(0), *(columns["value"] for columns in dots.values())])
    best = steps["value"][-1:]
    if best not in values:  # a retry has replaced it, or its trial is not drawn
        values = np.concatenate([values, best])
    focus = focus_range(values, projection.mode, steps["value"])
    if focus.left_out:
        trials = f"{focus.left_out:,} {plural('trial', focus.left_out)}"
        title += f"\n{trials} out of sight: the button on the right shows the whole range"
    return FigureSpec(
        draw=_draw,
        structure=(x_label, name, height, tuple(theme.sorted_outcomes(dots)), focus.is_log),
        sources={**dots, "best": steps},
        settings={
            ("title", "text"): title,
            ("y", "start"): focus.low,
            ("y", "end"): focus.high,
        },
    )


def _draw(spec: FigureSpec) -> theme.Figure:
    x_label, name, height, outcomes, is_log = spec.structure
    made = theme.new_figure(
        spec.settings["title", "text"],
        x_label,
        f"{name} (log)" if is_log else name,
        height=height,
        y_range=spec.range("y"),
        y_axis_type="log" if is_log else "linear",
    )
    sources = {name: spec.source(name) for name in (*outcomes, "best")}
    drawn = [
        made.scatter(
            "x",
            "value",
            source=sources[outcome],
            size=6,
            color=theme.COLOURS[outcome],
            alpha=0.55,
            line_color=None,
            legend_label=outcome.lower(),
        )
        for outcome in outcomes
    ]
    line = made.step(
        "x",
        "value",
        source=sources["best"],
        mode="after",
        line_width=3,
        color=theme.COLOURS["ERROR"],
        legend_label="best so far",
    )
    tips = [("trial", "@trial"), ("value", "@value{0.000000}"), ("iteration", "@iteration")]
    made.add_tools(theme.hover(tips, drawn), theme.hover(tips, [line], mode="mouse"))
    theme.whole_range_button(made, list(sources.values()), "value")
    theme.legend_above(made)
    return made


class _DotRows:
    """The rows of the trials with one outcome, as columns, in the order in which the trials came.

    Arrays become those of NumPy without a look at each cell, which a figure of thousands of trials
    needs once in a second.
    """

    def __init__(self) -> None:
        #: The row of each trial, by the trial's index.
        self.places: dict[int, int] = {}
        self.times, self.values, self.iterations = array("d"), array("d"), array("q")
        self.trials: list[str] = []

    def put(self, trial: TrialProjection) -> None:
        """Add the row of a trial with a best value, or replace it."""
        iteration, value = trial.best[0]
        time, place = trial.curves[0].time_of(iteration), self.places.get(trial.index)
        if place is None:
            self.places[trial.index] = len(self.trials)
            self.times.append(time)
            self.values.append(value)
            self.iterations.append(iteration)
            self.trials.append(label(trial.trial_id))
        else:
            self.times[place], self.values[place], self.iterations[place] = time, value, iteration

    def remove(self, indices: Collection[int]) -> None:
        """Remove the rows of some trials; the others keep their order."""
        kept = [(index, place) for index, place in self.places.items() if index not in indices]
        places = [place for _, place in kept]
        self.places = {index: place for place, (index, _) in enumerate(kept)}
        self.times = array("d", map(self.times.__getitem__, places))
        self.values = array("d", map(self.values.__getitem__, places))
        self.iterations = array("q", map(self.iterations.__getitem__, places))
        self.trials = [self.trials[place] for place in places]


class _Dots:
    """The rows of the scatter plot: one for each trial, grouped by outcome.

    The rows of ended trials keep their order, so that an update only appends rows.
    """

    def __init__(self) -> None:
        self._version, self._stride = 0, 1
        self.rows: dict[str, _DotRows] = {}
        self._where: dict[int, str] = {}

    def update(self, projection: ExperimentProjection) -> None:
        """Recompute the rows of the trials that have changed."""
        changed = list(projection.changed_since(self._version))[::-1]
        self._version = projection.version
        while len(projection.trials) > self._stride * _MOST:
            self._stride *= 2
            self.rows, self._where, changed = {}, {}, projection.trials
        drawn = [trial for trial in changed if trial.index % self._stride == 0]
        self._remove_moved(drawn)
        for trial in drawn:
            if isfinite(trial.best_value()):
                self.rows.setdefault(trial.outcome, _DotRows()).put(trial)
                self._where[trial.index] = trial.outcome

    def _remove_moved(self, trials: Iterable[TrialProjection]) -> None:
        """Remove the rows of trials with another outcome than before, or no value any more.

        All at once for each outcome: thousands of paused trials may be stopped at the same moment.
        """
        moved: dict[str, set[int]] = {}
        for trial in trials:
            before = self._where.get(trial.index)
            if before is not None and (before != trial.outcome or not isfinite(trial.best_value())):
                moved.setdefault(before, set()).add(trial.index)
                del self._where[trial.index]
        for outcome, indices in moved.items():
            self.rows[outcome].remove(indices)


def _dots(projection: ExperimentProjection, seconds: float, x: str) -> dict[str, Columns]:
    """Return the columns of the scatter plot, for each outcome that occurs."""
    dots = projection.memo.setdefault("best so far", _Dots())
    dots.update(projection)
    found = {}
    for outcome, rows in dots.rows.items():
        if rows.trials:
            when = (np.array(rows.times) - projection.began) / seconds
            found[outcome] = {
                "x": when if x == "time" else np.array(list(rows.places), dtype=np.float64),
                "value": np.array(rows.values),
                "trial": rows.trials.copy(),
                "iteration": np.array(rows.iterations),
            }
    return found


def _steps(projection: ExperimentProjection, seconds: float, x: str) -> Columns:
    steps = list(projection.improvements)
    if x == "trials":
        steps = _by_trial(projection)
    rows = [*steps, (projection.now, *steps[-1][1:])]
    times, values, places, iterations = zip(*rows, strict=True)
    xs = (np.array(times) - projection.began) / seconds
    if x == "trials":
        xs = np.array([*places[:-1], len(projection.trials) - 1], dtype=np.float64)
    return {
        "x": xs,
        "value": np.array(values),
        "trial": [label(projection.trials[place].trial_id) for place in places],
        "iteration": np.array(iterations),
    }


def _by_trial(projection: ExperimentProjection) -> list[tuple[float, float, int, int]]:
    """Return the improvements as if each trial had ended before the next one began."""
    steps: list[tuple[float, float, int, int]] = []
    for trial in sorted(projection.ranked(), key=lambda trial: trial.index):
        iteration, value = trial.best[0]
        if not steps or projection.better[0](value, steps[-1][1]):
            steps.append((projection.began, value, trial.index, iteration))
    return steps
