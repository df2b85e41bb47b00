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
from dasktune.dashboard.report.trial_table import trial_table
from dasktune.dashboard.text import printable, shown

__all__ = ["to_html"]

#: Failures whose tracebacks are shown in full.
_MOST_ERRORS: Final = 50
#: Characters of each.
_MOST_TRACEBACK: Final = 4_000

#: Nothing is fetched from anywhere, whatever the page holds. Bokeh's callbacks need `unsafe-eval`.
_PAGE: Final = """
{% block preamble %}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline';
 script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; font-src data:;
 form-action 'none'; base-uri 'none'">
<style>
 body { background: #f6f8fa; margin: 0 auto; padding: 20px 28px; max-width: 1500px;
  font-family: Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
</style>
{% endblock %}
"""

_TABS: Final = """
:host { font-family: Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
.bk-header { border-bottom: 1px solid #d0d7de; margin-top: 14px; font-size: 14px; }
.bk-tab { padding: 8px 14px; color: #57606a; border: none; }
.bk-tab.bk-active { color: #24292f; font-weight: 650; background: transparent; border: none;
 border-bottom: 3px solid #0072b2; }
"""

_CARD: Final = {
    "background": "#fff",
    "border": "1px solid #d0d7de",
    "border-radius": "10px",
    "padding": "12px",
    "margin": "10px 0 0 0",
}


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
            stylesheets=[InlineStyleSheet(css=_TABS)],
        ),
        sizing_mode="stretch_width",
    )
    title = f"{shown(chronicle.name or 'experiment', 80)} · dasktune"
    html: str = file_html(page, INLINE, title=title, template=_PAGE)
    return html


def _card(part: Any) -> Any:
    return column(part, sizing_mode="stretch_width", styles=_CARD)


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
    visits = (visit for log in chronicle.trials for visit in log.rungs)
    judged = [rungs(chronicle)] if any(one.outcome != "went on" for one in visits) else []
    if chronicle.exploits:
        judged.append(lineage(chronicle))
    if judged:
        pages.append(("Scheduler", judged))
    pages.append(("Workers", [timeline(chronicle)]))
    failed = [log for log in chronicle.trials if log.error]
    if failed:
        pages.append((f"Errors ({len(failed):,})", _errors(chronicle)))
    return pages


def _errors(chronicle: Chronicle) -> list[Any]:
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
