"""Rungs: where trials were compared, and who went on."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, Range1d

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import robust_range
from dasktune.dashboard.figures.theme import (
    COLOURS,
    INK,
    Figure,
    above,
    empty,
    goal_name,
    hover,
    new_figure,
)
from dasktune.dashboard.text import shown
from dasktune.dashboard.trial_log import RungVisit, TrialLog

__all__ = ["rungs"]

#: With more it is no halving, but somebody who is asked all the time.
_MOST_RUNGS: Final = 40
_MOST_DOTS: Final = 5_000
_OUTCOMES: Final = ("went on", "cloned", "stopped", "waits")
_MARKERS: Final = {"stopped": "x", "ended": "star", "waits": "triangle", "cloned": "diamond"}
_LABELS: Final = {"ended": "came to the end", "cloned": "became a clone"}


def rungs(chronicle: Chronicle, *, height: int = 380) -> Figure:
    """Show what trials had come to at each rung, who went on, and where the last cut-off was.

    A trial that has come to a rung several times, because it was computed again or is a clone of
    one that was not so far, counts by its last visit. In population based training the rungs are
    the places where trials may become clones.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment. Of brackets, each rung of each one has a column of its own.
    height : int, default=380
        Pixels.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> rungs(chronicle, height=300).height
    300
    """
    name = goal_name(chronicle)
    title = "Rungs"
    visits = [(visit, log) for log in chronicle.trials for visit in _last_visits(log)]
    if not visits:
        return empty(title, "no scheduler has compared trials yet", height)
    top = max(visit.budget for visit, _ in visits)
    columns = sorted({_column(visit, log) for visit, log in visits})
    if len(columns) > _MOST_RUNGS:
        return empty(title, f"{len(columns)} places of decision are no rungs", height)
    place = {column: number for number, column in enumerate(columns)}
    several = len({bracket for bracket, _ in columns}) > 1
    time_attr = shown(visits[0][0].time_attr)
    how = "Comparisons: who became a clone" if _is_cloned(visits) else f"{title}: who went on"
    made = new_figure(
        f"{how}, by {name}",
        f"{time_attr}{', by bracket' if several else ''}",
        name,
        height=height,
        x_range=Range1d(-0.6, len(columns) - 0.4),
    )
    values = np.array([visit.value for visit, _ in visits])
    made.y_range = Range1d(*robust_range(values, margin=0.12))
    spread = np.random.default_rng(0).uniform(-0.28, 0.28, len(visits))
    for outcome in (*_OUTCOMES, "ended"):
        rows = [
            row
            for row, (visit, _) in enumerate(visits)
            if _outcome(visit, top) == outcome and np.isfinite(visit.value)
        ]
        rows = rows[:: -(-len(rows) // _MOST_DOTS) or 1]
        if rows:
            xs = [place[_column(*visits[row])] + spread[row] for row in rows]
            _draw_dots(made, [visits[row] for row in rows], xs, outcome)
    _draw_cutoffs(made, chronicle, visits, place)
    _label_columns(made, visits, place, several)
    above(made)
    return made


def _last_visits(log: TrialLog) -> list[RungVisit]:
    return list({visit.budget: visit for visit in log.rungs}.values())


def _is_cloned(visits: list[tuple[RungVisit, TrialLog]]) -> bool:
    return any(visit.outcome == "cloned" for visit, _ in visits)


def _column(visit: RungVisit, log: TrialLog) -> tuple[float, float]:
    """Return the bracket, by its first rung, and the rung."""
    return min(log.first_rung, visit.budget), visit.budget


def _outcome(visit: RungVisit, top: float) -> str:
    return "ended" if visit.budget == top and visit.outcome == "stopped" else visit.outcome


def _draw_dots(
    made: Figure, visits: list[tuple[RungVisit, TrialLog]], xs: list[Any], outcome: str
) -> None:
    source = ColumnDataSource(
        {
            "x": xs,
            "y": [visit.value for visit, _ in visits],
            "trial": [shown(log.trial_id) for _, log in visits],
            "reason": [shown(log.reason, 100) for _, log in visits],
        }
    )
    style = {"color": COLOURS["TERMINATED" if outcome == "ended" else outcome]}
    dots = made.scatter(
        "x",
        "y",
        source=source,
        marker=_MARKERS.get(outcome, "circle"),
        size=10 if outcome in ("ended", "cloned") else 7,
        alpha=0.75,
        line_width=2 if outcome == "stopped" else 1,
        legend_label=_LABELS.get(outcome, outcome),
        **style,
    )
    tips = [("trial", "@trial"), ("value", "@y"), ("what became of it", "@reason")]
    made.add_tools(hover(tips, [dots]))


def _draw_cutoffs(
    made: Figure,
    chronicle: Chronicle,
    visits: list[tuple[RungVisit, TrialLog]],
    place: dict[tuple[float, float], int],
) -> None:
    """Draw what a trial was compared with last; where nobody says, the best that was stopped."""
    told: dict[int, tuple[float, float]] = {}
    for visit, log in visits:
        at = place[_column(visit, log)]
        if visit.cutoff is not None and visit.time >= told.get(at, (-np.inf, 0.0))[0]:
            told[at] = visit.time, visit.cutoff
    if told:
        made.segment(
            [at - 0.42 for at in told],
            [value for _, value in told.values()],
            [at + 0.42 for at in told],
            [value for _, value in told.values()],
            line_color=COLOURS["ERROR"],
            line_width=2.5,
            legend_label="last cut-off",
        )


def _label_columns(
    made: Figure,
    visits: list[tuple[RungVisit, TrialLog]],
    place: dict[tuple[float, float], int],
    several: bool,
) -> None:
    # What is counted is what few may do: to go on where trials are stopped, to be cloned elsewhere.
    what = "cloned" if _is_cloned(visits) else "went on"
    came = dict.fromkeys(place.values(), 0)
    chosen = dict.fromkeys(place.values(), 0)
    for visit, log in visits:
        at = place[_column(visit, log)]
        came[at] += 1
        chosen[at] += visit.outcome == what
    top = max(visit.budget for visit, _ in visits)
    texts = {}
    for (bracket, budget), at in place.items():
        named = f"{budget:g} ({bracket:g}…)" if several else f"{budget:g}"
        told = "" if budget == top and not chosen[at] else f", {chosen[at]} {what}"
        texts[at] = f"{named}\n{came[at]} came{told}"
    made.xaxis.ticker = FixedTicker(ticks=list(texts))
    made.xaxis.major_label_overrides = texts
    made.xaxis.major_label_text_color = INK
    made.xgrid.visible = False
