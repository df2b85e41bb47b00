"""A table of the experiments that share the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bokeh.models import Div

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.labels import label
from dasktune.dashboard.report.style import MUTED
from dasktune.placement import ClusterShares, ExperimentShare
from dasktune.text.formatting import format_duration
from dasktune.text.html_template import render_html

_NAME: Final = "shares"

_HEAD: Final = ("experiment", "weight", "priority", "holds", "share", "due", "trials waiting", "since")

_HTML: Final = """
<div style="font-weight:700">Experiments on this cluster</div>
{% if waiting %}<div style="color:{{ muted }}">This experiment {{ waiting }}.</div>{% endif %}
<table style="border-spacing:24px 6px;text-align:left">
<tr>{% for cell in head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</table>
"""


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
    rows = [_cells(shares, one) for one in shares.experiments]
    return render_html(_HTML, waiting=shares.waiting_text, muted=MUTED, head=_HEAD, rows=rows)


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
