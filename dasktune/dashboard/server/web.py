"""The web server of the dashboard: a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.models import Div
from bokeh.server.server import Server
from tornado.ioloop import IOLoop
from tornado.web import OutputTransform

from dasktune.dashboard.report.style import BODY
from dasktune.dashboard.server.comparison import MOST_COMPARED, ComparisonViewer, picker
from dasktune.dashboard.server.controls import Commander
from dasktune.dashboard.server.entrance import TokenEntrance
from dasktune.dashboard.server.live import Live
from dasktune.dashboard.server.shelf import Shelf
from dasktune.dashboard.server.viewer import Viewer
from dasktune.guard import LOCAL_NAMES

__all__ = ["CONTENT_SECURITY_POLICY", "WebServer"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

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
#: Seconds between two looks at those who wait for something that was being made.
_MOMENT: Final = 0.1
#: Seconds for the thread to begin.
_DEADLINE: Final = 30.0
#: Seconds for it to end: the driver waits for that, and must not for long, whatever is wrong.
_FAREWELL: Final = 2.0
#: Seconds for what has happened last to be taken in.
_LAST_NEWS: Final = 1.0
#: Seconds for the last news to get to those who look, before the server ends.
_LAST_WORD: Final = 0.3


async def _beside(call: Callable[[], T]) -> T:
    """Call in a thread that keeps nobody from ending, unlike those of an executor."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(cast("T", value))
        else:
            future.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except Exception as caught:
            error = caught
        with suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, daemon=True, name="dasktune-dashboard-reader").start()
    return await future


async def _take_all(lives: set[Live]) -> None:
    for live in lives:
        while await _beside(live.poll):
            pass


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
    """Serves experiments until it is closed; read-only, unless it is given who takes commands.

    With commands, or where other machines can reach it, only those see the pages who have the
    token of its `link`.

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
    commander : callable, optional
        Returns who takes commands; None as long as there is nobody.

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
        commander: Callable[[], Commander | None] | None = None,
    ) -> None:
        self._shelf, self._address, self._origins = shelf, address, tuple(origins)
        self.port = port
        self._commander = commander
        guarded = commander is not None or address not in LOCAL_NAMES
        self._entrance = TokenEntrance() if guarded else None
        self._viewers: set[Viewer | ComparisonViewer] = set()
        self._loop: Any = None
        self._closing: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dasktune-dashboard")
        self._thread.start()
        if not self._ready.wait(_DEADLINE):
            raise TimeoutError(f"the dashboard has not begun within {_DEADLINE:g} s")
        if self._error is not None:
            raise self._error

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        everywhere = self._address in ("", "0.0.0.0", "::")
        return f"http://{'localhost' if everywhere else self._address}:{self.port}/"

    @property
    def link(self) -> str:
        """The same with the token, if one is needed: for the user alone, and for no log."""
        return self.url if self._entrance is None else f"{self.url}?token={self._entrance.token}"

    def close(self) -> None:
        """End it, or leave it alone after two seconds; harmless if it has ended."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.add_callback(self._end)
            self._thread.join(_FAREWELL)
            if self._thread.is_alive():
                logger.warning("the dashboard has not ended within %g s", _FAREWELL)

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
            **({} if self._entrance is None else {"auth_provider": self._entrance}),
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
        drawn = time.thread_time()
        while True:
            more, rest = False, 0.0
            drawn, before = time.thread_time(), drawn
            for live in self._shelf.opened():
                if not live.is_wanted:
                    continue
                try:
                    more |= await _beside(live.poll)
                    self._make_up(live)
                except Exception:
                    logger.exception("the dashboard could not take in what has happened")
                waits = live.viewers > 0 and not live.has_caught_up
                rest += live.pace.rest(drawn - before, hurry=waits)
            await self._wait(max(rest, 0.01 if more else _PERIOD))

    async def _wait(self, seconds: float) -> None:
        """Wait, and see to those meanwhile who wait for something that was being made."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _MOMENT))
            for live in self._shelf.opened():
                self._make_up(live)

    def _make_up(self, live: Live) -> None:
        """Bring those up to date whose moment came while something was taken in, or drawn."""
        for viewer in self._viewers:
            if live in viewer.lives and viewer.has_missed:
                viewer.has_missed = False
                viewer.document.add_next_tick_callback(viewer.update)

    async def _tell_the_last(self) -> None:
        """Let those who look see how it ended."""
        viewers = tuple(self._viewers)
        try:
            await asyncio.wait_for(
                _take_all({live for one in viewers for live in one.lives}), _LAST_NEWS
            )
        except asyncio.TimeoutError:
            logger.debug("what happened last was not shown: it took too long to take it in")
        for viewer in viewers:
            viewer.document.add_next_tick_callback(viewer.update)
        if viewers:
            await asyncio.sleep(_LAST_WORD)

    def _open(self, document: Document) -> None:
        """Fill the document of a new session."""
        document.template = _TEMPLATE
        arguments = document.session_context.request.arguments
        names = [one.decode("utf-8", "replace") for one in arguments.get("compare", [])]
        if names:
            found = map(self._shelf.find, dict.fromkeys(names[:MOST_COMPARED]))
            lives = [live for live in found if live is not None]
            if lives:
                self._welcome(ComparisonViewer(lives, document))
                return
        name = arguments.get("experiment", [b""])[0].decode("utf-8", "replace")
        live = self._shelf.find(name)
        if live is not None:
            self._welcome(Viewer(live, document, self._commander))
            return
        document.title = "dasktune"
        text = self._shelf.listing()
        document.add_root(Div(text=text, disable_math=True, sizing_mode="stretch_width"))
        names = self._shelf.names()
        if len(names) > 1:
            document.add_root(picker(names))

    def _welcome(self, viewer: Viewer | ComparisonViewer) -> None:
        """Serve one who looks until the session ends."""
        for live in viewer.lives:
            live.viewers += 1
        self._viewers.add(viewer)

        def leave(_: Any) -> None:
            self._viewers.discard(viewer)
            for live in viewer.lives:
                live.viewers -= 1

        viewer.document.on_session_destroyed(leave)
