"""The report: a header and tabs in one HTML file."""

from __future__ import annotations

from typing import Any, Final

from bokeh.embed import file_html
from bokeh.layouts import column
from bokeh.models import Div, InlineStyleSheet, TabPanel, Tabs
from bokeh.resources import INLINE

from dasktune.dashboard.figures import (
    best_so_far,
    contour,
    hypervolume_over_time,
    importance,
    learning_curves,
    lineage,
    objectives,
    parallel_coordinates,
    resources,
    rungs,
    slices,
    timeline,
    what_if,
)
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.objectives import with_objective
from dasktune.dashboard.report.failed_trials import failures_spec
from dasktune.dashboard.report.header import header
from dasktune.dashboard.report.style import BODY, CARD, TABS
from dasktune.dashboard.report.trial_table import trial_table
from dasktune.forecast.what_if import WhatIf

#: The security policy lets the page load nothing else. Bokeh's callbacks need `unsafe-eval`.
_PAGE: Final = f"""
{{% block preamble %}}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline';
 script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; font-src data:;
 form-action 'none'; base-uri 'none'">
<style>{BODY}</style>
{{% endblock %}}
{{% block contents %}}
<main>
{{{{ super() }}}}
</main>
{{% endblock %}}
"""


def to_html(projection: ExperimentProjection, forecast: WhatIf | None = None) -> str:
    """Return the report of an experiment as one HTML page, which loads nothing else.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment, finished or not.
    forecast : WhatIf, optional
        What `dasktune.whatif` has returned for the experiment. The report shows it on a tab.

    Notes
    -----
    The size of the page is bounded; Bokeh takes 2 MB of it. With thousands of trials, the table has
    the failed, the best and the newest trials, and says how many are left out.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> to_html(projection).startswith("<!DOCTYPE html>")
    True
    """
    title = f"{label(projection.name or 'experiment', 80)} · dasktune"
    html: str = file_html(report_layout(projection, forecast), INLINE, title=title, template=_PAGE)
    return html


def report_layout(projection: ExperimentProjection, forecast: WhatIf | None = None) -> Any:
    """Return the Bokeh models of the report: the header, and below it one tab for each page.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    forecast : WhatIf, optional
        What it would have cost under other schedulers.
    """
    tabs = [
        TabPanel(title=title, child=column(*map(_card, parts), sizing_mode="stretch_width"))
        for title, parts in _pages(projection, forecast)
    ]
    return column(
        header(projection),
        Tabs(tabs=tabs, sizing_mode="stretch_width", stylesheets=[InlineStyleSheet(css=TABS)]),
        sizing_mode="stretch_width",
    )


def _card(part: Any) -> Any:
    return column(part, sizing_mode="stretch_width", styles=CARD)


def _pages(projection: ExperimentProjection, forecast: WhatIf | None) -> list[tuple[str, list[Any]]]:
    seen = [with_objective(projection, goal) for goal in range(len(projection.metrics) or 1)]
    pages = [
        ("Overview", [draw(one) for one in seen for draw in (best_so_far, learning_curves)]),
        ("Trials", [trial_table(projection)]),
        (
            "Parameters",
            [
                parallel_coordinates(projection),
                importance(projection),
                slices(projection),
                contour(projection),
            ],
        ),
    ]
    if len(projection.metrics) > 1:
        pages.append(("Objectives", [objectives(projection), hypervolume_over_time(projection)]))
    figures = decision_figures(projection)
    if figures:
        pages.append(("Scheduler", figures))
    if forecast is not None:
        text = Div(text=forecast._repr_html_(), sizing_mode="stretch_width")
        pages.append(("What if", [what_if(forecast), text]))
    pages.append(("Workers", [timeline(projection), resources(projection)]))
    failed = sum(bool(trial.error) for trial in projection.trials)
    if failed:
        pages.append((f"Errors ({failed:,})", [failures_spec(projection).build()]))
    return pages


def decision_figures(projection: ExperimentProjection) -> list[Any]:
    """Return the figures of the scheduler's decisions; none if it has not decided.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    """
    visits = (visit for trial in projection.trials for visit in trial.rungs)
    judged = [rungs(projection)] if any(one.outcome != "continued" for one in visits) else []
    return [*judged, lineage(projection)] if projection.exploits else judged
