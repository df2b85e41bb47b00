"""A browser's view of an experiment: the models of a session, and their updates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from bokeh.document import Document
from bokeh.events import DocumentReady
from bokeh.layouts import column
from bokeh.models import (
    CustomJS,
    DataTable,
    Div,
    InlineStyleSheet,
    Paragraph,
    TabPanel,
    Tabs,
)

from dasktune.dashboard.labels import label
from dasktune.dashboard.report.header import LOST, header_html
from dasktune.dashboard.report.style import CARD, TABS
from dasktune.dashboard.server.controls import Commander, ControlBar
from dasktune.dashboard.server.diff import RenderedFigure, models_of
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.pages import Page, PageSection, experiment_pages, trial_section

__all__ = ["PLACEHOLDER", "Panel", "Viewer"]

logger = logging.getLogger(__name__)

#: Milliseconds between two updates.
_PERIOD = 1000

#: Seconds between two heartbeats to the page, and without a heartbeat until the page shows that the
#: server is lost.
_HEARTBEAT_SECONDS = 5.0
_LOST_AFTER_SECONDS = 20.0

#: Reports whether the page is visible; a hidden browser tab is not updated.
_REPORT_VISIBILITY = """
const report = () => { header.tags = [document.hidden ? "hidden" : "seen"] }
document.addEventListener("visibilitychange", report)
if (document.hidden) report()
"""

#: Watches for heartbeats. Only the page itself can notice that they are missing: a server that is
#: killed or hangs sends nothing.
_WATCH_HEARTBEAT = """
let last = Date.now()
const show = (lost) => {
  if (lost !== header.css_classes.includes("dt-lost")) header.css_classes = lost ? ["dt-lost"] : []
}
const beat = () => { last = Date.now(); show(false) }
for (const one of [pulse.properties.tags, header.properties.text]) one.change.connect(beat)
setInterval(() => {
  // A hidden page gets no heartbeats.
  if (document.hidden) last = Date.now()
  else if (Date.now() - last > timeout) show(true)
}, 500)
"""
#: Runs at once if the connection is lost.
_SHOW_LOST = 'header.css_classes = ["dt-lost"]'

#: Name of the note that is shown while a figure is made.
PLACEHOLDER = "coming"


class Panel:
    """A section of a page in one viewer.

    Parameters
    ----------
    section : PageSection
        The section to show.

    Attributes
    ----------
    card : Model
        The layout that contains the section's models.
    is_waiting : bool
        Whether the first figure is still being made, so that there is nothing to show.
    """

    def __init__(self, section: PageSection) -> None:
        self.section = section
        self.card: Any = column(sizing_mode="stretch_width", styles=CARD)
        self._models: list[Any] = []
        self.is_waiting = False
        #: The rendered figure that the models show; None before the first update.
        self._rendered: RenderedFigure | None = None

    def update(self, live: LiveExperiment) -> bool:
        """Bring the models up to date; return whether they were replaced.

        Parameters
        ----------
        live : LiveExperiment
            The experiment, whose lock is held.
        """
        if self.card.visible != self.section.is_shown():
            self.card.visible = not self.card.visible
        if not self.card.visible:
            return False
        rendered = self._render(live)
        if rendered is None or rendered is self._rendered:
            return False
        changes = None if self._rendered is None else rendered.changes_from(self._rendered)
        if changes is None:
            self._replace(live, rendered)
            return True
        changes.apply(self._models)
        self._rendered = rendered
        return False

    def set_section(self, section: PageSection) -> None:
        """Show another section.

        Parameters
        ----------
        section : PageSection
            The section to show.
        """
        self.section, self._rendered = section, None

    def _render(self, live: LiveExperiment) -> RenderedFigure | None:
        if not self.section.is_slow:
            return live.render(self.section.name, self.section.make)
        rendered = live.render_in_thread(self.section.name, self.section.make)
        self.is_waiting = rendered is None
        if rendered is None and not self.card.children:
            note = Paragraph(text="Drawing this figure ...", disable_math=True, name=PLACEHOLDER)
            self.card.children = [note]
        return rendered

    def _replace(self, live: LiveExperiment, rendered: RenderedFigure) -> None:
        if not self.section.is_slow:
            # The same function at the same state gives models of the same structure.
            rendered = live.render(self.section.name, self.section.make, at_once=True)
        self._rendered = rendered
        root = self.section.make() if rendered.spec is None else rendered.take_models()
        self._models = models_of(root)
        self.card.children = [root]


class Viewer:
    """Shows an experiment in a document, and keeps the visible page up to date.

    All its methods run in the server's loop.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    document : Document
        The document of the session.
    commander : callable, optional
        Returns the object that takes commands; without it there are no buttons.
    """

    def __init__(
        self,
        live: LiveExperiment,
        document: Document,
        commander: Callable[[], Commander | None] | None = None,
    ) -> None:
        self.live, self.lives, self.document = live, (live,), document
        self._header = Div(
            text="", disable_math=True, sizing_mode="stretch_width", stylesheets=[InlineStyleSheet(css=LOST)]
        )
        self._heartbeat: Any = Div(visible=False, name="pulse")
        self._last_heartbeat = time.monotonic()
        self._pages: list[Page] = []
        self._panels: list[list[Panel]] = []
        self._detail: Panel | None = None
        self._tabs: Any = None
        #: Whether the last update was skipped or is incomplete.
        self.needs_update = False
        #: Id of the trial that is selected in the table.
        self._selected = ""
        self._top: list[Any] = [self._header]
        if commander is not None:
            self._top.append(ControlBar(commander, document, lambda: self._selected).root)
        self._top.append(self._heartbeat)
        self._page = column(*self._top, sizing_mode="stretch_width")
        name = live.projection.name or "experiment"
        document.title = f"{label(name, 80)} · dasktune"
        document.add_root(self._page)
        document.add_periodic_callback(self._tick, _PERIOD)
        document.js_on_event(DocumentReady, *self._scripts())
        document.js_on_event("connection_lost", CustomJS(args={"header": self._header}, code=_SHOW_LOST))
        self._header.on_change("tags", lambda name, old, new: self._tick())
        self.update()

    def _scripts(self) -> list[Any]:
        """Return the scripts that the page runs once it is loaded."""
        models = {"header": self._header}
        watching = {**models, "pulse": self._heartbeat, "timeout": 1000 * _LOST_AFTER_SECONDS}
        return [
            CustomJS(args=models, code=_REPORT_VISIBILITY),
            CustomJS(args=watching, code=_WATCH_HEARTBEAT),
        ]

    @property
    def is_hidden(self) -> bool:
        """Whether the page is invisible: the browser is gone, or shows another tab."""
        session = getattr(self.document.session_context, "session", None)
        is_gone = session is not None and not session.connection_count
        return is_gone or "hidden" in self._header.tags

    def _tick(self) -> None:
        """Update the page if it is visible; a session outlives its browser by some seconds."""
        if self.is_hidden:
            return
        if time.monotonic() - self._last_heartbeat >= _HEARTBEAT_SECONDS:
            self._last_heartbeat = time.monotonic()
            self._heartbeat.tags = [self._last_heartbeat]
        self.update()

    def update(self) -> None:
        """Update the header and the visible page."""
        if not self.live.lock.acquire(blocking=False):
            # A reader or a render thread holds the lock. The server calls again within 0.1 s.
            self.needs_update = True
            return
        self.needs_update = False
        try:
            self.document.hold("collect")
            self._update()
        except Exception:
            # Keep the session open: the next update may succeed.
            logger.exception("a page of the dashboard could not be updated")
        finally:
            self.document.unhold()
            self.live.lock.release()

    def _update(self) -> None:
        live = self.live
        gone = "driver is lost" if live.is_in_driver else "this page's server does not answer"
        self._header.text = live.cached("header", lambda: header_html(live.projection, live.state, gone))
        if self._tabs is None:
            if not live.projection.trials:
                return
            self._begin()
        for panel in self._panels[self._tabs.active]:
            is_new = panel.update(live)
            self.needs_update |= panel.is_waiting
            if is_new and panel.section.name == "trials":
                self._listen(panel)
            if is_new and panel.section.is_slow:
                # Update the other sections later, so that other callbacks of the loop run first.
                self.document.add_next_tick_callback(self.update)
                return

    def _begin(self) -> None:
        """Add the pages; each stays empty until it is visible."""
        self._pages = experiment_pages(self.live)
        self._panels = [[Panel(part) for part in page.sections] for page in self._pages]
        self._tabs = Tabs(
            tabs=[
                TabPanel(
                    title=page.title, child=column(*(one.card for one in panels), sizing_mode="stretch_width")
                )
                for page, panels in zip(self._pages, self._panels, strict=True)
            ],
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=TABS)],
        )
        self._tabs.on_change("active", lambda name, old, new: self.update())
        self._page.children = [*self._top, self._tabs]

    def _listen(self, panel: Panel) -> None:
        """Show the details of the trial that is selected in the table."""
        table = panel.card.select_one({"type": DataTable})

        def select(name: str, old: list[int], new: list[int]) -> None:
            if new and new[0] < len(table.source.data["place"]):
                self._select(int(table.source.data["place"][new[0]]))

        table.source.selected.on_change("indices", select)

    def _select(self, place: int) -> None:
        self._selected = self.live.projection.trials[place].trial_id
        part = trial_section(self.live, place)
        if self._detail is None:
            number = next(n for n, page in enumerate(self._pages) if page.title == "Trials")
            self._detail = Panel(part)
            self._panels[number].append(self._detail)
            self._tabs.tabs[number].child.children.append(self._detail.card)
        else:
            self._detail.set_section(part)
        self.update()
