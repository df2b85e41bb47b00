"""Styles of the pages of the report and of the server, in light and dark colours.

The colours are CSS variables with the prefix ``--dt-``. They reach into Bokeh's shadow DOM. Each
use gives the light colour as its fallback, because a page of another server does not define them.
"""

from __future__ import annotations

from typing import Final

from dasktune.dashboard.figures.theme import COLOURS, FONT

#: The colours: name, light, dark. Text in each has a contrast of at least 4.5 to the grounds.
_PALETTE: Final = {
    "page": ("#f6f8fa", "#0d1117"),
    "card": ("#ffffff", "#161b22"),
    "ink": ("#24292f", "#e6edf3"),
    "muted": ("#57606a", "#9da7b3"),
    "line": ("#d0d7de", "#30363d"),
    "link": ("#0550ae", "#58a6ff"),
    "accent": ("#0072b2", "#58a6ff"),
    "chosen": ("#cfe8ff", "#1f3a5f"),
    "hover": ("#eef2f6", "#21262d"),
    "red": ("#a40e26", "#ff7b72"),
}


def colour(name: str) -> str:
    """Return a colour of the pages as CSS.

    Parameters
    ----------
    name : str
        The name of the colour.

    Examples
    --------
    >>> colour("ink")
    'var(--dt-ink, #24292f)'
    """
    return f"var(--dt-{name}, {_PALETTE[name][0]})"


INK: Final = colour("ink")
MUTED: Final = colour("muted")


#: What a dark page does to figures, which are drawn in light colours. Their inverted ground is
#: darker than the card in each channel, so `lighten` leaves the ground of the card.
_DARK_FIGURE: Final = "--dt-figure: invert(0.91) hue-rotate(180deg); --dt-blend: lighten;"


def _variables(place: int) -> str:
    return " ".join(f"--dt-{name}: {both[place]};" for name, both in _PALETTE.items())


#: Style of the page.
BODY: Final = f"""
 :root {{ color-scheme: light dark; {_variables(0)} }}
 @media (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} {_DARK_FIGURE} }} }}
 html {{ background: var(--dt-page); }}
 html body {{ background: var(--dt-page); color: var(--dt-ink); margin: 0 auto; padding: 20px 28px;
  max-width: 1500px; font-family: {FONT}; }}
 .dt-loading {{ color: var(--dt-muted); font-size: 14px; }}
 body:has([data-root-id]:not(:empty)) .dt-loading {{ display: none; }}
 @media (max-width: 900px) {{ html body {{ padding: 12px; }} }}
"""

#: Style of the tabs. Bokeh only makes the pages that are not selected invisible; without the last
#: rule each page would be as long as the longest one.
TABS: Final = f"""
:host {{ font-family: {FONT}; }}
:host(.bk-above) .bk-header {{ border-bottom: 1px solid {colour("line")}; margin-top: 14px;
 font-size: 14px; }}
.bk-tab {{ padding: 8px 14px; color: {MUTED}; border: none; }}
.bk-tab:hover {{ background: {colour("hover")}; }}
.bk-tab.bk-active {{ color: {INK}; font-weight: 650; background: transparent; border: none;
 border-bottom: 3px solid {colour("accent")}; }}
[style*="visibility: hidden"] {{ max-height: 0; overflow: hidden; }}
"""

#: Style of the cards on the tabs.
CARD: Final = {
    "background": colour("card"),
    "color": INK,
    "border": f"1px solid {colour('line')}",
    "border-radius": "10px",
    "padding": "12px",
    "margin": "10px 0 0 0",
}

#: The arrow of a list, in a grey that both grounds show; Bokeh's is black.
_ARROW: Final = (
    "data:image/svg+xml;utf8,<svg viewBox='0 0 25 20' xmlns='http://www.w3.org/2000/svg'>"
    "<path d='M 0,0 25,0 12.5,20 Z' fill='%237d8590'/></svg>"
)

#: Style of input boxes and buttons.
INPUT: Final = f"""
select:not([multiple]).bk-input {{ background-image: url("{_ARROW}"); }}
.bk-input {{ color: {INK}; background-color: {colour("card")}; border-color: {colour("line")}; }}
.bk-input::placeholder {{ color: {MUTED}; }}
.bk-btn-default {{ color: {INK}; background-color: {colour("card")}; border-color: {colour("line")}; }}
.bk-btn-default:hover {{ background-color: {colour("hover")}; }}
.bk-btn-primary {{ color: #fff; background-color: #0072b2; border-color: #0072b2; }}
.bk-btn-primary:hover {{ background-color: #005a8d; }}
.bk-btn-danger {{ color: #fff; background-color: #a40e26; border-color: #a40e26; }}
.bk-btn-danger:hover {{ background-color: #82071e; }}
.bk-input-group > label, .bk-label {{ color: {MUTED}; font-size: 12px; }}
"""

#: Colours of the states of experiments: ground and ink.
_STATES: Final = {
    "live": ("#56B4E9", "#24292f"),
    "finished": ("#0072B2", "#fff"),
    "interrupted": ("#E69F00", "#24292f"),
    "lost": ("#000", "#fff"),
    "unreadable": ("#D55E00", "#000"),
}

_STATUS: Final = "".join(
    f".dt-{word} {{ background: {COLOURS[word]}; color: {ink}; }}\n"
    for word, ink in {
        "PENDING": "#24292f",
        "RUNNING": "#24292f",
        "PAUSED": "#24292f",
        "TERMINATED": "#fff",
        "STOPPED": "#24292f",
        "ERROR": "#000",
        "running": "#24292f",
        "ended": "#fff",
    }.items()
)

_STATE: Final = "".join(
    f".dt-{word} {{ background: {ground}; color: {ink}; }}\n" for word, (ground, ink) in _STATES.items()
)

#: Style of a table of trials or experiments.
TABLE: Final = f"""
.bk-data-table {{ background: {colour("card")}; color: {INK}; font-size: 12px; }}
.slick-header-column.ui-state-default, .slick-header-columns {{ background: {colour("hover")};
 color: {INK}; border-color: {colour("line")}; }}
.slick-row, .slick-row.odd, .slick-row.even {{ background: transparent; }}
.slick-cell {{ border-color: transparent; border-bottom-color: {colour("line")}; background: none; }}
.slick-row:hover .slick-cell {{ background: {colour("hover")}; }}
.slick-cell.selected, .slick-row:hover .slick-cell.selected {{ background: {colour("chosen")};
 font-weight: 600; }}
.slick-cell.l0.selected {{ box-shadow: inset 4px 0 0 {colour("accent")}; }}
.slick-cell a {{ color: {colour("link")}; }}
.dt-status {{ border-radius: 999px; padding: 0 8px; font-size: 11px; font-weight: 600; }}
{_STATUS}{_STATE}
"""
