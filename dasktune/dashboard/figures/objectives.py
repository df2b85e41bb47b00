"""Several goals at once: the Pareto front, and how much it has come to dominate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from bokeh.models import ColumnDataSource, Range1d
from numpy.typing import NDArray

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import robust_range
from dasktune.dashboard.figures.theme import (
    COLOURS,
    CONTRAST,
    Figure,
    above,
    empty,
    goal_name,
    hover,
    new_figure,
)
from dasktune.dashboard.text import configuration, elapsed_unit, shown
from dasktune.dashboard.trial_log import TrialLog
from dasktune.errors import ConfigError
from dasktune.schedulers.fronts import hypervolume

__all__ = ["hypervolume_over_time", "objectives"]

_Floats = NDArray[np.float64]

_MOST: Final = 5_000
#: Goals of which the dominated volume is worked out; with more it would take long.
_MOST_GOALS: Final = 4


def objectives(
    chronicle: Chronicle, *, x: str | None = None, y: str | None = None, height: int = 400
) -> Figure:
    """Show the last results of the trials by two goals, and the Pareto front by all of them.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    x, y : str, optional
        Of several goals, which; by default the first two.
    height : int, default=400
        Pixels.

    Raises
    ------
    ConfigError
        If `x` or `y` is no goal.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"], "cost": config["x"]}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric=["loss", "cost"], mode=["min", "max"])
    >>> objectives(chronicle, height=300).height
    300
    """
    title = "Pareto front"
    if len(chronicle.metrics) < 2:
        return empty(title, "there is a single goal; this shows several", height)
    across, up = _goal(chronicle, "x", x, 0), _goal(chronicle, "y", y, 1)
    logs, points = _points(chronicle)
    if not logs:
        return empty(title, height=height)
    best = _is_best(points, chronicle)
    made = new_figure(
        f"{title}: {best.sum()} of {len(logs)} trials are dominated by nobody",
        f"{goal_name(chronicle, across)} ({chronicle.modes[across]})",
        f"{goal_name(chronicle, up)} ({chronicle.modes[up]})",
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
        made.line(*plane[front].T, line_color=COLOURS["ERROR"], line_dash="dashed")
    _draw(made, plane, logs, others, "dominated")
    _draw(made, plane, logs, front, "Pareto front")
    above(made)
    return made


def _draw(
    made: Figure, plane: _Floats, logs: Sequence[TrialLog], rows: Sequence[int], legend: str
) -> None:
    is_front = legend == "Pareto front"
    source = ColumnDataSource(
        {
            "x": plane[rows, 0],
            "y": plane[rows, 1],
            "trial": [shown(logs[row].trial_id) for row in rows],
            "config": [configuration(logs[row].config, 120) for row in rows],
        }
    )
    dots = made.scatter(
        "x",
        "y",
        source=source,
        size=9 if is_front else 6,
        color=COLOURS["ERROR" if is_front else "PENDING"],
        legend_label=legend,
        alpha=0.85,
    )
    tips = [("trial", "@trial"), ("x", "@x"), ("y", "@y"), ("config", "@config")]
    made.add_tools(hover(tips, [dots]))


def hypervolume_over_time(
    chronicle: Chronicle, *, reference_point: Sequence[float] | None = None, height: int = 340
) -> Figure:
    """Show how much the Pareto front of the last results has come to dominate.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    reference_point : sequence of float, optional
        A value for each goal that is just not good enough; by default the worst of each.
    height : int, default=340
        Pixels.

    Raises
    ------
    ConfigError
        If the reference point has not a finite number for each goal.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"], "cost": config["x"]}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric=["loss", "cost"], mode=["min", "max"])
    >>> hypervolume_over_time(chronicle, height=300).height
    300
    """
    title = "Hypervolume"
    if not 2 <= len(chronicle.metrics) <= _MOST_GOALS:
        return empty(title, f"this shows two to {_MOST_GOALS} goals", height)
    logs, points = _points(chronicle)
    if not logs:
        return empty(title, height=height)
    corner = _corner(chronicle, points, reference_point)
    times, volumes = _volumes(chronicle, logs, points, corner)
    unit, seconds = elapsed_unit(chronicle.elapsed)
    worst = ", ".join(f"{value:.4g}" for value in corner)
    made = new_figure(
        f"{title} above ({worst})",
        f"time since the beginning ({unit})",
        "dominated volume",
        height=height,
    )
    xs = [*((time - chronicle.began) / seconds for time in times), chronicle.elapsed / seconds]
    ys = [*volumes, volumes[-1]]
    line = made.step(xs, ys, mode="after", line_width=3, color=CONTRAST[0])
    made.add_tools(hover([("volume", "@y")], [line]))
    return made


def _corner(
    chronicle: Chronicle, points: _Floats, reference_point: Sequence[float] | None
) -> _Floats:
    """Return the reference point: the worst of each goal if none is given."""
    if reference_point is None:
        signs = _signs(chronicle)
        worst: _Floats = (points * signs).min(axis=0) * signs
        return worst
    corner = np.array(reference_point, dtype=np.float64)
    if corner.shape != (len(chronicle.metrics),) or not np.isfinite(corner).all():
        raise ConfigError(
            f"reference_point must be a finite number for each of {chronicle.metrics}, "
            f"got {reference_point!r}"
        )
    return corner


def _goal(chronicle: Chronicle, argument: str, name: str | None, default: int) -> int:
    if name is None:
        return default
    if name not in chronicle.metrics:
        raise ConfigError(f"{argument} must be one of {chronicle.metrics}, got {name!r}")
    return chronicle.metrics.index(name)


def _points(chronicle: Chronicle) -> tuple[list[TrialLog], _Floats]:
    """Return the trials whose last result has all goals, and these."""
    goals = range(len(chronicle.metrics))
    rows = [([log.last_value(goal) for goal in goals], log) for log in chronicle.trials]
    rows = [(row, log) for row, log in rows if np.isfinite(row).all()]
    points = np.array([row for row, _ in rows], dtype=np.float64).reshape(len(rows), len(goals))
    return [log for _, log in rows], points


def _signs(chronicle: Chronicle) -> _Floats:
    return np.array([-1.0 if mode == "min" else 1.0 for mode in chronicle.modes])


def _is_best(points: _Floats, chronicle: Chronicle) -> NDArray[np.bool_]:
    """Return who is dominated by nobody; who is best by the first goal is asked first."""
    scores = points * _signs(chronicle)
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
    chronicle: Chronicle, logs: Sequence[TrialLog], points: _Floats, corner: _Floats
) -> tuple[list[float], list[float]]:
    """Return when the front moved, and how much it dominated from then on."""
    signs = _signs(chronicle)
    when = [log.curves[0].times[-1] for log in logs]
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
