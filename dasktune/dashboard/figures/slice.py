"""Slices: what trials came to over each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from bokeh.layouts import gridplot
from bokeh.models import ColumnDataSource, FixedTicker, Range1d
from bokeh.transform import linear_cmap

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import robust_range
from dasktune.dashboard.figures.theme import SCALE, Figure, empty, goal_name, hover, new_figure
from dasktune.dashboard.parameters import Parameter, parameters_of
from dasktune.dashboard.text import shown
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["slices"]

_MOST_TRIALS: Final = 2_000
_MOST_PARAMETERS: Final = 12
#: So many values of a number are all written at an axis.
_FEW: Final = 8


def slices(
    chronicle: Chronicle, *, parameters: Sequence[str] | None = None, height: int = 240
) -> Any:
    """Show the best value of each trial over each of its parameters, the later the brighter.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    parameters : sequence of str, optional
        Which; by default the first 12 that differ between trials.
    height : int, default=240
        Pixels of each of the figures.

    Returns
    -------
    object
        A grid of figures; a figure if there is nothing to show.
    """
    name = goal_name(chronicle)
    title = f"{name} over each parameter"
    logs = sorted(chronicle.ranked(), key=lambda log: log.index)
    logs = logs[:: -(-len(logs) // _MOST_TRIALS)] if logs else []
    if not logs:
        return empty(title, height=height)
    columns = parameters_of(chronicle, logs, parameters)[:_MOST_PARAMETERS]
    if not columns:
        return empty(title, "no parameter differs between trials", height)
    made = [_slice(name, column, logs, len(chronicle.trials), height) for column in columns]
    for other in made[1:]:
        other.y_range = made[0].y_range
    return gridplot(made, ncols=3, sizing_mode="stretch_width", toolbar_location=None)


def _slice(
    name: str, column: Parameter, logs: Sequence[TrialLog], count: int, height: int
) -> Figure:
    made = new_figure(
        "",
        f"{shown(column.name, 30)}{' (log)' if column.is_log else ''}",
        name,
        height=height,
        x_axis_type="log" if column.is_log else "linear",
    )
    made.title = None
    values = np.array([log.best_value() for log in logs])
    spread = np.zeros(len(logs))
    if column.categories:
        # Trials of a category side by side, the same way each time.
        spread = np.random.default_rng(0).uniform(-0.25, 0.25, len(logs))
        made.xaxis.ticker = FixedTicker(ticks=list(range(len(column.categories))))
        texts = (shown(text, 16) for text in column.categories)
        made.xaxis.major_label_overrides = dict(enumerate(texts))
        made.xaxis.major_label_orientation = 0.5 if len(column.categories) > 4 else "horizontal"
    elif len(np.unique(column.values[np.isfinite(column.values)])) <= _FEW:
        made.xaxis.ticker = FixedTicker(
            ticks=np.unique(column.values[np.isfinite(column.values)]).tolist()
        )
    keep = np.isfinite(column.values)
    source = ColumnDataSource(
        {
            "x": (column.values + spread)[keep],
            "y": values[keep],
            "index": np.array([log.index for log in logs])[keep],
            "trial": [shown(log.trial_id) for log, kept in zip(logs, keep, strict=True) if kept],
        }
    )
    dots = made.scatter(
        "x",
        "y",
        source=source,
        size=6,
        line_color=None,
        alpha=0.75,
        color=linear_cmap("index", SCALE, 0, max(1, count - 1)),
    )
    made.y_range = Range1d(*robust_range(values))
    made.add_tools(hover([("trial", "@trial"), ("value", "@y")], [dots]))
    return made
