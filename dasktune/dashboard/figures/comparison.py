"""Several experiments in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import robust_range
from dasktune.dashboard.figures.sketch import Sketch, nothing
from dasktune.dashboard.figures.theme import CONTRAST, Figure, above, goal_name, hover, new_figure
from dasktune.dashboard.text import elapsed_unit, shown

__all__ = ["comparison", "comparison_sketch"]


def comparison(
    chronicles: Sequence[Chronicle],
    *,
    x: Literal["time", "results"] = "time",
    height: int = 400,
) -> Figure:
    """Show the best value of the first goal as it came to be in each of several experiments.

    Parameters
    ----------
    chronicles : sequence of Chronicle
        The experiments. Those that have another goal than the first one are left out.
    x : {"time", "results"}, default="time"
        Over the time since the beginning of each, or over the results until then.
    height : int, default=400
        Pixels.
    """
    return comparison_sketch(chronicles, x=x, height=height).drawn()


def comparison_sketch(
    chronicles: Sequence[Chronicle],
    *,
    x: Literal["time", "results"] = "time",
    height: int = 400,
) -> Sketch:
    """Return what :func:`comparison` shows, with the same parameters."""
    title = "Best so far"
    told = [(place, one) for place, one in enumerate(chronicles) if one.improvements]
    told = [(place, one) for place, one in told if _goal(one) == _goal(told[0][1])]
    if not told:
        return nothing(title, height=height)
    name, mode = goal_name(told[0][1]), told[0][1].mode
    unit, seconds = elapsed_unit(max(one.elapsed for _, one in told))
    label = f"time since the beginning ({unit})" if x == "time" else "results"
    names = tuple((place, shown(one.name or "experiment", 40)) for place, one in told)
    sources = {f"line {place}": _steps(one, x, seconds) for place, one in told}
    low, high = robust_range(np.concatenate([one["value"] for one in sources.values()]))
    left_out = len(chronicles) - len(told)
    title = f"Best {name} ({mode}) so far"
    if left_out:
        title += f"; without {left_out} that have another goal, or no result"
    return Sketch(
        draw=_draw,
        form=(label, name, height, names),
        sources=sources,
        settings={("y", "start"): low, ("y", "end"): high, ("title", "text"): title},
    )


def _goal(chronicle: Chronicle) -> tuple[str | None, str | None]:
    return chronicle.metric, chronicle.mode


def _draw(sketch: Sketch) -> Figure:
    label, name, height, names = sketch.form
    title = sketch.settings["title", "text"]
    made = new_figure(title, label, name, height=height, y_range=sketch.range("y"))
    for place, experiment in names:
        line = made.step(
            "x",
            "value",
            source=sketch.source(f"line {place}"),
            mode="after",
            line_width=2.5,
            color=CONTRAST[place % len(CONTRAST)],
            # More than there are colours are told apart by their dashes.
            line_dash="solid" if place < len(CONTRAST) else "dashed",
            legend_label=f"{place + 1}: {experiment}",
        )
        tips = [("experiment", "@experiment"), ("trial", "@trial"), ("value", "@value")]
        made.add_tools(hover(tips, [line], mode="mouse"))
    above(made)
    return made


def _steps(chronicle: Chronicle, x: str, seconds: float) -> dict[str, Any]:
    rows = [*chronicle.improvements, (chronicle.now, *chronicle.improvements[-1][1:])]
    times, values, places, _ = zip(*rows, strict=True)
    xs = (np.array(times) - chronicle.began) / seconds
    if x == "results":
        xs = np.array([*chronicle.improved_after, chronicle.num_results], dtype=np.float64)
    return {
        "x": xs,
        "value": np.array(values),
        "trial": [shown(chronicle.trials[place].trial_id) for place in places],
        "experiment": [shown(chronicle.name)] * len(rows),
    }
