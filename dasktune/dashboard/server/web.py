"""The web server of the dashboard: a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.models import Div
from bokeh.server.server import Server
from tornado.ioloop import IOLoop
from tornado.web import OutputTransform

from dasktune.dashboard.report.style import BODY
from dasktune.dashboard.server.shelf import Shelf
from dasktune.dashboard.server.viewer import Viewer

__all__ = ["CONTENT_SECURITY_POLICY", "WebServer"]

logger = logging.getLogger(__name__)

#: Scripts and data come from this server alone, and no other page may frame this one. Bokeh's
#: callbacks need `unsafe-eval`, and its page has a script in itself.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)

_TEMPLATE: Final = f"""
{{% block preamble %}}
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{BODY}</style>
{{% endblock %}}
"""

#: Seconds between two looks at what has happened.
_PERIOD: Final = 0.5
#: Seconds for the thread to begin and to end.
_DEADLINE: Final = 30.0
#: Seconds for the last news to get to those who look, before the server ends.
_LAST_WORD: Final = 0.3


class _Headers(OutputTransform):
    """Adds to each answer what keeps browsers from doing more than is needed."""

    def transform_first_chunk(
        self, status_code: int, headers: Any, chunk: bytes, finishing: bool
    ) -> tuple[int, Any, bytes]:
        headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "same-origin"
        # Bokeh lets pages of all origins read some of its answers.
        headers.pop("Access-Control-Allow-Origin", None)
        return status_code, headers, chunk


class WebServer:
    """Serves experiments, read-only, until it is closed.

    Parameters
    ----------
    shelf : Shelf
        The experiments.
    port : int, default=0
        Where it listens. If somebody else does already, or for 0, it is a free port.
    address : str, default="localhost"
        Which interface it listens at; by default nobody reaches it from other machines.
    origins : sequence of str, default=()
        Other names by which browsers may call it, as ``host:port``.

    Raises
    ------
    OSError
        If it cannot listen there.

    Attributes
    ----------
    port : int
        Where it listens.
    """

    def __init__(
        self,
        shelf: Shelf,
        *,
        port: int = 0,
        address: str = "localhost",
        origins: Sequence[str] = (),
    ) -> None:
        self._shelf, self._address, self._origins = shelf, address, tuple(origins)
        self.port = port
        self._viewers: set[Viewer] = set()
        self._loop: Any = None
        self._closing: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dasktune-dashboard")
        self._thread.start()
        self._ready.wait(_DEADLINE)
        if self._error is not None:
            raise self._error

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        everywhere = self._address in ("", "0.0.0.0", "::")
        return f"http://{'localhost' if everywhere else self._address}:{self.port}/"

    def close(self) -> None:
        """End it; harmless if it has ended."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.add_callback(self._end)
            self._thread.join(_DEADLINE)

    def wait(self) -> None:
        """Wait until it ends."""
        self._thread.join()

    def _end(self) -> None:
        if self._closing is not None:
            self._closing.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            logger.debug("the dashboard has ended", exc_info=True)
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._closing = IOLoop.current(), asyncio.Event()
        self.port = self.port if self._is_free(self.port) else self._free_port()
        names = dict.fromkeys(("localhost", "127.0.0.1", self._address))
        server = Server(
            {"/": Application(FunctionHandler(self._open))},
            io_loop=self._loop,
            port=self.port,
            address=self._address,
            use_index=False,
            allow_websocket_origin=[*(f"{n}:{self.port}" for n in names if n), *self._origins],
            transforms=[_Headers],
            unused_session_lifetime_milliseconds=15_000,
            check_unused_sessions_milliseconds=5_000,
        )
        server.start()
        polling = asyncio.create_task(self._poll())
        self._ready.set()
        try:
            await self._closing.wait()
        finally:
            polling.cancel()
            await self._tell_the_last()
            server.stop()

    def _is_free(self, port: int) -> bool:
        if not port:
            return False
        try:
            with socket.create_server((self._address, port)):
                return True
        except OSError as error:
            logger.warning("the dashboard takes another port than %s: %s", port, error)
            return False

    def _free_port(self) -> int:
        """Return a port that is free now: it has to be known, as browsers tell it in `Origin`."""
        with socket.create_server((self._address, 0)) as probe:
            return int(probe.getsockname()[1])

    async def _poll(self) -> None:
        """Have experiments take in what has happened, beside the loop: a storage may be slow."""
        loop = asyncio.get_running_loop()
        while True:
            more = False
            for live in self._shelf.opened():
                if not live.is_wanted:
                    continue
                try:
                    more |= await loop.run_in_executor(None, live.poll)
                except Exception:
                    logger.exception("the dashboard could not take in what has happened")
            await asyncio.sleep(0.01 if more else _PERIOD)

    async def _tell_the_last(self) -> None:
        """Let those who look see how it ended."""
        viewers = tuple(self._viewers)
        for live in {viewer.live for viewer in viewers}:
            while await asyncio.get_running_loop().run_in_executor(None, live.poll):
                pass
        for viewer in viewers:
            viewer.document.add_next_tick_callback(viewer.update)
        if viewers:
            await asyncio.sleep(_LAST_WORD)

    def _open(self, document: Document) -> None:
        """Fill the document of a new session."""
        document.template = _TEMPLATE
        arguments = document.session_context.request.arguments
        name = arguments.get("experiment", [b""])[0].decode("utf-8", "replace")
        live = self._shelf.find(name)
        if live is None:
            document.title = "dasktune"
            text = self._shelf.listing()
            document.add_root(Div(text=text, disable_math=True, sizing_mode="stretch_width"))
            return
        live.viewers += 1
        viewer = Viewer(live, document)
        self._viewers.add(viewer)

        def leave(_: Any) -> None:
            live.viewers -= 1
            self._viewers.discard(viewer)

        document.on_session_destroyed(leave)
