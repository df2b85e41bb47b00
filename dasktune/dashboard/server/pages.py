"""The pages of the dashboard, and the parts that are on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bokeh.layouts import column, row
from bokeh.models import Paragraph, PreText

from dasktune.dashboard.figures import (
    best_so_far,
    contour,
    hypervolume_over_time,
    importance,
    learning_curves,
    objectives,
    parallel_coordinates,
    slices,
    timeline,
)
from dasktune.dashboard.report.report import decisions, failures
from dasktune.dashboard.report.trial_table import DETAIL, trial_table, trial_text
from dasktune.dashboard.server.live import Live

__all__ = ["Page", "Part", "pages_of", "trial_part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A figure or a table, by a name that is the same for all who look at it."""

    name: str
    make: Callable[[], Any]


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

    curves = Part("curves", lambda: learning_curves(live.chronicle, density=live.density))
    pages = [
        Page("Overview", (drawn("best", best_so_far), curves)),
        Page("Trials", (drawn("trials", trial_table, live=True),)),
        Page(
            "Parameters",
            (
                drawn("parallel", parallel_coordinates),
                drawn("importance", importance),
                drawn("slices", slices),
                drawn("contour", contour),
            ),
        ),
        Page("Scheduler", (drawn("decisions", _column, parts=decisions, none=_UNDECIDED),)),
        Page("Workers", (drawn("timeline", timeline),)),
        Page("Errors", (drawn("failures", _column, parts=failures, none="No trial has failed."),)),
    ]
    if len(live.chronicle.metrics) > 1:
        parts = drawn("front", objectives), drawn("hypervolume", hypervolume_over_time)
        pages.insert(3, Page("Objectives", parts))
    return pages


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
        text = PreText(
            text=trial_text(chronicle, log),
            disable_math=True,
            sizing_mode="stretch_width",
            styles=DETAIL,
        )
        curve = learning_curves(chronicle, trials=[log.trial_id], height=300)
        return row(text, curve, sizing_mode="stretch_width")

    return Part(f"trial {place}", make)


def _column(chronicle: Any, parts: Callable[[Any], list[Any]], none: str) -> Any:
    made = parts(chronicle) or [Paragraph(text=none, disable_math=True)]
    return column(*made, sizing_mode="stretch_width")
