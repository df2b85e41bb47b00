"""One who looks at an experiment: the models of a session, and what keeps them up to date."""

from __future__ import annotations

import logging
from typing import Any

from bokeh.document import Document
from bokeh.layouts import column
from bokeh.models import DataTable, Div, InlineStyleSheet, TabPanel, Tabs

from dasktune.dashboard.report.header import header_html
from dasktune.dashboard.report.style import CARD, TABS
from dasktune.dashboard.server.draft import Draft, models_of
from dasktune.dashboard.server.live import Live
from dasktune.dashboard.server.pages import Page, Part, pages_of, trial_part
from dasktune.dashboard.text import shown

__all__ = ["Viewer"]

logger = logging.getLogger(__name__)

#: Milliseconds between two looks at what is new.
_PERIOD = 1000


class _Panel:
    """A part of a page, as one viewer sees it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.card: Any = column(sizing_mode="stretch_width", styles=CARD)
        self._models: list[Any] = []
        #: What it looks like; None before it was seen.
        self._draft: Draft | None = None

    def update(self, live: Live) -> bool:
        """Make it look as it ought to, and return whether its models are others now."""
        draft = live.draft(self.part.name, self.part.make)
        if draft is self._draft:
            return False
        changes = None if self._draft is None else draft.changes_from(self._draft)
        if changes is None:
            self._replace(live)
            return True
        changes.carry_out(self._models)
        self._draft = draft
        return False

    def show(self, part: Part) -> None:
        """Go over to another part."""
        self.part, self._draft = part, None

    def _replace(self, live: Live) -> None:
        # The same function at the same moment gives models that are alike.
        self._draft = live.draft(self.part.name, self.part.make, at_once=True)
        root = self.part.make()
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
    """

    def __init__(self, live: Live, document: Document) -> None:
        self.live, self.document = live, document
        self._header = Div(text="", disable_math=True, sizing_mode="stretch_width")
        self._pages: list[Page] = []
        self._panels: list[list[_Panel]] = []
        self._detail: _Panel | None = None
        self._tabs: Any = None
        self._page = column(self._header, sizing_mode="stretch_width")
        name = live.chronicle.name or "experiment"
        document.title = f"{shown(name, 80)} · dasktune"
        document.add_root(self._page)
        document.add_periodic_callback(self.update, _PERIOD)
        self.update()

    def update(self) -> None:
        """Bring the header and the page that is seen up to date."""
        if not self.live.lock.acquire(blocking=False):
            return  # records are being taken in; the next time is soon
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
        self._header.text = header_html(self.live.chronicle, self.live.state)
        if self._tabs is None:
            if not self.live.chronicle.trials:
                return
            self._begin()
        for panel in self._panels[self._tabs.active]:
            if panel.update(self.live) and panel.part.name == "trials":
                self._listen(panel)

    def _begin(self) -> None:
        """Add the pages, which are empty until they are seen."""
        self._pages = pages_of(self.live)
        self._panels = [[_Panel(part) for part in page.parts] for page in self._pages]
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
        self._page.children = [self._header, self._tabs]

    def _listen(self, panel: _Panel) -> None:
        """Show the trial that is selected in the table."""
        table = panel.card.select_one({"type": DataTable})

        def select(name: str, old: list[int], new: list[int]) -> None:
            if new and new[0] < len(table.source.data["place"]):
                self._select(int(table.source.data["place"][new[0]]))

        table.source.selected.on_change("indices", select)

    def _select(self, place: int) -> None:
        part = trial_part(self.live, place)
        if self._detail is None:
            number = next(n for n, page in enumerate(self._pages) if page.title == "Trials")
            self._detail = _Panel(part)
            self._panels[number].append(self._detail)
            self._tabs.tabs[number].child.children.append(self._detail.card)
        else:
            self._detail.show(part)
        self.update()
