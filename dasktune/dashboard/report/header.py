"""The header of all pages: progress, the best values, and the driver's status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from bokeh.models import Div, InlineStyleSheet

from dasktune.dashboard.figures.theme import COLOURS, FONT
from dasktune.dashboard.labels import config_label, label, value_label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.parameter_axis import parameter_names
from dasktune.dashboard.report.failed_trials import failure_order
from dasktune.dashboard.report.style import colour
from dasktune.text.formatting import format_duration, plural, printable_lines
from dasktune.text.html_template import html_part, render_html

_HTML: Final = """
{% set muted = "color:" ~ colour("muted") %}
{% set background, ink, continues = looks %}
{% macro chip(background, ink, text) %}
<span style="display:inline-block;background:{{ background }};color:{{ ink }};border-radius:999px;
padding:1px 10px;margin-right:6px;font-size:12px;font-weight:600">{{ text }}</span>
{% endmacro %}

<div style="font-family:{{ font }};color:{{ colour("ink") }}">
<div style="font-size:22px;font-weight:700" role="heading" aria-level="1">{{ name }}</div>
<div style="margin:2px 0 10px"><span style="{{ muted }};margin-right:12px">{{ goal }}</span>
{% for values in chips %}{{ chip(*values) }}{% endfor %}
{% if continues %}
<span class="dt-alive">{{ chip(background, ink, state) }}</span>
<span class="dt-lost">{{ chip("#CF222E", "#fff", lost_text) }}
<span style="{{ muted }}">last known state</span></span>
{% elif background %}{{ chip(background, ink, state) }}
{% elif state %}<span style="{{ muted }}">{{ state }}</span>
{% endif %}
</div>

<div style="display:flex;flex-wrap:wrap;gap:12px">
{% for title, value, note in cards %}
<div style="background:{{ colour("card") }};border:1px solid {{ colour("line") }};border-radius:10px;
padding:10px 16px;min-width:120px"><div style="{{ muted }};font-size:12px">{{ title }}</div>
<div style="font-size:21px;font-weight:650;line-height:1.35">{{ value }}</div>
<div style="{{ muted }};font-size:12px">{{ note }}</div></div>
{% endfor %}
</div>

{% for title, text in best %}
<div style="margin-top:10px;{{ muted }};font-size:12px">{{ title }}{{ " " }}
<span style="color:{{ colour("ink") }};font-family:ui-monospace,monospace;overflow-wrap:anywhere">
{{ text }}</span></div>
{% endfor %}

