"""A page for those whom another server tells: as a whole, and what changes of it.

That server need not know Bokeh: what it relays are bytes, and the scripts that belong to them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import bokeh
from bokeh.core.json_encoder import serialize_json
from bokeh.core.serialization import Serializer
from bokeh.document import Document
from bokeh.document.events import DocumentPatchedEvent
from bokeh.layouts import column
from bokeh.models import Div, InlineStyleSheet, TabPanel, Tabs

from dasktune.dashboard.figures import rungs
from dasktune.dashboard.figures.best_so_far import best_sketch
from dasktune.dashboard.figures.learning_curves import curves_sketch
from dasktune.dashboard.figures.resources import resources_sketch
from dasktune.dashboard.figures.timeline import timeline_sketch
from dasktune.dashboard.goals import as_goal, density_of
from dasktune.dashboard.report.header import LOST, header_html
from dasktune.dashboard.report.style import TABS
from dasktune.dashboard.report.trial_table import trial_table
from dasktune.dashboard.server.live import Live
from dasktune.dashboard.server.pages import Page, Part
from dasktune.dashboard.server.viewer import Panel

__all__ = ["Broadcast", "Bulletin", "scripts"]

_Event: TypeAlias = Any

#: Trials in the table, and lines among the learning curves.
_MOST_ROWS: Final = 200
_MOST_LINES: Final = 40

#: How much is compressed: more takes several times as long and saves a tenth.
_LEVEL: Final = 4

#: What the page needs of Bokeh, in this order.
_SCRIPTS: Final = ("bokeh", "bokeh-widgets", "bokeh-tables")


@dataclass(frozen=True, slots=True)
class Bulletin:
    """News for those who look; both are compressed JSON of Bokeh's."""

    #: The page as it is now.
    whole: bytes | None
    #: What has changed since the last bulletin; None for the first.
    change: bytes | None


class Broadcast:
    """A page of an experiment that is seen elsewhere.

    Parameters
    ----------
    live : Live
        The experiment.
    """

    def __init__(self, live: Live) -> None:
        self._live = live
        self._document = Document()
        self._header: Any = Div(
            text="",
            name="header",
            disable_math=True,
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=LOST)],
        )
        self._panels: list[Panel] = []
        self._events: list[_Event] = []
        #: Bytes of the last whole, and of the changes since.
        self._whole = self._changed = 0
        self._page = column(self._header, sizing_mode="stretch_width")
        self._document.add_root(self._page)
        self._document.on_change(self._note)

    def turn(self, *, anew: bool = False) -> Bulletin | None:
        """Bring the page up to date, and return what there is to tell; None for nothing.

        To be called by one thread at a time. It takes a while.

        Parameters
        ----------
        anew : bool, default=False
            Whether nobody has the page yet.
        """
        with self._live.lock:
            self._update()
        events, self._events = self._events, []
        if anew or not self._whole:
            return Bulletin(self._as_whole(), None)
        if not events:
            return None
        change = self._as_change(events)
        self._changed += len(change)
        # Who comes next would have to load more changes than the page has.
        return Bulletin(self._as_whole() if self._changed > self._whole else None, change)

    def _note(self, event: _Event) -> None:
        if isinstance(event, DocumentPatchedEvent):
            self._events.append(event)

    def _update(self) -> None:
        self._header.text = header_html(self._live.chronicle)
        if not self._panels and self._live.chronicle.trials:
            self._begin()
        for panel in self._panels:
            panel.update(self._live)

    def _begin(self) -> None:
        tabs = []
        for page in _pages(self._live):
            panels = [Panel(part) for part in page.parts]
            self._panels += panels
            child = column(*(one.card for one in panels), sizing_mode="stretch_width")
            tabs.append(TabPanel(title=page.title, child=child))
        style = [InlineStyleSheet(css=TABS)]
        made = Tabs(tabs=tabs, sizing_mode="stretch_width", stylesheets=style)
        self._page.children = [self._header, made]

    def _as_whole(self) -> bytes:
        content = _compressed(self._document.to_json(deferred=False))
        # Models that are in it need not be told again.
        self._document.models.flush_synced()
        self._whole, self._changed = len(content), 0
        return content

    def _as_change(self, events: list[_Event]) -> bytes:
        models = self._document.models
        serializer = Serializer(references=models.synced_references, deferred=False)
        content = _compressed({"events": serializer.encode(events)})
        models.flush_synced(lambda model: not serializer.has_ref(model))
        return content


def scripts() -> tuple[str, Iterator[tuple[str, bytes]]]:
    """Return the version of Bokeh here, and its scripts by their names, compressed."""
    static = Path(bokeh.__file__).parent / "server" / "static" / "js"
    return bokeh.__version__, (
        (name, gzip.compress((static / f"{name}.min.js").read_bytes(), 6)) for name in _SCRIPTS
    )


def _pages(live: Live) -> list[Page]:
    def drawn(name: str, draw: Any, **options: Any) -> Part:
        return Part(name, lambda: draw(live.chronicle, **options))

    curves = Part(
        "curves",
        lambda: curves_sketch(live.chronicle, density=live.density, max_lines=_MOST_LINES),
    )
    others = [
        Part(f"{name} {goal}", partial(_of_goal, live, goal, draw, **options))
        for goal in range(1, len(live.chronicle.metrics))
        for name, draw, options in (
            ("best", best_sketch, {}),
            ("curves", curves_sketch, {"max_lines": _MOST_LINES}),
        )
    ]
    return [
        Page("Overview", (drawn("best", best_sketch), curves, *others)),
        Page("Trials", (drawn("trials", trial_table, live=True, most=_MOST_ROWS),)),
        Page("Rungs", (drawn("rungs", rungs),)),
        Page("Workers", (drawn("timeline", timeline_sketch), drawn("resources", resources_sketch))),
    ]


def _of_goal(live: Live, goal: int, draw: Any, **options: Any) -> Any:
    seen = as_goal(live.chronicle, goal)
    if "max_lines" in options:
        options["density"] = density_of(seen)
    return draw(seen, **options)


def _compressed(content: Any) -> bytes:
    return gzip.compress(serialize_json(content).encode(), _LEVEL)
