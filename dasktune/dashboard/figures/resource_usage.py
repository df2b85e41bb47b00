"""Figures of the resources that trials hold and that the cluster has, over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from bokeh.layouts import column
from numpy.typing import NDArray

from dasktune.dashboard.figures import theme
from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.text.formatting import elapsed_unit

_Floats = NDArray[np.float64]

#: Resources with a figure if the cluster has any; others have a figure if trials hold them.
_KNOWN: Final = ("CPU", "GPU")
_MOST: Final = 4
#: Maximum number of steps that are drawn. If there are more, the means over this number of equal
#: intervals are drawn instead.
_STEPS: Final = 800
_MEANS: Final = 200
_GIB: Final = 1024.0**3


@dataclass(frozen=True, slots=True)
class _Steps:
    """A step function of time."""

    times: _Floats
    #: The value from each time on.
    values: _Floats

    def integral(self, times: _Floats) -> _Floats:
        """Return the integral from the first time of the function up to each of `times`."""
        until = np.concatenate([[0.0], np.cumsum(np.diff(self.times) * self.values[:-1])])
        row = np.clip(np.searchsorted(self.times, times, side="right") - 1, 0, None)
        found: _Floats = until[row] + (times - self.times[row]) * self.values[row]
        return found


def resources(projection: ExperimentProjection, *, height: int = 200) -> Any:
    """Show how much of each resource the trials hold and the cluster has, over time.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    height : int, default=200
        Height of each figure in pixels. There is a figure for CPUs, one for GPUs if there are any,
        and one for each other requested resource; at most four.

    Returns
    -------
    object
        A column of figures; an empty figure if there is nothing to show.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"]}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> resources(projection).title.text
    'Resources held by trials'
    """
    return resources_spec(projection, height=height).build()


def resources_spec(projection: ExperimentProjection, *, height: int = 200) -> FigureSpec:
    """Return the spec of :func:`resources`; the parameters are the same."""
    title = "Resources held by trials"
    names = _names(projection)
    if not names:
        why = (
            "the journal does not have the resources of the trials"
            if projection.attempts
            else "appears with the first start of a trial"
        )
        return empty_spec(title, why, height)
    unit, seconds = elapsed_unit(projection.elapsed)
    first = min(one.start for one, _ in projection.attempts)
    last = _last(projection)
    sources, settings = {}, {}
    for name in names:
        size, _ = _scaled(name)
        held, capacity = _held(projection, name, last), _capacity(projection, name, first, last)
        sources[f"held {name}"] = _bars(held, last, projection.began, seconds, size)
        if len(capacity.times):
            sources[f"capacity {name}"] = {
                "x": (np.append(capacity.times, last) - projection.began) / seconds,
                "y": np.append(capacity.values, capacity.values[-1:]) / size,
            }
        settings[f"title {name}", "text"] = _title(name, held, capacity, last)
    has_capacity = tuple(f"capacity {name}" in sources for name in names)
    return FigureSpec(
        draw=_draw, structure=(unit, height, names, has_capacity), sources=sources, settings=settings
    )


def _names(projection: ExperimentProjection) -> tuple[str, ...]:
    """Return the resources with a figure; none if no trial holds any."""
    held = {name for one, _ in projection.attempts for name, amount in one.holds.items() if amount}
    there = {name for _, amounts in projection.capacity for name in amounts if amounts[name]}
    known = [name for name in _KNOWN if name in held or name in there]
    return (*known, *sorted(held - {*_KNOWN}))[:_MOST] if held else ()


def _last(projection: ExperimentProjection) -> float:
    """Return the end of the last attempt, which is also the end of the timeline."""
    ends = [projection.now if one.end is None else one.end for one, _ in projection.attempts]
    return max(ends)


def _scaled(name: str) -> tuple[float, str]:
    """Return the unit in which a resource is shown, and its label."""
    return (_GIB, "memory (GiB)") if name == "memory" else (1.0, label(name, 24))


def _held(projection: ExperimentProjection, name: str, last: float) -> _Steps:
    """Return the amount that trials held, from the attempts that are kept."""
    begins = [(one.start, one.holds.get(name, 0.0)) for one, _ in projection.attempts]
    ends = [(one.end, -one.holds.get(name, 0.0)) for one, _ in projection.attempts if one.end is not None]
    changes = np.array([*begins, *ends], dtype=np.float64)
    times, place = np.unique(np.minimum(changes[:, 0], last), return_inverse=True)
    sums = np.zeros(len(times))
    np.add.at(sums, place.reshape(-1), changes[:, 1])
    return _Steps(times, np.cumsum(sums).round(6).clip(0.0))


def _capacity(projection: ExperimentProjection, name: str, first: float, last: float) -> _Steps:
    """Return the cluster's amount since the first attempt; empty if the journal lacks it."""
    pairs = [(max(time, first), amounts.get(name, 0.0)) for time, amounts in projection.capacity]
    # Of the changes before the first attempt, the last one counts.
    steps = dict(pair for pair in pairs if pair[0] <= last)
    return _Steps(np.array([*steps]), np.array([*steps.values()]))


def _bars(held: _Steps, last: float, began: float, seconds: float, size: float) -> dict[str, Any]:
    edges, values = np.append(held.times, last), held.values
    if len(values) > _STEPS:
        edges = np.linspace(held.times[0], last, _MEANS + 1)
        values = np.diff(held.integral(edges)) / np.maximum(np.diff(edges), 1e-9)
    return {
        "left": (edges[:-1] - began) / seconds,
        "right": (edges[1:] - began) / seconds,
        "top": values / size,
    }


def _title(name: str, held: _Steps, capacity: _Steps, last: float) -> str:
    """Return the title, with the average share held from the first known capacity on."""
    resource = _scaled(name)[1].partition(" (")[0]
    if not len(capacity.times):
        return f"{resource} held by trials"
    since = np.array([max(held.times[0], capacity.times[0]), last])
    total = float(np.diff(capacity.integral(since))[0])
    if not total > 0:
        return f"{resource} held by trials"
    share = float(np.diff(held.integral(since))[0]) / total
    return f"{resource} held by trials: {share:.0%} of the capacity on average"


def _draw(spec: FigureSpec) -> Any:
    unit, height, names, has_capacity = spec.structure
    made: list[theme.Figure] = []
    for name, has_line in zip(names, has_capacity, strict=True):
        made.append(_draw_one(spec, name, has_line, height))
        made[-1].x_range = made[0].x_range
    made[-1].xaxis.axis_label = f"time since the beginning ({unit})"
    return column(*made, sizing_mode="stretch_width")


def _draw_one(spec: FigureSpec, name: str, has_line: bool, height: int) -> theme.Figure:
    resource = _scaled(name)[1]
    made = theme.new_figure(
        spec.settings[f"title {name}", "text"],
        "",
        resource,
        height=height,
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
    )
    made.title.name = f"title {name}"
    bars = made.quad(
        left="left",
        right="right",
        bottom=0,
        top="top",
        source=spec.source(f"held {name}"),
        color=theme.COLOURS["running"],
        legend_label="held",
    )
    made.add_tools(theme.hover([("held", "@top{0.[00]}"), ("from", "@left"), ("to", "@right")], [bars]))
    if has_line:
        made.step(
            "x",
            "y",
            source=spec.source(f"capacity {name}"),
            mode="after",
            color=theme.INK,
            line_width=1.5,
            line_dash="dashed",
            legend_label="capacity",
        )
    made.y_range.start = 0
    made.yaxis.ticker.desired_num_ticks = 4
    made.min_border_left = theme.WORKERS_LEFT
    theme.legend_above(made)
    return made