{% for text, command, is_lost in notices %}
<div{% if is_lost %} class="dt-lost"{% endif %} role="status" style="margin-top:10px;padding:8px 14px;
border-radius:8px;border:1px solid {{ colour("line") }};background:{{ colour("chosen") }};
color:{{ colour("ink") }};font-size:13px">{{ text }}
{% if command %}{{ " " }}
To look on, run <code style="user-select:all">{{ command }}</code> in a terminal.
{% endif %}
</div>
{% endfor %}
</div>
"""

#: States of the driver: the beginning of the text, the two colours of its chip, and whether the
#: experiment continues. Other states are shown without a chip.
_STATES = (
    ("driver is lost", "#CF222E", "#fff", False),
    ("the journal cannot be read", "#CF222E", "#fff", False),
    ("driver has ended", "#57606A", "#fff", False),
    ("experiment has ended", "#57606A", "#fff", False),
    ("no new records", "#FFD33D", "#24292f", True),
    ("driver is running, no new records", "#FFD33D", "#24292f", True),
    ("driver is running", "#2DA44E", "#24292f", True),
)

#: Style of a header whose server is lost. The page itself adds the class ``dt-lost``, as the server
#: cannot. Both texts are in the header from the start; the class selects one.
LOST = """
.dt-lost { display: none; }
:host(.dt-lost) span.dt-lost { display: inline; }
:host(.dt-lost) div.dt-lost { display: block; }
:host(.dt-lost) .dt-alive { display: none; }
"""


def header(projection: ExperimentProjection) -> Any:
    """Return the header as a model.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    """
    # Without disable_math, a metric named "$$x$$" would be shown as a formula.
    return Div(
        text=header_html(projection),
        disable_math=True,
        sizing_mode="stretch_width",
        stylesheets=[InlineStyleSheet(css=LOST)],
    )


def header_html(
    projection: ExperimentProjection,
    state: str = "",
    lost_text: str = "driver is lost",
    *,
    command: str = "",
    is_closing: bool = False,
    undrawn: Sequence[str] = (),
) -> str:
    """Return the header as HTML in which all user text is escaped.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    state : str, default=""
        The driver's status, if it is known.
    lost_text : str, default="driver is lost"
        The text that replaces the status once the server is lost; see `LOST`.
    command : str, default=""
        The shell command that shows the experiment once the page's server has ended.
    is_closing : bool, default=False
        Whether the page's server ends now.
    undrawn : sequence of str, optional
        The titles of the pages that do not show the last state, if the server ends now.
    """
    goals = [
        f"{label(metric)} ({mode})" if mode else label(metric)
        for metric, mode in zip(projection.metrics, projection.modes, strict=True)
    ]
    goes_on = all(going for begin, _, _, going in _STATES if state.startswith(begin))
    return render_html(
        _HTML,
        colour=colour,
        font=FONT,
        name=label(projection.name or "experiment", 80),
        goal=", ".join(goals) or "no metric",
        chips=_chips(projection, goes_on),
        state=label(state, 120),
        looks=next((looks for begin, *looks in _STATES if state.startswith(begin)), ("", "", False)),
        lost_text=lost_text,
        # While the journal is read, its rate does not predict the time that is left.
        cards=_cards(projection, goes_on, state.startswith("reading")),
        best=_best_configuration(projection),
        notices=_notices(projection, state, command, is_closing, undrawn),
    )


def _notices(
    projection: ExperimentProjection, state: str, command: str, is_closing: bool, undrawn: Sequence[str]
) -> Iterator[tuple[str, str, bool]]:
    """Yield text, shell command, and whether only the page of a lost server shows it.

    They are for a viewer who wonders why the figures are empty, or why the page does not change.
    """
    ended = projection.num_finished
    if ended and ended == projection.counts["ERROR"] and not projection.num_results:
        failed = [trial for trial in projection.trials if trial.error]
        error = label(max(failed, key=failure_order).error, 300) if failed else "unknown"
        who = f"All {ended:,} trials that have ended" if ended > 1 else "The only trial that has ended"
        yield f"{who} failed. The last error: {error}", "", False
    command = printable_lines(command)
    if is_closing:
        meanwhile = " while the experiment continues" if state.startswith("driver is running") else ""
        why = f"The server of this page has ended{' with the run' if 'ended' in state else meanwhile}"
        last = "This is the last state."
        if undrawn:
            last = f"It ended before it had drawn the last state of {', '.join(undrawn)}."
        yield f"{why}. {last}", command, False
    elif command and state and "ended" not in state:
        yield "This is the last known state.", command, True
    elif not projection.trials and not state.startswith("reading"):
        yield "No trial has been created yet. The pages fill by themselves.", "", False


def _live_or_lost(alive: str, lost: str) -> str:
    """Return a text, and the text that replaces it once the server is lost."""
    template = '<span class="dt-alive">{{ alive }}</span><span class="dt-lost">{{ lost }}</span>'
    return html_part(template, alive=alive, lost=lost)


def _chips(projection: ExperimentProjection, goes_on: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the background, the colour and the text of each chip."""
    counts = dict(projection.counts)
    counts["STOPPED"] = projection.num_stopped_early
    counts["TERMINATED"] -= counts["STOPPED"]
    order = ("RUNNING", "PENDING", "PAUSED", "TERMINATED", "STOPPED", "ERROR")
    light = {"PENDING", "RUNNING", "PAUSED", "STOPPED"}
    for word in order:
        if counts[word]:
            ink = "#000" if word == "ERROR" else "#24292f" if word in light else "#fff"
            yield COLOURS[word], ink, _count_text(word, counts[word], goes_on)
    is_over = bool(projection.stop_reason) or projection.num_finished == projection.total
    if projection.on_hold and goes_on and not is_over:
        yield "#FFD33D", "#24292f", "on hold: no trial starts until it is released"


def _count_text(word: str, count: int, goes_on: bool) -> str:
    if word != "RUNNING":
        words = {"STOPPED": "stopped early", "ERROR": "failed"}
        return f"{count:,} {words.get(word, word.lower())}"
    was = f"{count:,} {'was' if count == 1 else 'were'} running"
    return _live_or_lost(f"{count:,} running", was) if goes_on else was


def _cards(
    projection: ExperimentProjection, goes_on: bool, is_reading: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield title, value and note of each card."""
    for goal, improvements in enumerate(projection.improvements_of):
        if improvements:
            _, value, place, _ = improvements[-1]
            trial_id = label(projection.trials[place].trial_id)
            yield f"best {label(projection.metrics[goal])}", value_label(value), trial_id
    total = projection.total or len(projection.trials)
    left = projection.remaining if goes_on and not is_reading else None
    note = "" if left is None else _live_or_lost(f"about {format_duration(left)} left", "")
    done = f"{projection.num_finished:,} of {total:,}" if total else "0"
    yield "trials done", done, note
    workers = len(projection.workers)
    note = f"{workers:,} {plural('worker', workers)}"
    yield "elapsed", format_duration(projection.elapsed), note
    yield "results", f"{projection.num_results:,}", ""
    if projection.saved_iterations:
        iterations, stopped = projection.saved_iterations, projection.num_stopped_early
        note = f"{iterations:,} iterations by stopping {stopped:,} {plural('trial', stopped)} early"
        yield "work saved", f"{projection.saved_share:.0%}", note


def _best_configuration(projection: ExperimentProjection) -> Iterator[tuple[str, str]]:
    """Yield the best trial's configuration; parameters that differ between trials come first."""
    best = projection.best
    if best is not None and best.config:
        _, common = parameter_names(projection)
        config = dict(sorted(best.config.items(), key=lambda item: item[0] in common))
        of = f" for {label(projection.metric)}" if len(projection.metrics) > 1 else ""
        yield f"best configuration{of}, {label(best.trial_id)}:", config_label(config, 600)
