"""A page of an experiment for another server: the whole page, then its changes.

The other server needs no Bokeh: it relays bytes, and the scripts that belong to them.
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

from dasktune.dashboard.figures.best_so_far import best_spec
from dasktune.dashboard.figures.learning_curves import curves_spec
from dasktune.dashboard.figures.resource_usage import resources_spec
from dasktune.dashboard.figures.timeline import timeline_spec
from dasktune.dashboard.model.objectives import density_of, with_objective
from dasktune.dashboard.report.header import LOST, header_html
from dasktune.dashboard.report.style import TABS
from dasktune.dashboard.report.trial_table import trial_table
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.pages import Page, PageSection, decisions
from dasktune.dashboard.server.viewer import Panel

_Event: TypeAlias = Any

#: Maximum number of rows of the table, and of lines in the plot of the learning curves.
_MOST_ROWS: Final = 200
_MOST_LINES: Final = 40

#: Level of compression. Higher levels take several times as long, for a tenth fewer bytes.
_LEVEL: Final = 4

#: The scripts of Bokeh that the page needs, in the order of loading.
_SCRIPTS: Final = ("bokeh", "bokeh-widgets", "bokeh-tables")


@dataclass(frozen=True, slots=True)
class PageUpdate:
    """An update for viewers; both fields are compressed JSON of Bokeh."""

    #: The whole page, if it has to be sent again.
    page: bytes | None
    #: The changes since the last update; None for the first.
    changes: bytes | None


class Broadcast:
    """A page of an experiment that another server shows.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    """

    def __init__(self, live: LiveExperiment) -> None:
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
        #: Sizes in bytes of the last whole page, and of all changes since.
        self._whole = self._changed = 0
        self._page = column(self._header, sizing_mode="stretch_width")
        self._document.add_root(self._page)
        self._document.on_change(self._collect)

    def update(self, *, full: bool = False) -> PageUpdate | None:
        """Update the page and return what has to be sent; None if nothing has changed.

        It may take long. One thread calls it at a time: the document has no lock of its own.

        Parameters
        ----------
        full : bool, default=False
            Whether the other server does not have the page yet.
        """
        with self._live.lock:
            self._update_document()
        events, self._events = self._events, []
        if full or not self._whole:
            return PageUpdate(self._as_whole(), None)
        if not events:
            return None
        change = self._as_change(events)
        self._changed += len(change)
        # Send the whole page again once the changes have more bytes: a new viewer loads both.
        return PageUpdate(self._as_whole() if self._changed > self._whole else None, change)

    def _collect(self, event: _Event) -> None:
        if isinstance(event, DocumentPatchedEvent):
            self._events.append(event)

    def _update_document(self) -> None:
        self._header.text = header_html(self._live.projection)
        if not self._panels and self._live.projection.trials:
            self._begin()
        for panel in self._panels:
            panel.update(self._live)

    def _begin(self) -> None:
        tabs = []
        for page in _pages(self._live):
            panels = [Panel(part) for part in page.sections]
            self._panels += panels
            child = column(*(one.card for one in panels), sizing_mode="stretch_width")
            tabs.append(TabPanel(title=page.title, child=child))
        style = [InlineStyleSheet(css=TABS)]
        made = Tabs(tabs=tabs, sizing_mode="stretch_width", stylesheets=style)
        self._page.children = [self._header, made]

    def _as_whole(self) -> bytes:
        content = _compressed(self._document.to_json(deferred=False))
        # Later changes refer to these models by id.
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
    """Return the installed version of Bokeh, and its scripts by name, compressed."""
    static = Path(bokeh.__file__).parent / "server" / "static" / "js"
    return bokeh.__version__, (
        (name, gzip.compress((static / f"{name}.min.js").read_bytes(), 6)) for name in _SCRIPTS
    )


def _pages(live: LiveExperiment) -> list[Page]:
    def drawn(name: str, draw: Any, **options: Any) -> PageSection:
        return PageSection(name, lambda: draw(live.projection, **options))

    curves = PageSection(
        "curves", lambda: curves_spec(live.projection, density=live.density, max_lines=_MOST_LINES)
    )
    others = [
        PageSection(f"{name} {goal}", partial(_of_goal, live, goal, draw, **options))
        for goal in range(1, len(live.projection.metrics))
        for name, draw, options in (
            ("best", best_spec, {}),
            ("curves", curves_spec, {"max_lines": _MOST_LINES}),
        )
    ]
    return [
        Page("Overview", (drawn("best", best_spec), curves, *others)),
        Page("Trials", (drawn("trials", trial_table, live=True, most=_MOST_ROWS),)),
        Page("Scheduler", (PageSection("decisions", lambda: decisions(live)),)),
        Page("Workers", (drawn("timeline", timeline_spec), drawn("resources", resources_spec))),
    ]


def _of_goal(live: LiveExperiment, goal: int, draw: Any, **options: Any) -> Any:
    seen = with_objective(live.projection, goal)
    if "max_lines" in options:
        options["density"] = density_of(seen)
    return draw(seen, **options)


def _compressed(content: Any) -> bytes:
    return gzip.compress(serialize_json(content).encode(), _LEVEL)
