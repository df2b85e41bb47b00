"""Figure of the lineage: donors and clones in population based training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from bokeh.models import ColumnDataSource, FixedTicker, Range1d

from dasktune.dashboard.figures.theme import CONTRAST, INK, Figure, empty_figure, hover, new_figure
from dasktune.dashboard.labels import config_label, label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import ExploitMark, TrialProjection
from dasktune.text.formatting import elapsed_unit

#: A trial, the begin and the end of a period with one founder, and the index of the founder.
Piece: TypeAlias = tuple[TrialProjection, float, float, int]

#: Maximum number of rows. The best trials come first.
_MOST: Final = 60


def lineage(projection: ExperimentProjection, *, height: int | None = None) -> Figure:
    """Show each trial as a line in the colour of its founder, linked to its donors.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    height : int, optional
        Height in pixels; by default as much as the trials need.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> lineage(projection, height=300).height
    300
    """
    title = "Lineage"
    if not projection.exploits:
        return empty_figure(title, "no trial has become a clone of another one", height or 340)
    exploits = [one for one in projection.exploits if one.clone != one.donor]
    rows = _rows(projection)
    place = {trial.index: row for row, trial in enumerate(rows)}
    unit, seconds = elapsed_unit(projection.elapsed)
    made = new_figure(
        f"{title}: {len(exploits):,} clones; colours are founders, the best trial is on top",
        f"time since the beginning ({unit})",
        "",
        height=height or min(900, 120 + 20 * len(rows)),
        y_range=Range1d(len(rows) - 0.4, -0.6),
    )
    pieces = _pieces(projection, exploits, rows)
    _draw_trials(made, _lines(pieces, place, projection, seconds))
    arrows = [one for one in exploits if one.clone in place and one.donor in place]
    _draw_links(made, _links(arrows, place, projection, seconds))
    made.ygrid.visible = False
    made.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    made.yaxis.major_label_overrides = {i: label(trial.trial_id, 24) for i, trial in enumerate(rows)}
    return made


def _pieces(
    projection: ExperimentProjection, exploits: Sequence[ExploitMark], rows: Sequence[TrialProjection]
) -> list[Piece]:
    """Split the time of each trial into pieces, one for each founder."""
    founders = {trial.index: trial.index for trial in projection.trials}
    begins = {trial.index: _begin(trial) for trial in rows}
    pieces: list[Piece] = []
    for one in exploits:
        if one.clone in begins:
            trial = projection.trials[one.clone]
            pieces.append((trial, begins[one.clone], one.time, founders[one.clone]))
            begins[one.clone] = one.time
        founders[one.clone] = founders[one.donor]
    pieces += [(trial, begins[trial.index], _end(trial, projection), founders[trial.index]) for trial in rows]
    return pieces


def _draw_trials(made: Figure, columns: Mapping[str, Any]) -> None:
    lines = made.segment(
        "x0",
        "y",
        "x1",
        "y",
        source=ColumnDataSource(dict(columns)),
        line_color="colour",
        line_width=6,
        line_cap="round",
    )
    tips = [("trial", "@trial"), ("founder", "@founder"), ("config", "@config")]
    made.add_tools(hover(tips, [lines]))


def _draw_links(made: Figure, columns: Mapping[str, Any]) -> None:
    links = made.segment(
        "x",
        "y0",
        "x",
        "y1",
        source=ColumnDataSource(dict(columns)),
        line_color=INK,
        line_alpha=0.5,
        line_width=1.2,
    )
    made.add_tools(hover([("clone", "@reason"), ("was at iteration", "@iterations")], [links]))


def _links(
    arrows: Sequence[ExploitMark], place: Mapping[int, int], projection: ExperimentProjection, seconds: float
) -> dict[str, list[Any]]:
    return {
        "x": [(one.time - projection.began) / seconds for one in arrows],
        "y0": [place[one.donor] for one in arrows],
        "y1": [place[one.clone] for one in arrows],
        "reason": [label(one.reason, 140) for one in arrows],
        "iterations": [f"{one.reached}, continues from {one.resumed}" for one in arrows],
    }


def _rows(projection: ExperimentProjection) -> list[TrialProjection]:
    # The best trial comes first, even if it has become a clone since then and now ranks lower.
    best = [] if projection.best is None else [projection.best]
    rest = [trial for trial in projection.trials if trial.attempts]
    return list(dict.fromkeys([*best, *projection.ranked(), *rest]))[:_MOST]


def _begin(trial: TrialProjection) -> float:
    return trial.attempts[0].start if trial.attempts else trial.created


def _end(trial: TrialProjection, projection: ExperimentProjection) -> float:
    end = trial.attempts[-1].end if trial.attempts else trial.created
    return projection.now if end is None else end


def _lines(
    pieces: Sequence[Piece], place: Mapping[int, int], projection: ExperimentProjection, seconds: float
) -> dict[str, list[Any]]:
    # The founders with the longest total time get the most distinct colours.
    spans: dict[int, float] = {}
    for _, begin, end, founder in pieces:
        spans[founder] = spans.get(founder, 0.0) + end - begin
    order = sorted(spans, key=lambda founder: -spans[founder])
    colours = {founder: CONTRAST[i % len(CONTRAST)] for i, founder in enumerate(order)}
    began = projection.began
    return {
        "x0": [(begin - began) / seconds for _, begin, _, _ in pieces],
        "x1": [(end - began) / seconds for _, _, end, _ in pieces],
        "y": [place[trial.index] for trial, *_ in pieces],
        "colour": [colours[founder] for *_, founder in pieces],
        "trial": [label(trial.trial_id) for trial, *_ in pieces],
        "founder": [label(projection.trials[founder].trial_id) for *_, founder in pieces],
        "config": [config_label(trial.config, 120) for trial, *_ in pieces],
    }
