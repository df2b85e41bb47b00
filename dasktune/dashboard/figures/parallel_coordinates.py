"""Figure of the trials in parallel coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, Range1d
from bokeh.transform import linear_cmap

from dasktune.dashboard.figures import theme
from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec, static_spec
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.parameter_axis import ParameterAxis, axis_ticks, parameter_axes
from dasktune.dashboard.model.trial_projection import TrialProjection

#: Maximum number of trials that are drawn: half the best ones, half a sample of the others.
_MOST: Final = 500
_MOST_AXES: Final = 12


def parallel_coordinates(
    projection: ExperimentProjection, *, parameters: Sequence[str] | None = None, height: int = 400
) -> theme.Figure:
    """Show each trial as a line through its parameters and its value; the best are on top.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    parameters : sequence of str, optional
        The parameters, in this order; by default the first 12 that differ between trials.
    height : int, default=400
        Height in pixels.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"] * config["y"]}, 1.0
    >>> space = {"x": {"grid_search": [1, 2]}, "y": {"grid_search": [3, 4]}}
    >>> results = simulate(train, param_space=space)
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> parallel_coordinates(projection, height=300).height
    300
    """
    return parallel_spec(projection, parameters=parameters, height=height).build()


def parallel_spec(
    projection: ExperimentProjection, *, parameters: Sequence[str] | None = None, height: int = 400
) -> FigureSpec:
    """Return the spec of :func:`parallel_coordinates`; the parameters are the same."""
    name = theme.goal_name(projection)
    title = "Parallel coordinates"
    ranked = projection.ranked()
    trials = _chosen(ranked)
    if not trials:
        return empty_spec(title, height=height)
    columns = parameter_axes(projection, trials, parameters)[:_MOST_AXES]
    if not columns:
        return empty_spec(title, "no parameter differs between trials", height)
    axes = [*columns, ParameterAxis(name, np.array([trial.best_value() for trial in trials]))]
    trial_labels = [label(trial.trial_id) for trial in trials]
    if projection.mode is not None:
        title += "; stronger colours are better"
    if len(trials) < len(ranked):
        title += f"\n{len(trials)} trials: the best {_MOST // 2} and a sample of the others"
    return static_spec(partial(_draw, title, axes, trial_labels, projection.mode is not None, height))


def _draw(
    title: str, axes: Sequence[ParameterAxis], trial_labels: Sequence[str], ordered: bool, height: int
) -> theme.Figure:
    made = theme.new_figure(title, "", "", height=height, y_range=Range1d(-0.08, 1.1), tools="save,reset")
    _draw_lines(made, axes, trial_labels, ordered)
    _draw_axes(made, axes)
    return made


def _draw_lines(
    made: theme.Figure, axes: Sequence[ParameterAxis], trial_labels: Sequence[str], ordered: bool
) -> None:
    # The best are drawn last, on top. Colours show ranks: one outlier would use up the whole scale.
    quality = np.linspace(1.0, 0.0, len(trial_labels)) if ordered else np.full(len(trial_labels), 0.5)
    order = np.argsort(quality, kind="stable")
    places = np.column_stack([axis.units for axis in axes])[order]
    source = ColumnDataSource(
        {
            "xs": [np.arange(len(axes), dtype=np.float64)] * len(trial_labels),
            "ys": list(places),
            "quality": quality[order],
            "width": np.where(quality[order] >= 0.95, 2.5, 1.0),
            "trial": [trial_labels[row] for row in order],
            "value": axes[-1].values[order],
        }
    )
    line = made.multi_line(
        "xs",
        "ys",
        source=source,
        line_color=linear_cmap("quality", theme.SCALE, 0, 1),
        line_width="width",
        line_alpha=0.65,
    )
    made.add_tools(theme.hover([("trial", "@trial"), ("value", "@value")], [line]))


def _chosen(ranked: list[TrialProjection]) -> list[TrialProjection]:
    if len(ranked) <= _MOST:
        return ranked
    rest = ranked[_MOST // 2 :]
    some = np.random.default_rng(0).choice(len(rest), _MOST // 2, replace=False)
    return [*ranked[: _MOST // 2], *(rest[row] for row in sorted(some))]


def _draw_axes(made: theme.Figure, axes: Sequence[ParameterAxis]) -> None:
    names = [f"{label(axis.name, 22)}{' (log)' if axis.is_log else ''}" for axis in axes]
    made.xaxis.ticker = FixedTicker(ticks=list(range(len(axes))))
    made.xaxis.major_label_overrides = dict(enumerate(names))
    made.xaxis.major_label_text_font_style = "bold"
    made.x_range = Range1d(-0.35, len(axes) - 0.55 + 0.2)
    made.yaxis.visible = made.ygrid.visible = False
    made.xgrid.grid_line_color, made.xgrid.grid_line_width = "#AFB8C1", 1.5
    marks = [
        (place, unit, text) for place, axis in enumerate(axes) for unit, text in axis_ticks(axis).items()
    ]
    source = ColumnDataSource(
        {
            "x": [x for x, _, _ in marks],
            "y": [y for _, y, _ in marks],
            "text": [text for _, _, text in marks],
        }
    )
    made.text(
        "x",
        "y",
        "text",
        source=source,
        x_offset=5,
        text_font_size="11px",
        text_color=theme.INK,
        text_baseline="middle",
        background_fill_color="#FFFFFF",
        background_fill_alpha=0.92,
    )
