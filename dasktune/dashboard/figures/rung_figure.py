"""Figure of the rungs: where trials were compared, and which of them continued."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, Range1d

from dasktune.dashboard.figures import theme
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.density import robust_range
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import RungVisit, TrialProjection

#: Largest number of columns whose counts are explained below each of them.
_MOST_WORDY: Final = 6
#: What the counted trials did, by whether there are clones.
_PASSED: Final = {False: "continued", True: "became clones"}
#: With more rungs, the scheduler is no successive halving: it decides at nearly every result.
_MOST_RUNGS: Final = 40
_MOST_DOTS: Final = 5_000
_OUTCOMES: Final = ("continued", "cloned", "stopped", "waiting")
_MARKERS: Final = {"stopped": "x", "ended": "star", "waiting": "triangle", "cloned": "diamond"}
_LABELS: Final = {"ended": "reached the end", "cloned": "became a clone"}


def rungs(projection: ExperimentProjection, *, height: int = 380) -> theme.Figure:
    """Show the values of trials at each rung, the trials that continued, and the last cut-off.

    A trial may reach a rung several times, after a retry or as a clone: its last visit is shown. In
    population based training the rungs are the milestones at which trials may become clones.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment. Each rung of each bracket has a column.
    height : int, default=380
        Height in pixels.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> rungs(projection, height=300).height
    300
    """
    name = theme.goal_name(projection)
    title = "Rungs"
    visits = [(visit, trial) for trial in projection.trials for visit in _last_visits(trial)]
    if not visits:
        return theme.empty_figure(title, "appears with the first comparison of the scheduler", height)
    top = max(visit.budget for visit, _ in visits)
    columns = sorted({_column(visit, trial) for visit, trial in visits})
    if len(columns) > _MOST_RUNGS:
        return theme.empty_figure(
            title, f"the scheduler decided at {len(columns)} milestones, which are too many for rungs", height
        )
    place = {column: number for number, column in enumerate(columns)}
    several = len({bracket for bracket, _ in columns}) > 1
    time_attr = label(visits[0][0].time_attr)
    how = (
        "Comparisons: which trials became clones"
        if _is_cloned(visits)
        else f"{title}: which trials continued"
    )
    made = theme.new_figure(
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
    _draw_cutoffs(made, projection, visits, place)
    _label_columns(made, visits, place, several)
    theme.legend_above(made)
    return made


def _last_visits(trial: TrialProjection) -> list[RungVisit]:
    return list({visit.budget: visit for visit in trial.rungs}.values())


def _is_cloned(visits: list[tuple[RungVisit, TrialProjection]]) -> bool:
    return any(visit.outcome == "cloned" for visit, _ in visits)


def _column(visit: RungVisit, trial: TrialProjection) -> tuple[float, float]:
    """Return the column of a visit: the bracket, identified by its first rung, and the rung."""
    return min(trial.first_rung, visit.budget), visit.budget


def _outcome(visit: RungVisit, top: float) -> str:
    return "ended" if visit.budget == top and visit.outcome == "stopped" else visit.outcome


def _draw_dots(
    made: theme.Figure, visits: list[tuple[RungVisit, TrialProjection]], xs: list[Any], outcome: str
) -> None:
    source = ColumnDataSource(
        {
            "x": xs,
            "y": [visit.value for visit, _ in visits],
            "trial": [label(trial.trial_id) for _, trial in visits],
            "reason": [label(trial.reason, 100) for _, trial in visits],
        }
    )
    style = {"color": theme.COLOURS["TERMINATED" if outcome == "ended" else outcome]}
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
    tips = [("trial", "@trial"), ("value", "@y"), ("reason", "@reason")]
    made.add_tools(theme.hover(tips, [dots]))


def _draw_cutoffs(
    made: theme.Figure,
    projection: ExperimentProjection,
    visits: list[tuple[RungVisit, TrialProjection]],
    place: dict[tuple[float, float], int],
) -> None:
    """Draw the last recorded cut-off of each rung."""
    cutoffs: dict[int, tuple[float, float]] = {}
    for visit, trial in visits:
        at = place[_column(visit, trial)]
        if visit.cutoff is not None and visit.time >= cutoffs.get(at, (-np.inf, 0.0))[0]:
            cutoffs[at] = visit.time, visit.cutoff
    if cutoffs:
        made.segment(
            [at - 0.42 for at in cutoffs],
            [value for _, value in cutoffs.values()],
            [at + 0.42 for at in cutoffs],
            [value for _, value in cutoffs.values()],
            line_color=theme.COLOURS["ERROR"],
            line_width=2.5,
            legend_label="last cut-off",
        )


def _label_columns(
    made: theme.Figure,
    visits: list[tuple[RungVisit, TrialProjection]],
    place: dict[tuple[float, float], int],
    several: bool,
) -> None:
    # Count the rarer outcome: clones in population based training, survivors in halving.
    what = "cloned" if _is_cloned(visits) else "continued"
    came = dict.fromkeys(place.values(), 0)
    chosen = dict.fromkeys(place.values(), 0)
    for visit, trial in visits:
        at = place[_column(visit, trial)]
        came[at] += 1
        chosen[at] += visit.outcome == what
    top = max(visit.budget for visit, _ in visits)
    # In a narrow window many columns have room for the numbers alone.
    reached, what = (" reached it", f" {what}") if len(place) <= _MOST_WORDY else ("", "")
    if not what:
        made.xaxis.axis_label += f"; trials that reached it, and that {_PASSED[_is_cloned(visits)]}"
    texts = {}
    for (bracket, budget), at in place.items():
        named = f"{budget:g} ({bracket:g}…)" if several else f"{budget:g}"
        count = "" if budget == top and not chosen[at] else f"\n{chosen[at]:,}{what}"
        texts[at] = f"{named}\n{came[at]:,}{reached}{count}"
    made.xaxis.ticker = FixedTicker(ticks=list(texts))
    made.xaxis.major_label_overrides = texts
    made.xaxis.major_label_text_color = theme.INK
    made.xgrid.visible = False
