"""Which trial was on which worker, and when."""

from __future__ import annotations

from typing import Any, Final

from bokeh.models import ColumnDataSource, FixedTicker, Range1d

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.theme import (
    COLOURS,
    Figure,
    above,
    empty,
    hover,
    in_order,
    new_figure,
)
from dasktune.dashboard.text import elapsed_unit, shown
from dasktune.dashboard.trial_log import Attempt, TrialLog

__all__ = ["timeline"]

#: Stays on workers that are drawn, the newest.
_MOST: Final = 4_000
_MOST_NAMES: Final = 40


def timeline(chronicle: Chronicle, *, height: int | None = None) -> Figure:
    """Show each stay of a trial on a worker as a bar; those that overlap lie one above the other.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    height : int, optional
        Pixels; by default what the workers need.
    """
    title = "Trials by worker"
    stays = [(one, log) for log in chronicle.trials for one in log.attempts]
    if not stays:
        return empty(title, "no trial has run yet", height or 340)
    stays.sort(key=lambda stay: stay[0].start)
    if len(stays) > _MOST:
        title += f": the last {_MOST:,} of {len(stays):,} stays"
        stays = stays[-_MOST:]
    lanes, numbers = _lanes(stays, chronicle)
    unit, seconds = elapsed_unit(chronicle.elapsed)
    made = new_figure(
        title,
        f"time since the beginning ({unit})",
        "",
        height=height or min(640, 130 + 26 * len(lanes)),
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        y_range=Range1d(len(lanes) - 0.4, -0.6),
    )
    for outcome in in_order(_outcome(one, log, chronicle) for one, log in stays):
        part = [
            (one, log, number)
            for (one, log), number in zip(stays, numbers, strict=True)
            if _outcome(one, log, chronicle) == outcome
        ]
        bars = made.quad(
            left="left",
            right="right",
            bottom="bottom",
            top="top",
            source=ColumnDataSource(_bars(part, chronicle, seconds)),
            color=COLOURS[outcome],
            line_color="#FFFFFF",
            line_width=0.5,
            legend_label=outcome.lower(),
        )
        tips = [
            ("trial", "@trial"),
            ("worker", "@worker"),
            ("seconds", "@seconds{0.00}"),
            ("ended", "@outcome"),
            ("restored from iteration", "@restored"),
            ("reason", "@reason"),
        ]
        made.add_tools(hover(tips, [bars]))
    made.ygrid.visible = False
    step = -(-len(lanes) // _MOST_NAMES)
    made.yaxis.ticker = FixedTicker(ticks=list(range(0, len(lanes), step)))
    made.yaxis.major_label_overrides = {i: shown(lane, 32) for i, lane in enumerate(lanes)}
    above(made)
    return made


def _lanes(
    stays: list[tuple[Attempt, TrialLog]], chronicle: Chronicle
) -> tuple[list[str], list[int]]:
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
) -> dict[str, list[Any]]:
    ends = [chronicle.now if one.end is None else one.end for one, _, _ in part]
    return {
        "left": [(one.start - chronicle.began) / seconds for one, _, _ in part],
        "right": [(end - chronicle.began) / seconds for end in ends],
        "bottom": [lane + 0.42 for _, _, lane in part],
        "top": [lane - 0.42 for _, _, lane in part],
        "trial": [shown(log.trial_id) for _, log, _ in part],
        "worker": [shown(one.worker, 60) for one, _, _ in part],
        "seconds": [end - one.start for end, (one, _, _) in zip(ends, part, strict=True)],
        "outcome": [one.outcome for one, _, _ in part],
        "restored": [
            "none" if one.restored_from is None else str(one.restored_from) for one, _, _ in part
        ],
        "reason": [shown(log.reason, 100) for _, log, _ in part],
    }
