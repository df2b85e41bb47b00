"""Figures of several goals: the Pareto front, and its hypervolume over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from bokeh.models import ColumnDataSource, Range1d
from numpy.typing import NDArray

from dasktune.dashboard.figures import theme
from dasktune.dashboard.labels import config_label, label
from dasktune.dashboard.model.density import robust_range
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.errors import ConfigError
from dasktune.schedulers.pareto import hypervolume
from dasktune.text.formatting import elapsed_unit

_Floats = NDArray[np.float64]

_MOST: Final = 5_000
#: Maximum number of goals for the hypervolume. With more goals it takes too long to compute.
_MOST_GOALS: Final = 4


def objectives(
    projection: ExperimentProjection, *, x: str | None = None, y: str | None = None, height: int = 400
) -> theme.Figure:
    """Show the last results of trials by two goals, and the Pareto front by all goals.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    x, y : str, optional
        The goals of the axes; by default the first two.
    height : int, default=400
        Height in pixels.

    Raises
    ------
    ConfigError
        If `x` or `y` is not a goal.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"], "cost": config["x"]}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric=["loss", "cost"], mode=["min", "max"])
    >>> objectives(projection, height=300).height
    300
    """
    title = "Pareto front"
    if len(projection.metrics) < 2:
        return theme.empty_figure(title, "this figure needs at least two goals", height)
    across, up = _goal(projection, "x", x, 0), _goal(projection, "y", y, 1)
    trials, points = _points(projection)
    if not trials:
        return theme.empty_figure(title, height=height)
    best = _non_dominated(points, projection)
    made = theme.new_figure(
        f"{title}: {best.sum()} of {len(trials)} trials are not dominated",
        f"{theme.goal_name(projection, across)} ({projection.modes[across]})",
        f"{theme.goal_name(projection, up)} ({projection.modes[up]})",
        height=height,
    )
    made.x_range = Range1d(*robust_range(points[:, across]))
    made.y_range = Range1d(*robust_range(points[:, up]))
    order = np.lexsort((points[:, up], points[:, across]))
    front = [row for row in order if best[row]]
    others = [row for row in order if not best[row]]
    others = others[:: -(-len(others) // _MOST) or 1]
    plane = points[:, [across, up]]
    if len(points[0]) == 2:
        made.line(*plane[front].T, line_color=theme.COLOURS["ERROR"], line_dash="dashed")
    _draw(made, plane, trials, others, "dominated")
    _draw(made, plane, trials, front, "Pareto front")
    theme.legend_above(made)
    return made


def _draw(
    made: theme.Figure, plane: _Floats, trials: Sequence[TrialProjection], rows: Sequence[int], legend: str
) -> None:
    is_front = legend == "Pareto front"
    source = ColumnDataSource(
        {
            "x": plane[rows, 0],
            "y": plane[rows, 1],
            "trial": [label(trials[row].trial_id) for row in rows],
            "config": [config_label(trials[row].config, 120) for row in rows],
        }
    )
    dots = made.scatter(
        "x",
        "y",
        source=source,
        size=9 if is_front else 6,
        color=theme.COLOURS["ERROR" if is_front else "PENDING"],
        legend_label=legend,
        alpha=0.85,
    )
    tips = [("trial", "@trial"), ("x", "@x"), ("y", "@y"), ("config", "@config")]
    made.add_tools(theme.hover(tips, [dots]))


def hypervolume_over_time(
    projection: ExperimentProjection, *, reference_point: Sequence[float] | None = None, height: int = 340
) -> theme.Figure:
    """Show the hypervolume of the Pareto front of the last results over time.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    reference_point : sequence of float, optional
        The worst acceptable value of each goal; by default the worst value that occurs.
    height : int, default=340
        Height in pixels.

    Raises
    ------
    ConfigError
        If the reference point does not have a finite number for each goal.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"], "cost": config["x"]}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric=["loss", "cost"], mode=["min", "max"])
    >>> hypervolume_over_time(projection, height=300).height
    300
    """
    title = "Hypervolume"
    if not 2 <= len(projection.metrics) <= _MOST_GOALS:
        return theme.empty_figure(title, f"this figure needs two to {_MOST_GOALS} goals", height)
    trials, points = _points(projection)
    if not trials:
        return theme.empty_figure(title, height=height)
    corner = _corner(projection, points, reference_point)
    times, volumes = _volumes(projection, trials, points, corner)
    unit, seconds = elapsed_unit(projection.elapsed)
    worst = ", ".join(f"{value:.4g}" for value in corner)
    made = theme.new_figure(
        f"{title} above ({worst})", f"time since the beginning ({unit})", "dominated volume", height=height
    )
    xs = [*((time - projection.began) / seconds for time in times), projection.elapsed / seconds]
    ys = [*volumes, volumes[-1]]
    line = made.step(xs, ys, mode="after", line_width=3, color=theme.CONTRAST[0])
    made.add_tools(theme.hover([("volume", "@y")], [line]))
    return made


def _corner(
    projection: ExperimentProjection, points: _Floats, reference_point: Sequence[float] | None
) -> _Floats:
    """Return the reference point; by default the worst value of each goal."""
    if reference_point is None:
        signs = _signs(projection)
        worst: _Floats = (points * signs).min(axis=0) * signs
        return worst
    corner = np.array(reference_point, dtype=np.float64)
    if corner.shape != (len(projection.metrics),) or not np.isfinite(corner).all():
        raise ConfigError(
            f"reference_point must be a finite number for each of {projection.metrics}, "
            f"got {reference_point!r}"
        )
    return corner


def _goal(projection: ExperimentProjection, argument: str, name: str | None, default: int) -> int:
    if name is None:
        return default
    if name not in projection.metrics:
        raise ConfigError(f"{argument} must be one of {projection.metrics}, got {name!r}")
    return projection.metrics.index(name)


def _points(projection: ExperimentProjection) -> tuple[list[TrialProjection], _Floats]:
    """Return the trials whose last result has all goals, and the values of the goals."""
    goals = range(len(projection.metrics))
    rows = [([trial.last_value(goal) for goal in goals], trial) for trial in projection.trials]
    rows = [(row, trial) for row, trial in rows if np.isfinite(row).all()]
    points = np.array([row for row, _ in rows], dtype=np.float64).reshape(len(rows), len(goals))
    return [trial for _, trial in rows], points


def _signs(projection: ExperimentProjection) -> _Floats:
    return np.array([-1.0 if mode == "min" else 1.0 for mode in projection.modes])


def _non_dominated(points: _Floats, projection: ExperimentProjection) -> NDArray[np.bool_]:
    """Return which points are not dominated; points are examined in the order of the first goal."""
    scores = points * _signs(projection)
    best = np.zeros(len(scores), dtype=np.bool_)
    front = np.empty((0, scores.shape[1]))
    for row in np.lexsort(-scores.T[::-1]):
        one = scores[row]
        dominated = (front >= one).all(axis=1) & (front > one).any(axis=1)
        if not dominated.any():
            best[row] = True
            front = np.vstack((front, one))
    return best


def _volumes(
    projection: ExperimentProjection, trials: Sequence[TrialProjection], points: _Floats, corner: _Floats
) -> tuple[list[float], list[float]]:
    """Return the times at which the front changed, and the hypervolume after each change."""
    signs = _signs(projection)
    when = [trial.curves[0].times[-1] for trial in trials]
    times, volumes = [], []
    front = np.empty((0, len(signs)))
    for row in np.argsort(when, kind="stable"):
        one = points[row] * signs
        if (front >= one).all(axis=1).any():
            continue
        front = np.vstack((front[~(front <= one).all(axis=1)], one))
        times.append(float(when[row]))
        volumes.append(hypervolume(front, (corner * signs).tolist()))
    return times, volumes
