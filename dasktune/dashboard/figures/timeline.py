"""Figure of the attempts of trials, by worker."""

from __future__ import annotations

from math import inf
from typing import Any, Final

import numpy as np
from bokeh.models import FixedTicker, Range1d

from dasktune.dashboard.figures import theme
from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import Attempt, TrialProjection
from dasktune.text.formatting import elapsed_unit

Attempts = list[tuple[Attempt, TrialProjection]]

#: The oldest attempts are left out in groups of this size, so that the other bars rarely move.
_STEP: Final = 500
_MOST_NAMES: Final = 40


def timeline(projection: ExperimentProjection, *, height: int | None = None) -> theme.Figure:
    """Show each attempt of a trial as a bar; overlapping bars of a worker have lanes of their own.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    height : int, optional
        Height in pixels; by default as much as the workers need.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> timeline(projection, height=300).height
    300
    """
    return timeline_spec(projection, height=height).build()


def timeline_spec(projection: ExperimentProjection, *, height: int | None = None) -> FigureSpec:
    """Return the spec of :func:`timeline`; the parameters are the same."""
    title = "Trials by worker"
    attempts = _newest(projection)
    if not attempts:
        return empty_spec(title, "appears with the first start of a trial", height or 340)
    if len(attempts) < projection.num_attempts:
        title += f": the last {len(attempts):,} of {projection.num_attempts:,} attempts"
    lanes, numbers = _lanes(attempts, projection)
    unit, seconds = elapsed_unit(projection.elapsed)
    parts: dict[str, list[tuple[Attempt, TrialProjection, int]]] = {}
    for (one, trial), number in zip(attempts, numbers, strict=True):
        parts.setdefault(_outcome(one, trial, projection), []).append((one, trial, number))
    outcomes = tuple(theme.sorted_outcomes(parts))
    for part in parts.values():
        # Sort the attempts by their ends, so that an update only appends bars.
        part.sort(key=lambda stay: inf if stay[0].end is None else stay[0].end)
    return FigureSpec(
        draw=_draw,
        structure=(unit, height or min(640, 130 + 26 * len(lanes)), tuple(lanes), outcomes),
        sources={one: _bars(parts[one], projection, seconds) for one in outcomes},
        settings={("title", "text"): title},
    )


def _newest(projection: ExperimentProjection) -> Attempts:
    attempts = list(projection.attempts)
    gone = projection.num_attempts - len(attempts)
    return attempts[-gone % _STEP :]


def _draw(spec: FigureSpec) -> theme.Figure:
    unit, height, lanes, outcomes = spec.structure
    made = theme.new_figure(
        spec.settings["title", "text"],
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
            source=spec.source(outcome),
            color=theme.COLOURS[outcome],
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
        made.add_tools(theme.hover(tips, [bars]))
    made.ygrid.visible = False
    made.min_border_left = theme.WORKERS_LEFT
    step = -(-len(lanes) // _MOST_NAMES)
    made.yaxis.ticker = FixedTicker(ticks=list(range(0, len(lanes), step)))
    made.yaxis.major_label_overrides = {i: label(lane, 32) for i, lane in enumerate(lanes)}
    theme.legend_above(made)
    return made


def _lanes(attempts: Attempts, projection: ExperimentProjection) -> tuple[list[str], list[int]]:
    """Return the names of the lanes, and the lane of each attempt; overlaps need several lanes."""
    free: dict[str, list[float]] = {}
    within = []
    for one, _ in attempts:
        ends = free.setdefault(one.worker, [])
        end = projection.now if one.end is None else one.end
        lane = next((i for i, busy in enumerate(ends) if busy <= one.start), len(ends))
        ends[lane:] = [end, *ends[lane + 1 :]]
        within.append(lane)
    workers = sorted(free, key=lambda name: projection.workers.get(name, -1))
    first: dict[str, int] = {}
    lanes: list[str] = []
    for worker in workers:
        first[worker] = len(lanes)
        address = worker.rpartition("//")[2] or "unknown worker"
        lanes += [address, *[""] * (len(free[worker]) - 1)]
    return lanes, [first[one.worker] + lane for (one, _), lane in zip(attempts, within, strict=True)]


def _outcome(one: Attempt, trial: TrialProjection, projection: ExperimentProjection) -> str:
    """Return how an attempt ended; a trial that was stopped at the full budget has ended."""
    full = trial.iteration >= projection.full_budget or not trial.stopped_early
    return "ended" if one.outcome == "stopped" and full else one.outcome


def _bars(
    part: list[tuple[Attempt, TrialProjection, int]], projection: ExperimentProjection, seconds: float
) -> dict[str, Any]:
    starts = np.array([one.start for one, _, _ in part])
    ends = np.array([projection.now if one.end is None else one.end for one, _, _ in part])
    lanes = np.array([lane for _, _, lane in part], dtype=np.float64)
    return {
        "left": (starts - projection.began) / seconds,
        "right": (ends - projection.began) / seconds,
        "bottom": lanes + 0.42,
        "top": lanes - 0.42,
        "trial": [label(trial.trial_id) for _, trial, _ in part],
        "worker": [label(one.worker, 60) for one, _, _ in part],
        "seconds": ends - starts,
        "restored": ["none" if one.restored_from is None else str(one.restored_from) for one, _, _ in part],
        "reason": [label(trial.reason, 100) for _, trial, _ in part],
    }
