"""A table of the experiments that share the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, Final

from bokeh.models import Div

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.labels import label
from dasktune.dashboard.report.style import MUTED
from dasktune.placement import ClusterShares, ExperimentShare
from dasktune.text.formatting import format_duration

_NAME: Final = "shares"

_HEAD: Final = ("experiment", "weight", "priority", "holds", "share", "due", "trials waiting", "since")


def shares_spec(shares: ClusterShares | None) -> FigureSpec:
    """Return the spec of the table.

    Parameters
    ----------
    shares : ClusterShares or None
        The shares; None gives an empty text.
    """
    text = "" if shares is None else shares_html(shares)
    return FigureSpec(draw=_draw, structure=(_NAME,), settings={(_NAME, "text"): text})


def shares_html(shares: ClusterShares) -> str:
    """Return the table as HTML in which all text is escaped: other users choose the names.

    Parameters
    ----------
    shares : ClusterShares
        The shares.
    """
    head = "".join(f"<th>{one}</th>" for one in _HEAD)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(shares, one))}</tr>"
        for one in shares.experiments
    )
    waiting = shares.waiting_text
    note = f'<div style="color:{MUTED}">This experiment {escape(waiting)}.</div>' if waiting else ""
    return (
        '<div style="font-weight:700">Experiments on this cluster</div>'
        f'{note}<table style="border-spacing:24px 6px;text-align:left"><tr>{head}</tr>{rows}</table>'
    )


def _cells(shares: ClusterShares, one: ExperimentShare) -> Iterator[str]:
    yield f"{label(one.name, 60)}{' (this one)' if one.is_own else ''}"
    yield f"{one.weight:g}"
    yield f"{one.priority:g}"
    yield shares.held_text(one)
    yield f"{one.share:.0%}"
    yield "" if one.due is None else f"{one.due:.0%}"
    yield str(one.waiting)
    yield "" if one.waiting_s is None else format_duration(one.waiting_s)


def _draw(spec: FigureSpec) -> Any:
    return Div(name=_NAME, text=spec.settings[_NAME, "text"], disable_math=True, sizing_mode="stretch_width")
