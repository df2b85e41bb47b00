"""What trials hold of what the cluster has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from bokeh.layouts import column
from numpy.typing import NDArray

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.sketch import Sketch, nothing
from dasktune.dashboard.figures.theme import (
    COLOURS,
    INK,
    WORKERS_LEFT,
    Figure,
    above,
    hover,
    new_figure,
)
from dasktune.dashboard.text import elapsed_unit, shown

__all__ = ["resources", "resources_sketch"]

_Floats = NDArray[np.float64]

#: Resources that have a figure: these, if there are any, and others that trials ask for.
_KNOWN: Final = ("CPU", "GPU")
_MOST: Final = 4
#: Steps that are drawn one by one; of more, the means over so many equal times.
_STEPS: Final = 800
_MEANS: Final = 200
_GIB: Final = 1024.0**3


@dataclass(frozen=True, slots=True)
class _Steps:
    """A value that stays the same between the moments at which it changes."""

    times: _Floats
    #: From each of the times on.
    values: _Floats

    def integral(self, times: _Floats) -> _Floats:
        """Return the integral from the first moment to others."""
        until = np.concatenate([[0.0], np.cumsum(np.diff(self.times) * self.values[:-1])])
        row = np.clip(np.searchsorted(self.times, times, side="right") - 1, 0, None)
        found: _Floats = until[row] + (times - self.times[row]) * self.values[row]
        return found


def resources(chronicle: Chronicle, *, height: int = 200) -> Any:
    """Show how much of each resource trials hold over time, and how much the cluster has.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    height : int, default=200
        Pixels of each of the figures: one for CPUs, one for GPUs if there are any, and one for
        whatever else trials ask for, at most four.

    Returns
    -------
    object
        Figures below each other; a figure if there is nothing to show.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"]}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> resources(chronicle).title.text
    'Resources held by trials'
    """
    return resources_sketch(chronicle, height=height).drawn()


def resources_sketch(chronicle: Chronicle, *, height: int = 200) -> Sketch:
    """Return what :func:`resources` shows, with the same parameters."""
    title = "Resources held by trials"
    names = _names(chronicle)
    if not names:
        why = "nobody has told what trials hold" if chronicle.stays else "no trial has run yet"
        return nothing(title, why, height)
    unit, seconds = elapsed_unit(chronicle.elapsed)
    first = min(one.start for one, _ in chronicle.stays)
    last = _last(chronicle)
    sources, settings = {}, {}
    for name in names:
        size, _ = _scaled(name)
        held, capacity = _held(chronicle, name, last), _capacity(chronicle, name, first, last)
        sources[f"held {name}"] = _bars(held, last, chronicle.began, seconds, size)
        if len(capacity.times):
            sources[f"capacity {name}"] = {
                "x": (np.append(capacity.times, last) - chronicle.began) / seconds,
                "y": np.append(capacity.values, capacity.values[-1:]) / size,
            }
        settings[f"title {name}", "text"] = _title(name, held, capacity, last)
    is_told = tuple(f"capacity {name}" in sources for name in names)
    return Sketch(
        draw=_draw,
        form=(unit, height, names, is_told),
        sources=sources,
        settings=settings,
    )


def _names(chronicle: Chronicle) -> tuple[str, ...]:
    """Return the resources that have a figure; none without trials that hold any."""
    held = {name for one, _ in chronicle.stays for name, amount in one.holds.items() if amount}
    there = {name for _, amounts in chronicle.capacity for name in amounts if amounts[name]}
    known = [name for name in _KNOWN if name in held or name in there]
    return (*known, *sorted(held - {*_KNOWN}))[:_MOST] if held else ()


def _last(chronicle: Chronicle) -> float:
    """Return until when trials ran, which is where the bars of the timeline end."""
    ends = [chronicle.now if one.end is None else one.end for one, _ in chronicle.stays]
    return max(ends)


def _scaled(name: str) -> tuple[float, str]:
    """Return in which amount a resource is told, and what it is called."""
    return (_GIB, "memory (GiB)") if name == "memory" else (1.0, shown(name, 24))


def _held(chronicle: Chronicle, name: str, last: float) -> _Steps:
    """Return what trials held by those of their stays that are kept."""
    begins = [(one.start, one.holds.get(name, 0.0)) for one, _ in chronicle.stays]
    ends = [
        (one.end, -one.holds.get(name, 0.0)) for one, _ in chronicle.stays if one.end is not None
    ]
    changes = np.array([*begins, *ends], dtype=np.float64)
    times, place = np.unique(np.minimum(changes[:, 0], last), return_inverse=True)
    sums = np.zeros(len(times))
    np.add.at(sums, place.reshape(-1), changes[:, 1])
    return _Steps(times, np.cumsum(sums).round(6).clip(0.0))


def _capacity(chronicle: Chronicle, name: str, first: float, last: float) -> _Steps:
    """Return what the cluster had since the first trial ran; nothing if nobody has told."""
    pairs = [(max(time, first), amounts.get(name, 0.0)) for time, amounts in chronicle.capacity]
    # Of those before the first moment the last one counts.
    told = dict(pair for pair in pairs if pair[0] <= last)
    return _Steps(np.array([*told]), np.array([*told.values()]))


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
    """Return the share that was held on average, since when it is known what there is."""
    label = _scaled(name)[1].partition(" (")[0]
    if not len(capacity.times):
        return f"{label} held by trials"
    since = np.array([max(held.times[0], capacity.times[0]), last])
    total = float(np.diff(capacity.integral(since))[0])
    if not total > 0:
        return f"{label} held by trials"
    share = float(np.diff(held.integral(since))[0]) / total
    return f"{label} held by trials: {share:.0%} of what there is, on average"


def _draw(sketch: Sketch) -> Any:
    unit, height, names, is_told = sketch.form
    made: list[Figure] = []
    for name, told in zip(names, is_told, strict=True):
        made.append(_draw_one(sketch, name, told, height))
        made[-1].x_range = made[0].x_range
    made[-1].xaxis.axis_label = f"time since the beginning ({unit})"
    return column(*made, sizing_mode="stretch_width")


def _draw_one(sketch: Sketch, name: str, told: bool, height: int) -> Figure:
    label = _scaled(name)[1]
    made = new_figure(
        sketch.settings[f"title {name}", "text"],
        "",
        label,
        height=height,
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
    )
    made.title.name = f"title {name}"
    bars = made.quad(
        left="left",
        right="right",
        bottom=0,
        top="top",
        source=sketch.source(f"held {name}"),
        color=COLOURS["running"],
        legend_label="held",
    )
    made.add_tools(hover([("held", "@top{0.[00]}"), ("from", "@left"), ("to", "@right")], [bars]))
    if told:
        made.step(
            "x",
            "y",
            source=sketch.source(f"capacity {name}"),
            mode="after",
            color=INK,
            line_width=1.5,
            line_dash="dashed",
            legend_label="capacity",
        )
    made.y_range.start = 0
    made.yaxis.ticker.desired_num_ticks = 4
    made.min_border_left = WORKERS_LEFT
    above(made)
    return made
