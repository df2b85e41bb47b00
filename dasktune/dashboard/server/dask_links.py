"""Links to the pages of Dask's own dashboard, which knows of the cluster what no journal does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from html import escape
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from bokeh.layouts import column
from bokeh.models import Div

from dasktune.dashboard.figures.sketch import Sketch

__all__ = ["links_html", "with_links"]

_PAGES: Final = ("status", "workers", "system")
_NAME: Final = "dask links"


def links_html(place: str) -> str:
    """Return links to Dask's pages as HTML; empty if nobody knows where they are.

    Parameters
    ----------
    place : str
        The address of any page beside them, or empty.

    Examples
    --------
    >>> links_html("")
    ''
    >>> print(links_html("http://localhost:8787/dasktune#5f").partition(" target")[0])
    Dask's own pages: <a href="http://localhost:8787/status"
    """
    if urlsplit(place).scheme not in ("http", "https"):
        return ""
    links = ", ".join(
        f'<a href="{escape(urljoin(place, page))}" target="_blank" rel="noopener">{page}</a>'
        for page in _PAGES
    )
    return f"Dask's own pages: {links}"


def with_links(sketch: Sketch, place: str) -> Sketch:
    """Return a sketch with links to Dask's pages below it, if it is known where they are.

    Parameters
    ----------
    sketch : Sketch
        What is above them.
    place : str
        As for :func:`links_html`.
    """
    text = links_html(place)
    if not text:
        return sketch
    return replace(
        sketch,
        draw=partial(_draw, sketch),
        form=(sketch.form, _NAME),
        settings={**sketch.settings, (_NAME, "text"): text},
    )


def _draw(above: Sketch, sketch: Sketch) -> Any:
    text = sketch.settings[_NAME, "text"]
    links = Div(name=_NAME, text=text, disable_math=True, sizing_mode="stretch_width")
    drawn = above.draw(replace(sketch, form=above.form))
    return column(drawn, links, sizing_mode="stretch_width")
