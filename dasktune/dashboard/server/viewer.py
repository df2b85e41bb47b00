"""One who looks at an experiment: the models of a session, and what keeps them up to date."""

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

from dasktune.dashboard.report.header import LOST, header_html
from dasktune.dashboard.report.style import CARD, TABS
from dasktune.dashboard.server.controls import Commander, ControlBar
from dasktune.dashboard.server.draft import Draft, models_of
from dasktune.dashboard.server.live import Live
from dasktune.dashboard.server.pages import Page, Part, pages_of, trial_part
from dasktune.dashboard.text import shown

__all__ = ["COMING", "Panel", "Viewer"]

logger = logging.getLogger(__name__)

#: Milliseconds between two looks at what is new.
_PERIOD = 1000

#: Seconds between two signs of life that a page is given, and without one after which it says that
#: nothing is heard any more.
_BEAT = 5.0
_SILENT = 20.0

#: Tells whether the page can be seen; a browser's page behind another one need not be kept up.
_TELL_WHETHER_SEEN = """
const tell = () => { header.tags = [document.hidden ? "hidden" : "seen"] }
document.addEventListener("visibilitychange", tell)
if (document.hidden) tell()
"""

#: Looks whether there are signs of life. Nobody else can say that there are none: a server that is
#: killed or stands still says nothing.
_LISTEN = """
let heard = Date.now()
const show = (lost) => {
  if (lost !== header.css_classes.includes("dt-lost")) header.css_classes = lost ? ["dt-lost"] : []
}
const hear = () => { heard = Date.now(); show(false) }
for (const one of [pulse.properties.tags, header.properties.text]) one.change.connect(hear)
setInterval(() => {
  // Who is not seen is sent nothing.
  if (document.hidden) heard = Date.now()
  else if (Date.now() - heard > patience) show(true)
}, 500)
"""
#: What it is told at once if the connection ends.
_LOSE = 'header.css_classes = ["dt-lost"]'

#: What a figure is called as long as it is made.
COMING = "coming"


