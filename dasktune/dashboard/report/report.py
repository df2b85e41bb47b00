"""The report: header and tabs, as one file."""

from __future__ import annotations

from typing import Any, Final

from bokeh.embed import file_html
from bokeh.layouts import column
from bokeh.models import InlineStyleSheet, TabPanel, Tabs
from bokeh.resources import INLINE

from dasktune.dashboard.chronicle import Chronicle
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
)
from dasktune.dashboard.goals import as_goal
from dasktune.dashboard.report.failures import failures_sketch
from dasktune.dashboard.report.header import header
from dasktune.dashboard.report.style import BODY, CARD, TABS
from dasktune.dashboard.report.trial_table import trial_table
from dasktune.dashboard.text import shown

__all__ = ["decisions", "to_html"]

#: Nothing is fetched from anywhere, whatever the page holds. Bokeh's callbacks need `unsafe-eval`.
_PAGE: Final = f"""
{{% block preamble %}}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline';
 script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; font-src data:;
 form-action 'none'; base-uri 'none'">
<style>{BODY}</style>
{{% endblock %}}
"""


def to_html(chronicle: Chronicle) -> str:
    """Return an experiment as an HTML page that is complete: it fetches nothing.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment, finished or not.

    Notes
    -----
    Its size is bounded: 2 MB are Bokeh, and of thousands of trials the table has those that failed,
    the best and the newest, and says how many it has not.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> to_html(chronicle).startswith("<!DOCTYPE html>")
    True
    """
    tabs = [
        TabPanel(title=title, child=column(*map(_card, parts), sizing_mode="stretch_width"))
        for title, parts in _pages(chronicle)
    ]
    page = column(
        header(chronicle),
        Tabs(
            tabs=tabs,
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=TABS)],
        ),
        sizing_mode="stretch_width",
    )
    title = f"{shown(chronicle.name or 'experiment', 80)} · dasktune"
    html: str = file_html(page, INLINE, title=title, template=_PAGE)
    return html


def _card(part: Any) -> Any:
    return column(part, sizing_mode="stretch_width", styles=CARD)


def _pages(chronicle: Chronicle) -> list[tuple[str, list[Any]]]:
    seen = [as_goal(chronicle, goal) for goal in range(len(chronicle.metrics) or 1)]
    pages = [
        ("Overview", [draw(one) for one in seen for draw in (best_so_far, learning_curves)]),
        ("Trials", [trial_table(chronicle)]),
        (
            "Parameters",
            [
                parallel_coordinates(chronicle),
                importance(chronicle),
                slices(chronicle),
                contour(chronicle),
            ],
        ),
    ]
    if len(chronicle.metrics) > 1:
        pages.append(("Objectives", [objectives(chronicle), hypervolume_over_time(chronicle)]))
    judged = decisions(chronicle)
    if judged:
        pages.append(("Scheduler", judged))
    pages.append(("Workers", [timeline(chronicle), resources(chronicle)]))
    failed = sum(bool(log.error) for log in chronicle.trials)
    if failed:
        pages.append((f"Errors ({failed:,})", [failures_sketch(chronicle).drawn()]))
    return pages


def decisions(chronicle: Chronicle) -> list[Any]:
    """Return the figures that show what a scheduler has decided; none if it has not.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    """
    visits = (visit for log in chronicle.trials for visit in log.rungs)
    judged = [rungs(chronicle)] if any(one.outcome != "went on" for one in visits) else []
    return [*judged, lineage(chronicle)] if chronicle.exploits else judged
