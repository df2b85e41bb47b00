"""Parallel coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, Range1d
from bokeh.transform import linear_cmap

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.sketch import Sketch, drawing, nothing
from dasktune.dashboard.figures.theme import (
    INK,
    SCALE,
    Figure,
    goal_name,
    hover,
    new_figure,
)
from dasktune.dashboard.parameters import Parameter, marks_of, parameters_of
from dasktune.dashboard.text import shown
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["parallel_coordinates", "parallel_sketch"]

#: Trials that are drawn: the best, and as many of the others.
_MOST: Final = 500
_MOST_AXES: Final = 12


def parallel_coordinates(
    chronicle: Chronicle, *, parameters: Sequence[str] | None = None, height: int = 400
) -> Figure:
    """Show each trial as a line through its parameters to what it came to, the best on top.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    parameters : sequence of str, optional
        Which, and in which order; by default the first 12 that differ between trials.
    height : int, default=400
        Pixels.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"] * config["y"]}, 1.0
    >>> space = {"x": {"grid_search": [1, 2]}, "y": {"grid_search": [3, 4]}}
    >>> results = simulate(train, param_space=space)
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> parallel_coordinates(chronicle, height=300).height
    300
    """
    return parallel_sketch(chronicle, parameters=parameters, height=height).drawn()


def parallel_sketch(
    chronicle: Chronicle, *, parameters: Sequence[str] | None = None, height: int = 400
) -> Sketch:
    """Return what :func:`parallel_coordinates` shows, with the same parameters."""
    name = goal_name(chronicle)
    title = "Parallel coordinates"
    ranked = chronicle.ranked()
    logs = _chosen(ranked)
    if not logs:
        return nothing(title, height=height)
    columns = parameters_of(chronicle, logs, parameters)[:_MOST_AXES]
    if not columns:
        return nothing(title, "no parameter differs between trials", height)
    if len(logs) < len(ranked):
        title += f" of {len(logs)} trials: the best {_MOST // 2}, and as many of the others"
    axes = [*columns, Parameter(name, np.array([log.best_value() for log in logs]))]
    trials = [shown(log.trial_id) for log in logs]
    if chronicle.mode is not None:
        title += "; the darker, the better"
    return drawing(partial(_draw, title, axes, trials, chronicle.mode is not None, height))


def _draw(
    title: str, axes: Sequence[Parameter], trials: Sequence[str], ordered: bool, height: int
) -> Figure:
    made = new_figure(title, "", "", height=height, y_range=Range1d(-0.08, 1.1), tools="save,reset")
    _draw_lines(made, axes, trials, ordered)
    _draw_axes(made, axes)
    return made


def _draw_lines(
    made: Figure, axes: Sequence[Parameter], trials: Sequence[str], ordered: bool
) -> None:
    # The best are drawn last, and so are on top. Ranks, lest one outlier take all the colours.
    quality = np.linspace(1.0, 0.0, len(trials)) if ordered else np.full(len(trials), 0.5)
    order = np.argsort(quality, kind="stable")
    places = np.column_stack([axis.units for axis in axes])[order]
    source = ColumnDataSource(
        {
            "xs": [np.arange(len(axes), dtype=np.float64)] * len(trials),
            "ys": list(places),
            "quality": quality[order],
            "width": np.where(quality[order] >= 0.95, 2.5, 1.0),
            "trial": [trials[row] for row in order],
            "value": axes[-1].values[order],
        }
    )
    line = made.multi_line(
        "xs",
        "ys",
        source=source,
        line_color=linear_cmap("quality", SCALE, 0, 1),
        line_width="width",
        line_alpha=0.65,
    )
    made.add_tools(hover([("trial", "@trial"), ("value", "@value")], [line]))


def _chosen(ranked: list[TrialLog]) -> list[TrialLog]:
    if len(ranked) <= _MOST:
        return ranked
    rest = ranked[_MOST // 2 :]
    some = np.random.default_rng(0).choice(len(rest), _MOST // 2, replace=False)
    return [*ranked[: _MOST // 2], *(rest[row] for row in sorted(some))]


def _draw_axes(made: Figure, axes: Sequence[Parameter]) -> None:
    names = [f"{shown(axis.name, 22)}{' (log)' if axis.is_log else ''}" for axis in axes]
    made.xaxis.ticker = FixedTicker(ticks=list(range(len(axes))))
    made.xaxis.major_label_overrides = dict(enumerate(names))
    made.xaxis.major_label_text_font_style = "bold"
    made.x_range = Range1d(-0.35, len(axes) - 0.55 + 0.2)
    made.yaxis.visible = made.ygrid.visible = False
    made.xgrid.grid_line_color, made.xgrid.grid_line_width = "#AFB8C1", 1.5
    marks = [
        (place, unit, text)
        for place, axis in enumerate(axes)
        for unit, text in marks_of(axis).items()
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
        text_color=INK,
        text_baseline="middle",
        background_fill_color="#FFFFFF",
        background_fill_alpha=0.92,
    )
