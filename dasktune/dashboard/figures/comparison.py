"""The best values of several experiments in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np

from dasktune.dashboard.figures import theme
from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.focus_range import focus_range
from dasktune.text.formatting import elapsed_unit


def comparison(
    projections: Sequence[ExperimentProjection], *, x: Literal["time", "results"] = "time", height: int = 400
) -> theme.Figure:
    """Show the best value of the first goal so far, for each of several experiments.

    Parameters
    ----------
    projections : sequence of ExperimentProjection
        The experiments. Experiments whose goal differs from the first one's are left out.
    x : {"time", "results"}, default="time"
        The x axis: time since the beginning of each experiment, or number of results.
    height : int, default=400
        Height in pixels.
    """
    return comparison_spec(projections, x=x, height=height).build()


def comparison_spec(
    projections: Sequence[ExperimentProjection], *, x: Literal["time", "results"] = "time", height: int = 400
) -> FigureSpec:
    """Return the spec of :func:`comparison`; the parameters are the same."""
    title = f"Best so far, {_OVER[x]}"
    compared = [(place, one) for place, one in enumerate(projections) if one.improvements]
    compared = [(place, one) for place, one in compared if _goal(one) == _goal(compared[0][1])]
    if not compared:
        return empty_spec(title, height=height)
    name, mode = theme.goal_name(compared[0][1]), compared[0][1].mode
    unit, seconds = elapsed_unit(max(one.elapsed for _, one in compared))
    x_label = f"time since the beginning ({unit})" if x == "time" else "results"
    names = tuple((place, label(one.name or "experiment", 40)) for place, one in compared)
    sources = {f"line {place}": _steps(one, x, seconds) for place, one in compared}
    values = np.concatenate([one["value"] for one in sources.values()])
    focus = focus_range(values, mode, values)
    left_out = len(projections) - len(compared)
    title = f"Best {name} ({mode}) so far, {_OVER[x]}"
    if left_out:
        title += f"; without {left_out} with another goal or without results"
    return FigureSpec(
        draw=_draw,
        structure=(x_label, name, height, names, focus.is_log),
        sources=sources,
        settings={("y", "start"): focus.low, ("y", "end"): focus.high, ("title", "text"): title},
    )


_OVER: Final = {"time": "over time", "results": "over the number of results"}


def _goal(projection: ExperimentProjection) -> tuple[str | None, str | None]:
    return projection.metric, projection.mode


def _draw(spec: FigureSpec) -> theme.Figure:
    x_label, name, height, names, is_log = spec.structure
    made = theme.new_figure(
        spec.settings["title", "text"],
        x_label,
        f"{name} (log)" if is_log else name,
        height=height,
        y_range=spec.range("y"),
        y_axis_type="log" if is_log else "linear",
    )
    sources = {place: spec.source(f"line {place}") for place, _ in names}
    for place, experiment in names:
        line = made.step(
            "x",
            "value",
            source=sources[place],
            mode="after",
            line_width=2.5,
            color=theme.CONTRAST[place % len(theme.CONTRAST)],
            # Experiments beyond the number of colours have dashed lines.
            line_dash="solid" if place < len(theme.CONTRAST) else "dashed",
            legend_label=f"{place + 1}: {experiment}",
        )
        tips = [("experiment", "@experiment"), ("trial", "@trial"), ("value", "@value")]
        made.add_tools(theme.hover(tips, [line], mode="mouse"))
    theme.whole_range_button(made, list(sources.values()), "value")
    theme.legend_above(made)
    return made


def _steps(projection: ExperimentProjection, x: str, seconds: float) -> dict[str, Any]:
    rows = [*projection.improvements, (projection.now, *projection.improvements[-1][1:])]
    times, values, places, _ = zip(*rows, strict=True)
    xs = (np.array(times) - projection.began) / seconds
    if x == "results":
        xs = np.array([*projection.improved_after, projection.num_results], dtype=np.float64)
    return {
        "x": xs,
        "value": np.array(values),
        "trial": [label(projection.trials[place].trial_id) for place in places],
        "experiment": [label(projection.name)] * len(rows),
    }
