"""The pages of the dashboard and their sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from dasktune.dashboard.report.trial_comparison import MOST_TRIALS, comparison_text
from dasktune.dashboard.report.trial_detail import text_box, trial_text
from dasktune.dashboard.report.trial_table import table_spec
from dasktune.dashboard.server.background.forecast_section import forecast_section
from dasktune.dashboard.server.dask_links import with_links
from dasktune.dashboard.server.live_experiment import LiveExperiment


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
        Page("Scheduler", (PageSection("decisions", lambda: decisions(live)),)),
        Page(
            "Workers",
            (
                drawn("timeline", timeline_spec),
                PageSection("resources", lambda: with_links(resources_spec(live.projection), live.dask)),
            ),
        ),
        Page("Errors", (drawn("failures", failures_spec),)),
    ]
    task = live.forecast
    if task is not None:
        pages.insert(4, Page("What if", (PageSection("forecast", lambda: forecast_section(live, task)),)))
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
    """Return the last known importances; a thread computes them once the page is drawn."""
    ranked = live.ranking.request()
    if ranked is None:
        why = (
            "the run ended before they were computed" if live.is_closing else "computing the importances ..."
        )
        return empty_spec("Importance of parameters", why)
    return importance_spec(live.projection, ranked=ranked)


def _contour(live: LiveExperiment) -> FigureSpec:
    ranked = live.ranking.request() or ([], "", 0, 0)
    return contour_spec(live.projection, ranked=ranked)


_UNDECIDED = "The figures appear with the first comparison of the scheduler."


def trial_section(live: LiveExperiment, places: Sequence[int]) -> PageSection:
    """Return the section with the details of a trial, or with several trials side by side.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    places : sequence of int
        The indices of the trials; of more than `MOST_TRIALS` the first ones are shown.
    """
    places = tuple(places)[:MOST_TRIALS]

    def make() -> Any:
        projection = live.projection
        trials = [projection.trials[place] for place in places]
        is_one = len(trials) == 1
        content = trial_text(projection, trials[0]) if is_one else comparison_text(projection, trials)
        ids = [trial.trial_id for trial in trials]
        goals = range(len(projection.metrics) or 1)
        curves = [_curves_with_best(live, goal, ids) for goal in goals]
        # A trial has its text beside its curve; the columns of several trials, or of its ranks,
        # need the whole width.
        is_table = not is_one or trials[0].ranks is not None
        around = column if is_table else row
        return around(
            text_box(content, name="detail", is_table=is_table),
            column(*curves, sizing_mode="stretch_width"),
            sizing_mode="stretch_width",
        )

    return PageSection(f"trials {places}", make)


def _curves_with_best(live: LiveExperiment, goal: int, trial_ids: Sequence[str]) -> Any:
    """Return the curves of trials, and the curve of the best trial beside that of a single one."""
    seen = with_objective(live.projection, goal)
    trials = [*trial_ids]
    if len(trials) == 1 and seen.best is not None:
        trials.append(seen.best.trial_id)
    density = _density(live, goal)
    return learning_curves(seen, trials=list(dict.fromkeys(trials)), density=density, height=300)


def decisions(live: LiveExperiment) -> Any:
    """Return the figures of the scheduler's decisions, or a text if it has not decided.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    """
    made = decision_figures(live.projection)
    return column(*(made or [Paragraph(text=_UNDECIDED, disable_math=True)]), sizing_mode="stretch_width")
