"""Who came of whom in population based training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from bokeh.models import ColumnDataSource, FixedTicker, Range1d

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.theme import CONTRAST, INK, Figure, empty, hover, new_figure
from dasktune.dashboard.text import configuration, elapsed_unit, shown
from dasktune.dashboard.trial_log import Exploit, TrialLog

__all__ = ["lineage"]

#: A trial, when it began and ended to be of a founder, and this one's place.
Piece: TypeAlias = tuple[TrialLog, float, float, int]

#: Rows that are drawn: the best, and those that they came of.
_MOST: Final = 60


def lineage(chronicle: Chronicle, *, height: int | None = None) -> Figure:
    """Show each trial as a line in the colour of its founder; clones hang on their donors.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    height : int, optional
        Pixels; by default what the trials need.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> lineage(chronicle, height=300).height
    300
    """
    title = "Lineage"
    if not chronicle.exploits:
        return empty(title, "no trial has gone on as a clone of another one", height or 340)
    exploits = [one for one in chronicle.exploits if one.clone != one.donor]
    rows = _rows(chronicle)
    place = {log.index: row for row, log in enumerate(rows)}
    unit, seconds = elapsed_unit(chronicle.elapsed)
    made = new_figure(
        f"{title}: {len(exploits):,} clones; colours are founders, the best trial is on top",
        f"time since the beginning ({unit})",
        "",
        height=height or min(900, 120 + 20 * len(rows)),
        y_range=Range1d(len(rows) - 0.4, -0.6),
    )
    pieces = _pieces(chronicle, exploits, rows)
    _draw_trials(made, _lines(pieces, place, chronicle, seconds))
    arrows = [one for one in exploits if one.clone in place and one.donor in place]
    _draw_links(made, _links(arrows, place, chronicle, seconds))
    made.ygrid.visible = False
    made.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    made.yaxis.major_label_overrides = {i: shown(log.trial_id, 24) for i, log in enumerate(rows)}
    return made


def _pieces(
    chronicle: Chronicle, exploits: Sequence[Exploit], rows: Sequence[TrialLog]
) -> list[Piece]:
    """Return the times between the moments at which a trial became a clone."""
    founders = {log.index: log.index for log in chronicle.trials}
    begins = {log.index: _begin(log) for log in rows}
    pieces: list[Piece] = []
    for one in exploits:
        if one.clone in begins:
            log = chronicle.trials[one.clone]
            pieces.append((log, begins[one.clone], one.time, founders[one.clone]))
            begins[one.clone] = one.time
        founders[one.clone] = founders[one.donor]
    pieces += [(log, begins[log.index], _end(log, chronicle), founders[log.index]) for log in rows]
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
    arrows: Sequence[Exploit], place: Mapping[int, int], chronicle: Chronicle, seconds: float
) -> dict[str, list[Any]]:
    return {
        "x": [(one.time - chronicle.began) / seconds for one in arrows],
        "y0": [place[one.donor] for one in arrows],
        "y1": [place[one.clone] for one in arrows],
        "reason": [shown(one.reason, 140) for one in arrows],
        "iterations": [f"{one.reached}, goes on from {one.resumed}" for one in arrows],
    }


def _rows(chronicle: Chronicle) -> list[TrialLog]:
    # Who had the best value of all may have lost it since, as a clone of another one.
    best = [] if chronicle.best is None else [chronicle.best]
    rest = [log for log in chronicle.trials if log.attempts]
    return list(dict.fromkeys([*best, *chronicle.ranked(), *rest]))[:_MOST]


def _begin(log: TrialLog) -> float:
    return log.attempts[0].start if log.attempts else log.created


def _end(log: TrialLog, chronicle: Chronicle) -> float:
    end = log.attempts[-1].end if log.attempts else log.created
    return chronicle.now if end is None else end


def _lines(
    pieces: Sequence[Piece], place: Mapping[int, int], chronicle: Chronicle, seconds: float
) -> dict[str, list[Any]]:
    # The founders with most time have the colours that are told apart best.
    spans: dict[int, float] = {}
    for _, begin, end, founder in pieces:
        spans[founder] = spans.get(founder, 0.0) + end - begin
    order = sorted(spans, key=lambda founder: -spans[founder])
    colours = {founder: CONTRAST[i % len(CONTRAST)] for i, founder in enumerate(order)}
    began = chronicle.began
    return {
        "x0": [(begin - began) / seconds for _, begin, _, _ in pieces],
        "x1": [(end - began) / seconds for _, _, end, _ in pieces],
        "y": [place[log.index] for log, *_ in pieces],
        "colour": [colours[founder] for *_, founder in pieces],
        "trial": [shown(log.trial_id) for log, *_ in pieces],
        "founder": [shown(chronicle.trials[founder].trial_id) for *_, founder in pieces],
        "config": [configuration(log.config, 120) for log, *_ in pieces],
    }
