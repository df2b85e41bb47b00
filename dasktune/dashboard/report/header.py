"""What stands above all pages: how far the experiment is, and what is best."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from bokeh.models import Div, InlineStyleSheet

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.theme import COLOURS
from dasktune.dashboard.parameters import names_of
from dasktune.dashboard.text import configuration, duration, shown, value_text

__all__ = ["LOST", "header", "header_html"]

_CARD = (
    '<div style="background:#fff;border:1px solid #d0d7de;border-radius:10px;padding:10px 16px;'
    'min-width:120px"><div style="color:#57606a;font-size:12px">{title}</div>'
    '<div style="font-size:21px;font-weight:650;line-height:1.35">{value}</div>'
    '<div style="color:#57606a;font-size:12px">{note}</div></div>'
)
_CHIP = (
    '<span style="display:inline-block;background:{colour};color:{ink};border-radius:999px;'
    'padding:1px 10px;margin-right:6px;font-size:12px;font-weight:600">{text}</span>'
)
_BEST = (
    '<div style="margin-top:10px;color:#57606a;font-size:12px">{title} '
    '<span style="color:#24292f;font-family:ui-monospace,monospace;overflow-wrap:anywhere">'
    "{text}</span></div>"
)

#: Of what is said of the driver: how it begins, the colours of its chip, and whether what it was
#: doing goes on. What is not there is said without a chip.
_STATES = (
    ("driver is lost", "#CF222E", "#fff", False),
    ("the journal cannot be read", "#CF222E", "#fff", False),
    ("driver has ended", "#57606A", "#fff", False),
    ("experiment has ended", "#57606A", "#fff", False),
    ("no news", "#FFD33D", "#24292f", True),
    ("driver is running, no news", "#FFD33D", "#24292f", True),
    ("driver is running", "#2DA44E", "#fff", True),
)

#: What a header looks like once nothing is heard from its server any more: a page gives it the
#: class ``dt-lost`` then, as there is nobody else who could. What it says then is there all along.
LOST = """
.dt-lost { display: none; }
:host(.dt-lost) .dt-lost { display: inline; }
:host(.dt-lost) .dt-alive { display: none; }
"""


def header(chronicle: Chronicle) -> Any:
    """Return the header as a model.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    """
    # Otherwise what a user calls "$$x$$" would be a formula.
    return Div(
        text=header_html(chronicle),
        disable_math=True,
        sizing_mode="stretch_width",
        stylesheets=[InlineStyleSheet(css=LOST)],
    )


def header_html(chronicle: Chronicle, state: str = "", gone: str = "driver is lost") -> str:
    """Return the header as HTML, in which everything that users named is escaped.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    state : str, default=""
        How it is with its driver, if that is known.
    gone : str, default="driver is lost"
        What is to be said instead once nothing is heard from the server any more; see `LOST`.
    """
    name = escape(shown(chronicle.name or "experiment", 80))
    goals = [
        f"{shown(metric)} ({mode})" if mode else shown(metric)
        for metric, mode in zip(chronicle.metrics, chronicle.modes, strict=True)
    ]
    goal = escape(", ".join(goals) or "no metric")
    goes_on = all(going for begin, _, _, going in _STATES if state.startswith(begin))
    cards = "".join(
        _CARD.format(title=escape(title), value=escape(value), note=note)
        for title, value, note in _cards(chronicle, goes_on)
    )
    return (
        "<div style=\"font-family:Inter,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;"
        f'color:#24292f"><div style="font-size:22px;font-weight:700">{name}</div>'
        f'<div style="margin:2px 0 10px"><span style="color:#57606a;margin-right:12px">{goal}'
        f"</span>{_chips(chronicle, goes_on)}{_told(state, gone)}</div>"
        f'<div style="display:flex;flex-wrap:wrap;gap:12px">{cards}</div>'
        f"{_best_configuration(chronicle)}</div>"
    )


def _told(state: str, gone: str) -> str:
    """Return how it is with the driver, and what is to be seen instead if its server is gone."""
    if not state:
        return ""
    text = escape(shown(state, 120))
    looks = [one for one in _STATES if state.startswith(one[0])]
    if not looks:
        return f'<span style="color:#57606a">{text}</span>'
    _, colour, ink, goes_on = looks[0]
    told = _CHIP.format(colour=colour, ink=ink, text=text)
    if not goes_on:
        return told
    lost = _CHIP.format(colour="#CF222E", ink="#fff", text=escape(gone))
    note = '<span style="color:#57606a">this was known last</span>'
    return _either(told, f"{lost}{note}")


def _either(alive: str, lost: str) -> str:
    """Return what is seen, and what is seen instead once nothing is heard any more."""
    return f'<span class="dt-alive">{alive}</span><span class="dt-lost">{lost}</span>'


def _chips(chronicle: Chronicle, goes_on: bool) -> str:
    counts = dict(chronicle.counts)
    counts["STOPPED"] = chronicle.num_stopped
    counts["TERMINATED"] -= counts["STOPPED"]
    order = ("RUNNING", "PENDING", "PAUSED", "TERMINATED", "STOPPED", "ERROR")
    light = {"PENDING", "RUNNING", "PAUSED", "STOPPED"}
    chips = [
        _CHIP.format(
            colour=COLOURS[word],
            ink="#24292f" if word in light else "#fff",
            text=_counted(word, counts[word], goes_on),
        )
        for word in order
        if counts[word]
    ]
    is_over = bool(chronicle.stop_reason) or chronicle.num_over == chronicle.total
    if chronicle.on_hold and goes_on and not is_over:
        text = "on hold: no trial starts until it is released"
        chips.append(_CHIP.format(colour="#FFD33D", ink="#24292f", text=text))
    return "".join(chips)


def _counted(word: str, count: int, goes_on: bool) -> str:
    if word != "RUNNING":
        words = {"STOPPED": "stopped early", "ERROR": "failed"}
        return f"{count:,} {words.get(word, word.lower())}"
    was = f"{count:,} {'was' if count == 1 else 'were'} running"
    return _either(f"{count:,} running", was) if goes_on else was


def _cards(chronicle: Chronicle, goes_on: bool) -> Iterator[tuple[str, str, str]]:
    """Yield title, value and note of each card; the note is HTML."""
    for goal, told in enumerate(chronicle.improvements_of):
        if told:
            _, value, place, _ = told[-1]
            trial = escape(shown(chronicle.trials[place].trial_id))
            yield f"best {shown(chronicle.metrics[goal])}", value_text(value), trial
    total = chronicle.total or len(chronicle.trials)
    left = chronicle.remaining if goes_on else None
    note = "" if left is None else _either(f"about {duration(left)} left", "")
    yield "trials done", f"{chronicle.num_over:,} of {total:,}", note
    yield "elapsed", duration(chronicle.elapsed), f"{len(chronicle.workers)} workers"
    yield "results", f"{chronicle.num_results:,}", ""
    if chronicle.saved_iterations:
        note = f"{chronicle.saved_iterations:,} iterations by stopping {chronicle.num_cut:,} early"
        yield "work saved", f"{chronicle.saved_share:.0%}", note


def _best_configuration(chronicle: Chronicle) -> str:
    """Return the configuration of the best trial, what differs between trials first."""
    best = chronicle.best
    if best is None or not best.config:
        return ""
    _, common = names_of(chronicle)
    config = dict(sorted(best.config.items(), key=lambda item: item[0] in common))
    of = f" for {shown(chronicle.metric)}" if len(chronicle.metrics) > 1 else ""
    title = escape(f"best configuration{of}, {shown(best.trial_id)}:")
    return _BEST.format(title=title, text=escape(configuration(config, 600)))
