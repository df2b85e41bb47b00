"""The pages of the dashboard and their sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bokeh.layouts import column, row
from bokeh.models import Paragraph

from dasktune.dashboard.figures import hypervolume_over_time, learning_curves, objectives
from dasktune.dashboard.figures.best_so_far import best_spec
from dasktune.dashboard.figures.contour import contour_spec
from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec
from dasktune.dashboard.figures.importance import importance_spec
from dasktune.dashboard.figures.learning_curves import curves_spec
from dasktune.dashboard.figures.parallel_coordinates import parallel_spec
from dasktune.dashboard.figures.resource_usage import resources_spec
from dasktune.dashboard.figures.slice import slices_spec
from dasktune.dashboard.figures.timeline import timeline_spec
from dasktune.dashboard.model.density import Density
from dasktune.dashboard.model.objectives import density_of, with_objective
from dasktune.dashboard.report.cluster_table import shares_spec
from dasktune.dashboard.report.failed_trials import failures_spec
from dasktune.dashboard.report.html_report import decision_figures
from dasktune.dashboard.report.trial_detail import text_box, trial_text
from dasktune.dashboard.report.trial_table import table_spec
from dasktune.dashboard.server.dask_links import with_links
from dasktune.dashboard.server.live_experiment import LiveExperiment

__all__ = ["Page", "PageSection", "experiment_pages", "trial_section"]


@dataclass(frozen=True, slots=True)
class PageSection:
    """A figure or a table; all viewers share the rendered figure of the same name."""

    name: str
    #: Returns the models of the section, or its spec.
    make: Callable[[], Any]
    #: Whether a render thread makes the section, because it takes long; `make` then returns a spec.
    is_slow: bool = False
    #: Whether there is anything to show now.
    is_shown: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class Page:
    """A page: the sections of one tab."""

    title: str
    sections: tuple[PageSection, ...]


def experiment_pages(live: LiveExperiment) -> list[Page]:
    """Return the pages of an experiment.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    """

    def drawn(name: str, draw: Callable[..., Any], **options: Any) -> PageSection:
        return PageSection(name, lambda: draw(live.projection, **options))

    def slow(name: str, draw: Callable[..., Any]) -> PageSection:
        return PageSection(name, lambda: draw(live.projection), is_slow=True)

    goals = range(len(live.projection.metrics) or 1)
    pages = [
        Page("Overview", (*(part for goal in goals for part in _overview(live, goal)), _shares(live))),
        Page("Trials", (drawn("trials", table_spec, live=True),)),
        Page(
            "Parameters",
            (
                slow("parallel", parallel_spec),
                PageSection("importance", lambda: _importance(live), is_slow=True),
                slow("slices", slices_spec),
                PageSection("contour", lambda: _contour(live), is_slow=True),
            ),
        ),
        Page("Scheduler", (drawn("decisions", _column, parts=decision_figures, none=_UNDECIDED),)),
        Page(
            "Workers",
            (
                drawn("timeline", timeline_spec),
                PageSection("resources", lambda: with_links(resources_spec(live.projection), live.dask)),
            ),
        ),
        Page("Errors", (drawn("failures", failures_spec),)),
    ]
    if len(live.projection.metrics) > 1:
        parts = drawn("front", objectives), drawn("hypervolume", hypervolume_over_time)
        pages.insert(3, Page("Objectives", parts))
    return pages


def _overview(live: LiveExperiment, goal: int) -> Iterator[PageSection]:
    """Yield the sections of a goal."""

    def curves() -> FigureSpec:
        return curves_spec(with_objective(live.projection, goal), density=_density(live, goal))

    more = f" {goal}" if goal else ""
    yield PageSection(f"best{more}", lambda: best_spec(with_objective(live.projection, goal)))
    yield PageSection(f"curves{more}", curves)


def _shares(live: LiveExperiment) -> PageSection:
    """Return the section with the shares of the experiments on the cluster."""
    return PageSection("shares", lambda: shares_spec(live.shares), is_shown=lambda: live.shares is not None)


def _density(live: LiveExperiment, goal: int) -> Density:
    return density_of(with_objective(live.projection, goal)) if goal else live.density


def _importance(live: LiveExperiment) -> FigureSpec:
    """Return the last known importances; they are computed in a thread."""
    ranked = live.ranking.request(live.projection)
    if ranked is None:
        return empty_spec("Importance of parameters", "computing the importances ...")
    return importance_spec(live.projection, ranked=ranked)


def _contour(live: LiveExperiment) -> FigureSpec:
    ranked = live.ranking.request(live.projection) or ([], "", 0, 0)
    return contour_spec(live.projection, ranked=ranked)


_UNDECIDED = "The scheduler has not compared any trials."


def trial_section(live: LiveExperiment, place: int) -> PageSection:
    """Return the section with the details of a trial.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    place : int
        The index of the trial.
    """

    def make() -> Any:
        projection = live.projection
        trial = projection.trials[place]
        text = text_box(trial_text(projection, trial))
        goals = range(len(projection.metrics) or 1)
        curves = [_curve_with_best(live, goal, trial.trial_id) for goal in goals]
        return row(text, column(*curves, sizing_mode="stretch_width"), sizing_mode="stretch_width")

    return PageSection(f"trial {place}", make)


def _curve_with_best(live: LiveExperiment, goal: int, trial_id: str) -> Any:
    """Return the curves of a trial and of the best trial."""
    seen = with_objective(live.projection, goal)
    trials = [trial_id] if seen.best is None else [trial_id, seen.best.trial_id]
    density = _density(live, goal)
    return learning_curves(seen, trials=list(dict.fromkeys(trials)), density=density, height=300)


def _column(projection: Any, parts: Callable[[Any], list[Any]], none: str) -> Any:
    made = parts(projection) or [Paragraph(text=none, disable_math=True)]
    return column(*made, sizing_mode="stretch_width")
