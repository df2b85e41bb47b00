"""The pages of the dashboard, and the parts that are on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bokeh.layouts import column, row
from bokeh.models import Paragraph

from dasktune.dashboard.density import Density
from dasktune.dashboard.figures import hypervolume_over_time, learning_curves, objectives
from dasktune.dashboard.figures.best_so_far import best_sketch
from dasktune.dashboard.figures.contour import contour_sketch
from dasktune.dashboard.figures.importance import importance_sketch
from dasktune.dashboard.figures.learning_curves import curves_sketch
from dasktune.dashboard.figures.parallel_coordinates import parallel_sketch
from dasktune.dashboard.figures.resources import resources_sketch
from dasktune.dashboard.figures.sketch import Sketch, nothing
from dasktune.dashboard.figures.slice import slices_sketch
from dasktune.dashboard.figures.timeline import timeline_sketch
from dasktune.dashboard.goals import as_goal, density_of
from dasktune.dashboard.report.failures import failures_sketch
from dasktune.dashboard.report.report import decisions
from dasktune.dashboard.report.trial_detail import detail, trial_text
from dasktune.dashboard.report.trial_table import table_sketch
from dasktune.dashboard.server.dask_links import with_links
from dasktune.dashboard.server.live import Live

__all__ = ["Page", "Part", "pages_of", "trial_part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A figure or a table, by a name that is the same for all who look at it."""

    name: str
    #: Returns new models of it, or a sketch.
    make: Callable[[], Any]
    #: Whether it takes long, and so is made beside the loop that serves all; then it is a sketch.
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """What is seen together."""

    title: str
    parts: tuple[Part, ...]


def pages_of(live: Live) -> list[Page]:
    """Return the pages of an experiment.

    Parameters
    ----------
    live : Live
        The experiment.
    """

    def drawn(name: str, draw: Callable[..., Any], **options: Any) -> Part:
        return Part(name, lambda: draw(live.chronicle, **options))

    def slow(name: str, draw: Callable[..., Any]) -> Part:
        return Part(name, lambda: draw(live.chronicle), is_slow=True)

    goals = range(len(live.chronicle.metrics) or 1)
    pages = [
        Page("Overview", tuple(part for goal in goals for part in _overview(live, goal))),
        Page("Trials", (drawn("trials", table_sketch, live=True),)),
        Page(
            "Parameters",
            (
                slow("parallel", parallel_sketch),
                Part("importance", lambda: _importance(live), is_slow=True),
                slow("slices", slices_sketch),
                Part("contour", lambda: _contour(live), is_slow=True),
            ),
        ),
        Page("Scheduler", (drawn("decisions", _column, parts=decisions, none=_UNDECIDED),)),
        Page(
            "Workers",
            (
                drawn("timeline", timeline_sketch),
                Part("resources", lambda: with_links(resources_sketch(live.chronicle), live.dask)),
            ),
        ),
        Page("Errors", (drawn("failures", failures_sketch),)),
    ]
    if len(live.chronicle.metrics) > 1:
        parts = drawn("front", objectives), drawn("hypervolume", hypervolume_over_time)
        pages.insert(3, Page("Objectives", parts))
    return pages


def _overview(live: Live, goal: int) -> Iterator[Part]:
    """Yield what there is of each goal."""

    def curves() -> Sketch:
        return curves_sketch(as_goal(live.chronicle, goal), density=_density(live, goal))

    more = f" {goal}" if goal else ""
    yield Part(f"best{more}", lambda: best_sketch(as_goal(live.chronicle, goal)))
    yield Part(f"curves{more}", curves)


def _density(live: Live, goal: int) -> Density:
    return density_of(as_goal(live.chronicle, goal)) if goal else live.density


def _importance(live: Live) -> Sketch:
    """Return what is known of the parameters by now, lest anybody waits for it."""
    ranked = live.ranking.ask(live.chronicle)
    if ranked is None:
        return nothing("Importance of parameters", "this is being worked out ...")
    return importance_sketch(live.chronicle, ranked=ranked)


def _contour(live: Live) -> Sketch:
    ranked = live.ranking.ask(live.chronicle) or ([], "", 0, 0)
    return contour_sketch(live.chronicle, ranked=ranked)


_UNDECIDED = "The scheduler has compared no trials yet, or does not."


def trial_part(live: Live, place: int) -> Part:
    """Return the details of a trial.

    Parameters
    ----------
    live : Live
        The experiment.
    place : int
        The trial's, in the order of the chronicle.
    """

    def make() -> Any:
        chronicle = live.chronicle
        log = chronicle.trials[place]
        text = detail(trial_text(chronicle, log))
        goals = range(len(chronicle.metrics) or 1)
        curves = [_beside_best(live, goal, log.trial_id) for goal in goals]
        return row(text, column(*curves, sizing_mode="stretch_width"), sizing_mode="stretch_width")

    return Part(f"trial {place}", make)


def _beside_best(live: Live, goal: int, trial_id: str) -> Any:
    """Return the curve of a trial, and that of the best one."""
    seen = as_goal(live.chronicle, goal)
    trials = [trial_id] if seen.best is None else [trial_id, seen.best.trial_id]
    density = _density(live, goal)
    return learning_curves(seen, trials=list(dict.fromkeys(trials)), density=density, height=300)


def _column(chronicle: Any, parts: Callable[[Any], list[Any]], none: str) -> Any:
    made = parts(chronicle) or [Paragraph(text=none, disable_math=True)]
    return column(*made, sizing_mode="stretch_width")
