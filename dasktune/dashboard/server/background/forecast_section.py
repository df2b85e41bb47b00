"""The section of a page that shows what other trial schedulers would have cost."""

from __future__ import annotations

from typing import Any

from bokeh.layouts import column
from bokeh.models import Button, CustomJS, Div, InlineStyleSheet

from dasktune.dashboard.figures.scheduler_costs import what_if
from dasktune.dashboard.report.style import INPUT
from dasktune.dashboard.server.background.forecast_task import MOST_RESULTS, ForecastTask
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.text.html_template import render_html

_ABOUT = (
    "What would this experiment have cost, and lost, under other trial schedulers? The trials that have "
    "trained to their end are replayed under each of them. It takes some seconds."
)

#: What follows a reason why nothing was computed. It may ask for an argument.
_ELSEWHERE = "<p>This page takes no arguments; <code>dasktune whatif</code> in a terminal does.</p>"

#: Reports a click as a change of the button. The event of a click names its button, and a browser
#: sends a model in full that has come after its own last message; Bokeh's server would warn of a
#: "reference already known". A change names its model by id.
_REPORT_CLICK = "cb_obj.origin.tags = [Date.now()]"


def forecast_section(live: LiveExperiment, task: ForecastTask) -> Any:
    """Return the models of the section: a button, and the forecast once it is computed.

    Each viewer gets models of its own, and with them its own button.

    Parameters
    ----------
    live : LiveExperiment
        The experiment, whose lock is held.
    task : ForecastTask
        Computes the forecast.
    """
    parts: list[Any] = []
    if task.found is not None:
        parts += [what_if(task.found), _text(task.found._repr_html_())]
    if task.share is not None:
        # The page of a server that ends keeps its last text.
        now = (
            "The server ended before this was computed."
            if live.is_closing
            else f"Replaying: {task.share:.0%}"
        )
        parts.append(_text(f"<p>{now}</p>"))
    elif live.projection.num_results > MOST_RESULTS:
        parts.append(
            _text(
                f"<p>{_ABOUT}</p><p>This experiment has {live.projection.num_results:,} results, which are "
                "too many for this server. Run <code>dasktune whatif</code> with its directory in a "
                "terminal.</p>"
            )
        )
    elif not live.is_closing:
        template = "<p>{{ error }}</p>" + _ELSEWHERE if task.error else f"<p>{_ABOUT}</p>"
        parts += [_text(render_html(template, error=task.error)), _button(task)]
    return column(*(parts or [_text("<p>It was not computed.</p>")]), sizing_mode="stretch_width")


def _text(html: str) -> Any:
    sheet = InlineStyleSheet(css="th, td { padding: 2px 18px 2px 0; text-align: left; }")
    return Div(text=html, sizing_mode="stretch_width", disable_math=True, stylesheets=[sheet])


def _button(task: ForecastTask) -> Any:
    text = "Compute" if task.found is None else "Compute again"
    style = [InlineStyleSheet(css=INPUT)]
    button = Button(label=text, name="forecast", width=150, stylesheets=style)
    button.js_on_click(CustomJS(code=_REPORT_CLICK))
    button.on_change("tags", lambda name, old, new: task.start())
    return button
