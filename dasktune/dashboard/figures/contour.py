"""Contour figure of the trials' values over two parameters."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, Final

import numpy as np
from bokeh.models import ColorBar, ColumnDataSource, FixedTicker, LinearColorMapper, Range1d
from numpy.typing import NDArray

from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec, static_spec
from dasktune.dashboard.figures.importance import Ranked, ranked_parameters
from dasktune.dashboard.figures.theme import SCALE, Figure, goal_name, hover, new_figure
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.density import robust_range
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.parameter_axis import ParameterAxis, axis_ticks, parameter_axes
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.errors import ConfigError

_Floats = NDArray[np.float64]

#: Cells along x and along y.
_CELLS: Final = (200, 120)
_MOST: Final = 2_000
#: Width of a category's band, relative to the distance of two categories.
_BAND: Final = 0.7
#: Standard deviation of the kernel, relative to the range of a parameter.
_REACH: Final = 0.08
#: Maximum opacity of the image, and the kernel weights at which the image is invisible and fully
#: visible: the weights of a single trial at a distance of about 2.5 and of 1 standard deviations.
_OPAQUE: Final = 0.85
_SEEN: Final = (np.exp(-3.0), np.exp(-0.5))


def contour(
    projection: ExperimentProjection,
    *,
    x: str | None = None,
    y: str | None = None,
    height: int = 400,
    ranked: Ranked | None = None,
) -> Figure:
    """Show the best values of trials over two parameters, with a smooth surface.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    x, y : str, optional
        Parameters; by default the most important ones.
    height : int, default=400
        Height in pixels.
    ranked : tuple, optional
        The result of :func:`~dasktune.dashboard.figures.importance.ranked_parameters`, if it is
        known.

    Raises
    ------
    ConfigError
        If `x` or `y` is not a parameter, or if both are the same.

    Notes
    -----
    The surface is the mean of the trials' values, weighted by a Gaussian of their distance
    (Nadaraya-Watson). It fades out where no trial is near. Along an axis of categories each
    category has a band of its own, and there is nothing between the bands.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"] * config["y"]}, 1.0
    >>> space = {"x": {"grid_search": [1, 2]}, "y": {"grid_search": [3, 4]}}
    >>> results = simulate(train, param_space=space)
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> contour(projection, x="x", y="y", height=300).height
    300
    """
    return contour_spec(projection, x=x, y=y, height=height, ranked=ranked).build()


def contour_spec(
    projection: ExperimentProjection,
    *,
    x: str | None = None,
    y: str | None = None,
    height: int = 400,
    ranked: Ranked | None = None,
) -> FigureSpec:
    """Return the spec of :func:`contour`; the parameters are the same."""
    name = goal_name(projection)
    title = f"{name} over two parameters"
    trials = [trial for trial in projection.ranked() if trial.config][:_MOST]
    if not trials:
        return empty_spec(title, height=height)
    names = _names(projection, trials, x, y, ranked)
    if len(names) < 2:
        return empty_spec(title, "fewer than two parameters differ between trials", height)
    across, up = parameter_axes(projection, trials, names)
    keep = np.isfinite(across.values) & np.isfinite(up.values)
    if not keep.any():
        return empty_spec(title, "no trial has both parameters", height)
    columns = {
        "x": across.units[keep],
        "y": up.units[keep],
        "value": np.array([trial.best_value() for trial in trials])[keep],
        "trial": [label(trial.trial_id) for trial, kept in zip(trials, keep, strict=True) if kept],
    }
    palette = SCALE if projection.mode != "min" else SCALE[::-1]
    return static_spec(partial(_draw, title, (across, up), columns, palette, height))


def _draw(
    title: str,
    parameters: tuple[ParameterAxis, ParameterAxis],
    columns: dict[str, Any],
    palette: Sequence[str],
    height: int,
) -> Figure:
    across, up = parameters
    made = new_figure(
        f"{title}, smoothed by a Gaussian kernel",
        _title(across),
        _title(up),
        height=height,
        x_range=Range1d(-0.04, 1.04),
        y_range=Range1d(-0.04, 1.04),
    )
    colours = _draw_values(made, columns, palette, [len(one.categories) for one in parameters])
    made.add_layout(ColorBar(color_mapper=colours, width=10), "right")
    _ticks(made.xaxis, across)
    _ticks(made.yaxis, up)
    return made


def _draw_values(
    made: Figure, columns: dict[str, Any], palette: Sequence[str], categories: Sequence[int]
) -> LinearColorMapper:
    """Draw the surface and the trials, and return the colour mapper.

    Parameters
    ----------
    made : Figure
        The figure.
    columns : dict
        The columns of the trials.
    palette : sequence of str
        The colours.
    categories : sequence of int
        The number of categories along x and along y; 0 for an axis of numbers.
    """
    low, high = robust_range(columns["value"], margin=0.0)
    colours = LinearColorMapper(palette=palette, low=low, high=high)
    means, shown_share = _smoothed(columns["x"], columns["y"], columns["value"], categories)
    picture = _coloured(means, shown_share, palette, low, high)
    made.image_rgba(image=[picture], x=0, y=0, dw=1, dh=1)
    dots = made.scatter(
        "x",
        "y",
        # Copies, because Bokeh changes columns in place.
        source=ColumnDataSource({name: copy(column) for name, column in columns.items()}),
        size=7,
        fill_color={"field": "value", "transform": colours},
        line_color="#FFFFFF",
    )
    made.add_tools(hover([("trial", "@trial"), ("value", "@value")], [dots]))
    return colours


def _names(
    projection: ExperimentProjection,
    trials: Sequence[TrialProjection],
    x: str | None,
    y: str | None,
    known_ranks: Ranked | None,
) -> list[str]:
    for argument, name in (("x", x), ("y", y)):
        if name is not None and all(name not in trial.config for trial in projection.trials):
            known = dict.fromkeys(name for trial in projection.trials for name in trial.config)
            raise ConfigError(f"{argument} must be one of {list(known)}, got {name!r}")
    if x is not None and x == y:
        raise ConfigError(f"y must be a parameter other than x, got {y!r}")
    if x is not None and y is not None:
        return [x, y]
    ranked = [name for name, _ in (known_ranks or ranked_parameters(projection))[0]]
    ranked = ranked or [one.name for one in parameter_axes(projection, trials)]
    free = [name for name in ranked if name not in (x, y)]
    chosen = [free.pop(0) if name is None and free else name for name in (x, y)]
    return [name for name in chosen if name is not None]


def _title(parameter: ParameterAxis) -> str:
    return f"{label(parameter.name)}{' (log)' if parameter.is_log else ''}"


def _ticks(axis: Any, parameter: ParameterAxis) -> None:
    marks = axis_ticks(parameter)
    axis.ticker = FixedTicker(ticks=list(marks))
    axis.major_label_overrides = marks


def _smoothed(
    xs: _Floats, ys: _Floats, values: _Floats, categories: Sequence[int] = (0, 0)
) -> tuple[_Floats, _Floats]:
    """Return the weighted means on a grid, and the opacity of each, from 0 to 1."""
    # A two-dimensional kernel is the product of two one-dimensional ones.
    across, up = (
        _kernel((np.arange(cells) + 0.5) / cells, units, count)
        for cells, units, count in zip(_CELLS, (xs, ys), categories, strict=True)
    )
    weights = np.maximum(up @ across.T, np.finfo(np.float64).tiny)
    means = (up * np.clip(values, *robust_range(values, margin=0.0))) @ across.T / weights
    none, all_ = np.log(_SEEN)
    return means, np.clip((np.log(weights) - none) / (all_ - none), 0.0, 1.0)


def _kernel(cells: _Floats, units: _Floats, categories: int) -> _Floats:
    """Return the weight of each trial in each cell along one axis.

    Between two categories there is nothing: each has a band of its own around its position, in
    which only its own trials count, and the space between two bands stays empty.
    """
    distance = np.abs(cells[:, None] - units)
    if not categories:
        weights: _Floats = np.exp(-0.5 * (distance / _REACH) ** 2)
        return weights
    half = 0.5 * _BAND / max(1, categories - 1)
    return (distance <= half).astype(np.float64)


def _coloured(
    means: _Floats, seen: _Floats, palette: Sequence[str], low: float, high: float
) -> NDArray[np.uint32]:
    """Return an RGBA image in the colours of the colour bar."""
    unit = np.clip((means - low) / (high - low), 0.0, 1.0) if high > low else means * 0.0
    rows = np.minimum((unit * len(palette)).astype(np.intp), len(palette) - 1)
    picture = np.empty((*means.shape, 4), dtype=np.uint8)
    picture[..., :3] = np.array([[*bytes.fromhex(one[1:7])] for one in palette])[rows]
    picture[..., 3] = (255 * _OPAQUE * seen).round()
    return picture.view(np.uint32).reshape(means.shape)
