"""The common part of the pages that are no experiment's: they are small and drawn as a whole."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

from bokeh.document import Document
from bokeh.models import CustomJS

from dasktune.dashboard.server.repeated_errors import RepeatedErrors

logger = logging.getLogger(__name__)

#: Milliseconds between two updates.
_PERIOD: Final = 1000

#: Says that the server is gone, above a `Div` with a table. Arguments: `table`.
_SHOW_GONE: Final = """
const text = "<p role='status'><b>The server of this page does not answer.</b> This is the last known state; "
  + "to look on, run <code>dasktune dashboard</code> again and reload this page.</p>"
if (!table.text.startsWith(text)) table.text = text + table.text
"""


class SmallViewer(ABC):
    """Shows a small page in the document of a session, and updates it every second.

    All its methods run in the server's loop.

    Parameters
    ----------
    document : Document
        The document of the session.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        #: The errors of updates; after one the session stays open, as the next may succeed.
        self.errors = RepeatedErrors(logger)
        #: Whether the last update was skipped.
        self.needs_update = False

    @abstractmethod
    def update(self) -> None:
        """Update the page."""

    def attach(self, title: str, root: Any, status: Any) -> None:
        """Add the page to the document, and show it for the first time.

        Parameters
        ----------
        title : str
            The title of the browser's window.
        root : Model
            The layout of the page.
        status : Model
            The model that says that the server is lost.
        """
        # The page says itself what has happened; Bokeh's banner promises to connect again.
        self.document.config.notify_connection_status = False
        self.document.js_on_event("connection_lost", CustomJS(args={"table": status}, code=_SHOW_GONE))
        self.document.title = f"{title} · dasktune"
        self.document.add_root(root)
        self.document.add_periodic_callback(self.update, _PERIOD)
        self.update()

    def show_end(self, until: float) -> Iterator[None]:
        """Show the last state, because the server ends.

        Parameters
        ----------
        until : float
            The time by `time.monotonic` at which the server ends; the page is drawn at once.

        Yields
        ------
        None
            After the only step.
        """
        self.update()
        yield
