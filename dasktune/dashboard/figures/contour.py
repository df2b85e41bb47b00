"""Contour: what trials came to over two parameters."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from bokeh.models import ColorBar, ColumnDataSource, FixedTicker, LinearColorMapper, Range1d
from numpy.typing import NDArray

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import robust_range
from dasktune.dashboard.figures.importance import ranked_parameters
from dasktune.dashboard.figures.theme import SCALE, Figure, empty, goal_name, hover, new_figure
from dasktune.dashboard.parameters import Parameter, marks_of, parameters_of
from dasktune.dashboard.text import shown
from dasktune.errors import ConfigError

__all__ = ["contour"]

_Floats = NDArray[np.float64]

#: Cells along each side.
_CELLS: Final = 60
_MOST: Final = 2_000
#: How far the value of a trial reaches, relative to the range of a parameter.
_REACH: Final = 0.08


def contour(
    chronicle: Chronicle, *, x: str | None = None, y: str | None = None, height: int = 400
) -> Figure:
    """Show the best values of trials over two of their parameters, and what lies between.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    x, y : str, optional
        Parameters; by default the most important ones.
    height : int, default=400
        Pixels.

    Raises
    ------
    ConfigError
        If `x` or `y` is no parameter, or both are the same.

    Notes
    -----
    In between, the mean of the trials' values is drawn, weighted by a Gaussian of their distance
    (Nadaraya and Watson). Where no trial is near, nothing is.
    """
    name = goal_name(chronicle)
    title = f"{name} over two parameters"
    logs = [log for log in chronicle.ranked() if log.config][:_MOST]
    if not logs:
        return empty(title, height=height)
    names = _names(chronicle, x, y)
    if len(names) < 2:
        return empty(title, "fewer than two parameters differ between trials", height)
    across, up = parameters_of(chronicle, logs, names)
    keep = np.isfinite(across.values) & np.isfinite(up.values)
    if not keep.any():
        return empty(title, "no trial has both parameters", height)
    values = np.array([log.best_value() for log in logs])[keep]
    points = across.units[keep], up.units[keep]
    made = new_figure(
        f"{title}, smoothed by a Gaussian kernel",
        _title(across),
        _title(up),
        height=height,
        x_range=Range1d(-0.04, 1.04),
        y_range=Range1d(-0.04, 1.04),
    )
    low, high = robust_range(values, margin=0.0)
    palette = SCALE if chronicle.mode != "min" else SCALE[::-1]
    colours = LinearColorMapper(palette=palette, low=low, high=high, nan_color="#FFFFFF00")
    picture = _smoothed(*points, values)
    made.image(image=[picture], x=0, y=0, dw=1, dh=1, color_mapper=colours, alpha=0.8)
    source = ColumnDataSource(
        {
            "x": points[0],
            "y": points[1],
            "value": values,
            "trial": [shown(log.trial_id) for log, kept in zip(logs, keep, strict=True) if kept],
        }
    )
    colour = {"field": "value", "transform": colours}
    dots = made.scatter("x", "y", source=source, size=7, fill_color=colour, line_color="#FFFFFF")
    made.add_tools(hover([("trial", "@trial"), ("value", "@value")], [dots]))
    made.add_layout(ColorBar(color_mapper=colours, width=10, title=name), "right")
    _ticks(made.xaxis, across)
    _ticks(made.yaxis, up)
    return made


def _names(chronicle: Chronicle, x: str | None, y: str | None) -> list[str]:
    known = dict.fromkeys(name for log in chronicle.trials for name in log.config)
    for argument, name in (("x", x), ("y", y)):
        if name is not None and name not in known:
            raise ConfigError(f"{argument} must be one of {list(known)}, got {name!r}")
    if x is not None and x == y:
        raise ConfigError(f"y must be another parameter than x, got {y!r}")
    if x is not None and y is not None:
        return [x, y]
    ranked = [name for name, _ in ranked_parameters(chronicle)[0]]
    ranked = ranked or [one.name for one in parameters_of(chronicle, chronicle.trials)]
    free = [name for name in ranked if name not in (x, y)]
    chosen = [free.pop(0) if name is None and free else name for name in (x, y)]
    return [name for name in chosen if name is not None]


def _title(parameter: Parameter) -> str:
    return f"{shown(parameter.name)}{' (log)' if parameter.is_log else ''}"


def _ticks(axis: Any, parameter: Parameter) -> None:
    marks = marks_of(parameter)
    axis.ticker = FixedTicker(ticks=list(marks))
    axis.major_label_overrides = marks


def _smoothed(xs: _Floats, ys: _Floats, values: _Floats) -> _Floats:
    """Return the weighted means on a grid, NaN where no trial is near."""
    centres = (np.arange(_CELLS) + 0.5) / _CELLS
    # The Gaussian of two dimensions is the product of two of one.
    across = np.exp(-0.5 * ((centres[:, None] - xs) / _REACH) ** 2)
    up = np.exp(-0.5 * ((centres[:, None] - ys) / _REACH) ** 2)
    weights = up @ across.T
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (up * np.clip(values, *robust_range(values, margin=0.0))) @ across.T / weights
    # A trial at twice the reach still counts, one further away does not.
    return np.where(weights > np.exp(-2.0), means, np.nan)