class Panel:
    """A part of a page, as one viewer sees it.

    Parameters
    ----------
    part : Part
        What is seen.

    Attributes
    ----------
    card : Model
        Where it is seen.
    is_waiting : bool
        Whether what it is to show is being made, and nothing else is there to be shown.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self.card: Any = column(sizing_mode="stretch_width", styles=CARD)
        self._models: list[Any] = []
        self.is_waiting = False
        #: What it looks like; None before it was seen.
        self._draft: Draft | None = None

    def update(self, live: Live) -> bool:
        """Make it look as it ought to, and return whether its models are others now.

        Parameters
        ----------
        live : Live
            The experiment, whose lock is held.
        """
        draft = self._asked(live)
        if draft is None or draft is self._draft:
            return False
        changes = None if self._draft is None else draft.changes_from(self._draft)
        if changes is None:
            self._replace(live, draft)
            return True
        changes.carry_out(self._models)
        self._draft = draft
        return False

    def show(self, part: Part) -> None:
        """Go over to another part.

        Parameters
        ----------
        part : Part
            What is to be seen.
        """
        self.part, self._draft = part, None

    def _asked(self, live: Live) -> Draft | None:
        if not self.part.is_slow:
            return live.draft(self.part.name, self.part.make)
        draft = live.draft_beside(self.part.name, self.part.make)
        self.is_waiting = draft is None
        if draft is None and not self.card.children:
            note = Paragraph(text="This is being drawn ...", disable_math=True, name=COMING)
            self.card.children = [note]
        return draft

    def _replace(self, live: Live, draft: Draft) -> None:
        if not self.part.is_slow:
            # The same function at the same moment gives models that are alike.
            draft = live.draft(self.part.name, self.part.make, at_once=True)
        self._draft = draft
        root = self.part.make() if draft.sketch is None else draft.drawn()
        self._models = models_of(root)
        self.card.children = [root]


class Viewer:
    """Shows an experiment in a document, and changes what is seen when there is news.

    Parameters
    ----------
    live : Live
        The experiment.
    document : Document
        The session's.
    commander : callable, optional
        Returns who takes commands; without it there is nothing to press.
    """

    def __init__(
        self,
        live: Live,
        document: Document,
        commander: Callable[[], Commander | None] | None = None,
    ) -> None:
        self.live, self.lives, self.document = live, (live,), document
        self._header = Div(
            text="",
            disable_math=True,
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=LOST)],
        )
        self._pulse: Any = Div(visible=False, name="pulse")
        self._beaten = time.monotonic()
        self._pages: list[Page] = []
        self._panels: list[list[Panel]] = []
        self._detail: Panel | None = None
        self._tabs: Any = None
        #: Whether the last moment to be brought up to date was none.
        self.has_missed = False
        #: The trial that is selected in the table.
        self._selected = ""
        self._top: list[Any] = [self._header]
        if commander is not None:
            self._top.append(ControlBar(commander, document, lambda: self._selected).root)
        self._top.append(self._pulse)
        self._page = column(*self._top, sizing_mode="stretch_width")
        name = live.chronicle.name or "experiment"
        document.title = f"{shown(name, 80)} · dasktune"
        document.add_root(self._page)
        document.add_periodic_callback(self._look, _PERIOD)
        document.js_on_event(DocumentReady, *self._scripts())
        # Bokeh 3.8 is the first that tells it; before, the signs of life must do.
        document.js_on_event("connection_lost", CustomJS(args={"header": self._header}, code=_LOSE))
        self._header.on_change("tags", lambda name, old, new: self._look())
        self.update()

    def _scripts(self) -> list[Any]:
        """Return what the page does by itself once it is there."""
        told = {"header": self._header}
        listening = {**told, "pulse": self._pulse, "patience": 1000 * _SILENT}
        return [
            CustomJS(args=told, code=_TELL_WHETHER_SEEN),
            CustomJS(args=listening, code=_LISTEN),
        ]

    @property
    def is_hidden(self) -> bool:
        """Whether nobody can see it: the browser is gone, or shows another page."""
        session = getattr(self.document.session_context, "session", None)
        is_gone = session is not None and not session.connection_count
        return is_gone or "hidden" in self._header.tags

    def _look(self) -> None:
        """Bring it up to date unless nobody looks any more: the session outlives its browser."""
        if self.is_hidden:
            return
        if time.monotonic() - self._beaten >= _BEAT:
            self._beaten = time.monotonic()
            self._pulse.tags = [self._beaten]
        self.update()

    def update(self) -> None:
        """Bring the header and the page that is seen up to date."""
        if not self.live.lock.acquire(blocking=False):
            self.has_missed = True  # records are being taken in; the next time is soon
            return
        self.has_missed = False
        try:
            self.document.hold("collect")
            self._update()
        except Exception:
            # A viewer is not to end for it, and the next moment may be better.
            logger.exception("a page of the dashboard could not be brought up to date")
        finally:
            self.document.unhold()
            self.live.lock.release()

    def _update(self) -> None:
        live = self.live
        gone = "driver is lost" if live.is_of_driver else "this page's server does not answer"
        self._header.text = live.once(
            "header", lambda: header_html(live.chronicle, live.state, gone)
        )
        if self._tabs is None:
            if not live.chronicle.trials:
                return
            self._begin()
        for panel in self._panels[self._tabs.active]:
            is_new = panel.update(live)
            self.has_missed |= panel.is_waiting
            if is_new and panel.part.name == "trials":
                self._listen(panel)
            if is_new and panel.part.is_slow:
                # The others after whoever else waits for something.
                self.document.add_next_tick_callback(self.update)
                return

    def _begin(self) -> None:
        """Add the pages, which are empty until they are seen."""
        self._pages = pages_of(self.live)
        self._panels = [[Panel(part) for part in page.parts] for page in self._pages]
        self._tabs = Tabs(
            tabs=[
                TabPanel(
                    title=page.title,
                    child=column(*(one.card for one in panels), sizing_mode="stretch_width"),
                )
                for page, panels in zip(self._pages, self._panels, strict=True)
            ],
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=TABS)],
        )
        self._tabs.on_change("active", lambda name, old, new: self.update())
        self._page.children = [*self._top, self._tabs]

    def _listen(self, panel: Panel) -> None:
        """Show the trial that is selected in the table."""
        table = panel.card.select_one({"type": DataTable})

        def select(name: str, old: list[int], new: list[int]) -> None:
            if new and new[0] < len(table.source.data["place"]):
                self._select(int(table.source.data["place"][new[0]]))

        table.source.selected.on_change("indices", select)

    def _select(self, place: int) -> None:
        self._selected = self.live.chronicle.trials[place].trial_id
        part = trial_part(self.live, place)
        if self._detail is None:
            number = next(n for n, page in enumerate(self._pages) if page.title == "Trials")
            self._detail = Panel(part)
            self._panels[number].append(self._detail)
            self._tabs.tabs[number].child.children.append(self._detail.card)
        else:
            self._detail.show(part)
        self.update()
