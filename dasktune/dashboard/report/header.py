"""What stands above all pages: how far the experiment is, and what is best."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from bokeh.models import Div

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.theme import COLOURS
from dasktune.dashboard.text import duration, shown, value_text

__all__ = ["header", "header_html"]

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


def header(chronicle: Chronicle) -> Any:
    """Return the header as a model.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    """
    # Otherwise what a user calls "$$x$$" would be a formula.
    return Div(text=header_html(chronicle), disable_math=True, sizing_mode="stretch_width")


def header_html(chronicle: Chronicle, state: str = "") -> str:
    """Return the header as HTML, in which everything that users named is escaped.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    state : str, default=""
        How it is with its driver, if that is known.
    """
    name = escape(shown(chronicle.name or "experiment", 80))
    goals = [
        f"{shown(metric)} ({mode})" if mode else shown(metric)
        for metric, mode in zip(chronicle.metrics, chronicle.modes, strict=True)
    ]
    goal = escape(", ".join(goals) or "no metric")
    cards = "".join(
        _CARD.format(title=escape(title), value=escape(value), note=escape(note))
        for title, value, note in _cards(chronicle)
    )
    told = f'<span style="color:#57606a">{escape(shown(state, 120))}</span>' if state else ""
    return (
        "<div style=\"font-family:Inter,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;"
        f'color:#24292f"><div style="font-size:22px;font-weight:700">{name}</div>'
        f'<div style="margin:2px 0 10px"><span style="color:#57606a;margin-right:12px">{goal}'
        f"</span>{_chips(chronicle)}{told}</div>"
        f'<div style="display:flex;flex-wrap:wrap;gap:12px">{cards}</div></div>'
    )


def _chips(chronicle: Chronicle) -> str:
    counts = dict(chronicle.counts)
    counts["STOPPED"] = chronicle.num_stopped
    counts["TERMINATED"] -= counts["STOPPED"]
    order = ("RUNNING", "PENDING", "PAUSED", "TERMINATED", "STOPPED", "ERROR")
    words = {"STOPPED": "stopped early", "ERROR": "failed"}
    light = {"PENDING", "RUNNING", "PAUSED", "STOPPED"}
    return "".join(
        _CHIP.format(
            colour=COLOURS[word],
            ink="#24292f" if word in light else "#fff",
            text=f"{counts[word]:,} {words.get(word, word.lower())}",
        )
        for word in order
        if counts[word]
    )


def _cards(chronicle: Chronicle) -> Iterator[tuple[str, str, str]]:
    best = chronicle.best
    if best is not None:
        yield f"best {shown(chronicle.metric)}", value_text(chronicle.best_value), best.trial_id
    total = chronicle.total or len(chronicle.trials)
    left = chronicle.remaining
    note = "" if left is None else f"about {duration(left)} left"
    yield "trials done", f"{chronicle.num_over:,} of {total:,}", note
    yield "elapsed", duration(chronicle.elapsed), f"{len(chronicle.workers)} workers"
    yield "results", f"{chronicle.num_results:,}", ""
    if chronicle.saved_iterations:
        note = f"{chronicle.saved_iterations:,} iterations by stopping {chronicle.num_cut:,} early"
        yield "work saved", f"{chronicle.saved_share:.0%}", note
