"""Links to the pages of Dask's own dashboard, which shows the cluster itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from bokeh.layouts import column
from bokeh.models import Div

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.text.html_template import render_html

_PAGES: Final = ("status", "workers", "system")
_NAME: Final = "dask links"
_LINKS: Final = """
Dask's own pages:{{ " " }}
{% for page, url in pages.items() %}
<a href="{{ url }}" target="_blank" rel="noopener">{{ page }}</a>{{ ", " if not loop.last }}
{% endfor %}
"""


def links_html(place: str) -> str:
    """Return links to Dask's pages as HTML; empty if their address is unknown.

    Parameters
    ----------
    place : str
        The address of any page of Dask's dashboard, or empty.

    Examples
    --------
    >>> links_html("")
    ''
    >>> print(links_html("http://localhost:8787/dasktune#5f").partition(" target")[0])
    Dask's own pages: <a href="http://localhost:8787/status"
    """
    if urlsplit(place).scheme not in ("http", "https"):
        return ""
    return render_html(_LINKS, pages={page: urljoin(place, page) for page in _PAGES})


def with_links(spec: FigureSpec, place: str) -> FigureSpec:
    """Return a spec with links to Dask's pages below it, if their address is known.

    Parameters
    ----------
    spec : FigureSpec
        The spec of the figure above the links.
    place : str
        As for :func:`links_html`.
    """
    text = links_html(place)
    if not text:
        return spec
    return replace(
        spec,
        draw=partial(_draw, spec),
        structure=(spec.structure, _NAME),
        settings={**spec.settings, (_NAME, "text"): text},
    )


def _draw(above: FigureSpec, spec: FigureSpec) -> Any:
    text = spec.settings[_NAME, "text"]
    links = Div(name=_NAME, text=text, disable_math=True, sizing_mode="stretch_width")
    drawn = above.draw(replace(spec, structure=above.structure))
    return column(drawn, links, sizing_mode="stretch_width")
