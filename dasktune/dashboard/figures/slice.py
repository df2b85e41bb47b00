"""Slices: the trials' values over each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from bokeh.layouts import column as above_each_other
from bokeh.layouts import gridplot
from bokeh.models import ColumnDataSource, Div, FixedTicker, NoOverlap, Range1d
from bokeh.transform import linear_cmap

from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec, static_spec
from dasktune.dashboard.figures.theme import FONT, INK, ORDER, Figure, goal_name, hover, new_figure
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.density import robust_range
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.parameter_axis import ParameterAxis, has_few_values, parameter_axes
from dasktune.text.html_template import render_html

_MOST_TRIALS: Final = 1_000
_MOST_PARAMETERS: Final = 12

#: A dark page sets the variables; see `dasktune.dashboard.report.style`.
_HEADING: Final = """
{% set style = "px " ~ font ~ ";color:var(--dt-ink, " ~ ink ~ ")" %}
<span style="font:bold 14{{ style }}">Slices: {{ name }} over each parameter</span>
<span style="font:12{{ style }};margin-left:32px">first trial{{ " " }}
<span style="display:inline-block;width:90px;height:10px;margin:0 4px;border-radius:3px;
filter:var(--dt-figure, none);background:linear-gradient(to right,{{ shades | join(",") }})"></span>
{{ " " }}last trial</span>
"""


def slices(
    projection: ExperimentProjection, *, parameters: Sequence[str] | None = None, height: int = 240
) -> Any:
    """Show the best value of each trial over each parameter; later trials are darker.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    parameters : sequence of str, optional
        The parameters; by default the first 12 that differ between trials.
    height : int, default=240
        Height of each figure in pixels.

    Returns
    -------
    object
        A heading above a grid of figures; an empty figure if there is nothing to show.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"] * config["y"]}, 1.0
    >>> space = {"x": {"grid_search": [1, 2]}, "y": {"grid_search": [3, 4]}}
    >>> results = simulate(train, param_space=space)
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> type(slices(projection)).__name__
    'Column'
    """
    return slices_spec(projection, parameters=parameters, height=height).build()


def slices_spec(
    projection: ExperimentProjection, *, parameters: Sequence[str] | None = None, height: int = 240
) -> FigureSpec:
    """Return the spec of :func:`slices`; the parameters are the same."""
    name = goal_name(projection)
    title = f"{name} over each parameter"
    trials = sorted(projection.ranked(), key=lambda trial: trial.index)
    trials = trials[:: -(-len(trials) // _MOST_TRIALS)] if trials else []
    if not trials:
        return empty_spec(title, height=height)
    columns = parameter_axes(projection, trials, parameters)[:_MOST_PARAMETERS]
    if not columns:
        return empty_spec(title, "no parameter differs between trials", height)
    rows = {
        "y": np.array([trial.best_value() for trial in trials]),
        "index": np.array([trial.index for trial in trials]),
        "trial": [label(trial.trial_id) for trial in trials],
    }
    return static_spec(partial(_draw, name, columns, rows, len(projection.trials), height))


def _draw(name: str, columns: Sequence[ParameterAxis], rows: dict[str, Any], count: int, height: int) -> Any:
    made = [_slice(name, one, rows, count, height) for one in columns]
    for other in made[1:]:
        other.y_range = made[0].y_range
    grid = gridplot(made, ncols=3, sizing_mode="stretch_width", toolbar_location=None)
    return above_each_other(_heading(name), grid, sizing_mode="stretch_width")


def _heading(name: str) -> Any:
    """Return the title and the colour key, which all figures share."""
    shades = ORDER[:: len(ORDER) // 8]
    text = render_html(_HEADING, name=name, font=FONT, ink=INK, shades=shades)
    return Div(text=text, disable_math=True, sizing_mode="stretch_width")


def _slice(name: str, column: ParameterAxis, rows: dict[str, Any], count: int, height: int) -> Figure:
    made = new_figure(
        "",
        f"{label(column.name, 30)}{' (log)' if column.is_log else ''}",
        name,
        height=height,
        x_axis_type="log" if column.is_log else "linear",
    )
    made.title = None
    # Spread the trials of one category sideways; the fixed seed keeps them in place in updates.
    draw = np.random.default_rng(0)
    values = rows["y"]
    spread = draw.uniform(-0.25, 0.25, len(values)) if column.categories else np.zeros(len(values))
    if column.is_log:
        # Powers of ten are wide, and the figure is a third of the page.
        made.xaxis.major_label_policy = NoOverlap(min_distance=10)
    _mark(made.xaxis, column)
    keep = np.isfinite(column.values)
    source = ColumnDataSource(
        {
            "x": (column.values + spread)[keep],
            "y": values[keep],
            "index": rows["index"][keep],
            "trial": [one for one, kept in zip(rows["trial"], keep, strict=True) if kept],
        }
    )
    colour = linear_cmap("index", ORDER, 0, max(1, count - 1))
    dots = made.scatter("x", "y", source=source, size=6, line_color=None, alpha=0.75, color=colour)
    made.y_range = Range1d(*robust_range(values))
    made.add_tools(hover([("trial", "@trial"), ("value", "@y")], [dots]))
    return made


def _mark(axis: Any, column: ParameterAxis) -> None:
    """Set the ticks of an axis: the categories, or the values if they are few."""
    if column.categories:
        axis.ticker = FixedTicker(ticks=list(range(len(column.categories))))
        axis.major_label_overrides = {i: label(one, 16) for i, one in enumerate(column.categories)}
        axis.major_label_orientation = 0.5 if len(column.categories) > 4 else "horizontal"
        return
    if has_few_values(column):
        distinct = np.unique(column.values[np.isfinite(column.values)])
        axis.ticker = FixedTicker(ticks=distinct.tolist())
