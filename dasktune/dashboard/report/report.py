"""The report: header and tabs, as one file."""

from __future__ import annotations

from typing import Any, Final

from bokeh.embed import file_html
from bokeh.layouts import column
from bokeh.models import InlineStyleSheet, PreText, TabPanel, Tabs
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
    rungs,
    slices,
    timeline,
)
from dasktune.dashboard.report.header import header
from dasktune.dashboard.report.style import BODY, CARD, TABS
from dasktune.dashboard.report.trial_table import trial_table
from dasktune.dashboard.text import printable, shown

__all__ = ["decisions", "failures", "to_html"]

#: Failures whose tracebacks are shown in full.
_MOST_ERRORS: Final = 50
#: Characters of each.
_MOST_TRACEBACK: Final = 4_000

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
    pages = [
        ("Overview", [best_so_far(chronicle), learning_curves(chronicle)]),
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
    pages.append(("Workers", [timeline(chronicle)]))
    failed = [log for log in chronicle.trials if log.error]
    if failed:
        pages.append((f"Errors ({len(failed):,})", failures(chronicle)))
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


def failures(chronicle: Chronicle) -> list[Any]:
    """Return the last failures as texts, one for each trial.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    """
    failed = [log for log in chronicle.trials if log.error]
    texts = [
        f"{log.trial_id} ({log.outcome}, {log.failures} failures)\n"
        + (log.traceback or log.error)[-_MOST_TRACEBACK:]
        for log in failed[-_MOST_ERRORS:]
    ]
    if len(failed) > _MOST_ERRORS:
        texts.insert(0, f"The last {_MOST_ERRORS} of {len(failed):,} trials that failed.")
    return [
        PreText(
            text=printable(text),
            disable_math=True,
            sizing_mode="stretch_width",
            styles={"white-space": "pre-wrap", "overflow-wrap": "anywhere", "font-size": "12px"},
        )
        for text in texts
    ]
