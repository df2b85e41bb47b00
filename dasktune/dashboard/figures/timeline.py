"""Which trial was on which worker, and when."""

from __future__ import annotations

from math import inf
from typing import Any, Final

import numpy as np
from bokeh.models import FixedTicker, Range1d

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.sketch import Sketch, nothing
from dasktune.dashboard.figures.theme import (
    COLOURS,
    WORKERS_LEFT,
    Figure,
    above,
    hover,
    in_order,
    new_figure,
)
from dasktune.dashboard.text import elapsed_unit, shown
from dasktune.dashboard.trial_log import Attempt, TrialLog

__all__ = ["timeline", "timeline_sketch"]

Stays = list[tuple[Attempt, TrialLog]]

#: Stays that are left out at a time, if there are more than are kept, lest all move all the time.
_STEP: Final = 500
_MOST_NAMES: Final = 40


def timeline(chronicle: Chronicle, *, height: int | None = None) -> Figure:
    """Show each stay of a trial on a worker as a bar; those that overlap lie one above the other.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    height : int, optional
        Pixels; by default what the workers need.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> timeline(chronicle, height=300).height
    300
    """
    return timeline_sketch(chronicle, height=height).drawn()


def timeline_sketch(chronicle: Chronicle, *, height: int | None = None) -> Sketch:
    """Return what :func:`timeline` shows, with the same parameters."""
    title = "Trials by worker"
    stays = _newest(chronicle)
    if not stays:
        return nothing(title, "no trial has run yet", height or 340)
    if len(stays) < chronicle.num_stays:
        title += f": the last {len(stays):,} of {chronicle.num_stays:,} stays"
    lanes, numbers = _lanes(stays, chronicle)
    unit, seconds = elapsed_unit(chronicle.elapsed)
    parts: dict[str, list[tuple[Attempt, TrialLog, int]]] = {}
    for (one, log), number in zip(stays, numbers, strict=True):
        parts.setdefault(_outcome(one, log, chronicle), []).append((one, log, number))
    outcomes = tuple(in_order(parts))
    for part in parts.values():
        # As they ended, so that others only come after them.
        part.sort(key=lambda stay: inf if stay[0].end is None else stay[0].end)
    return Sketch(
        draw=_draw,
        form=(unit, height or min(640, 130 + 26 * len(lanes)), tuple(lanes), outcomes),
        sources={one: _bars(parts[one], chronicle, seconds) for one in outcomes},
        settings={("title", "text"): title},
    )


def _newest(chronicle: Chronicle) -> Stays:
    stays = list(chronicle.stays)
    gone = chronicle.num_stays - len(stays)
    return stays[-gone % _STEP :]


def _draw(sketch: Sketch) -> Figure:
    unit, height, lanes, outcomes = sketch.form
    made = new_figure(
        sketch.settings["title", "text"],
        f"time since the beginning ({unit})",
        "",
        height=height,
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        y_range=Range1d(len(lanes) - 0.4, -0.6),
    )
    for outcome in outcomes:
        bars = made.quad(
            left="left",
            right="right",
            bottom="bottom",
            top="top",
            source=sketch.source(outcome),
            color=COLOURS[outcome],
            line_color="#FFFFFF",
            line_width=0.5,
            legend_label=outcome.lower(),
        )
        tips = [
            ("trial", "@trial"),
            ("worker", "@worker"),
            ("seconds", "@seconds{0.00}"),
            ("ended", outcome),
            ("restored from iteration", "@restored"),
            ("reason", "@reason"),
        ]
        made.add_tools(hover(tips, [bars]))
    made.ygrid.visible = False
    made.min_border_left = WORKERS_LEFT
    step = -(-len(lanes) // _MOST_NAMES)
    made.yaxis.ticker = FixedTicker(ticks=list(range(0, len(lanes), step)))
    made.yaxis.major_label_overrides = {i: shown(lane, 32) for i, lane in enumerate(lanes)}
    above(made)
    return made


def _lanes(stays: Stays, chronicle: Chronicle) -> tuple[list[str], list[int]]:
    """Return the names of the lanes, and that of each stay: those that overlap need several."""
    free: dict[str, list[float]] = {}
    within = []
    for one, _ in stays:
        ends = free.setdefault(one.worker, [])
        end = chronicle.now if one.end is None else one.end
        lane = next((i for i, busy in enumerate(ends) if busy <= one.start), len(ends))
        ends[lane:] = [end, *ends[lane + 1 :]]
        within.append(lane)
    workers = sorted(free, key=lambda name: chronicle.workers.get(name, -1))
    first: dict[str, int] = {}
    lanes: list[str] = []
    for worker in workers:
        first[worker] = len(lanes)
        address = worker.rpartition("//")[2] or "worker unknown"
        lanes += [address, *[""] * (len(free[worker]) - 1)]
    return lanes, [first[one.worker] + lane for (one, _), lane in zip(stays, within, strict=True)]


def _outcome(one: Attempt, log: TrialLog, chronicle: Chronicle) -> str:
    """Return how a stay ended; one that was stopped where all are is just at its end."""
    full = log.iteration >= chronicle.full_budget or not log.cut
    return "ended" if one.outcome == "stopped" and full else one.outcome


def _bars(
    part: list[tuple[Attempt, TrialLog, int]], chronicle: Chronicle, seconds: float
) -> dict[str, Any]:
    starts = np.array([one.start for one, _, _ in part])
    ends = np.array([chronicle.now if one.end is None else one.end for one, _, _ in part])
    lanes = np.array([lane for _, _, lane in part], dtype=np.float64)
    return {
        "left": (starts - chronicle.began) / seconds,
        "right": (ends - chronicle.began) / seconds,
        "bottom": lanes + 0.42,
        "top": lanes - 0.42,
        "trial": [shown(log.trial_id) for _, log, _ in part],
        "worker": [shown(one.worker, 60) for one, _, _ in part],
        "seconds": ends - starts,
        "restored": [
            "none" if one.restored_from is None else str(one.restored_from) for one, _, _ in part
        ],
        "reason": [shown(log.reason, 100) for _, log, _ in part],
    }
