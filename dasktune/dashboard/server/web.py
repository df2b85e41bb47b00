"""The web server of the dashboard: a thread with its own event loop.

All documents, viewers and callbacks of Bokeh belong to this loop. Other threads reach it only by
`call_soon_threadsafe`, `IOLoop.add_callback` or `Document.add_next_tick_callback`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

from bokeh.application import Application
from bokeh.application.application import SessionContext
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.models import CustomJS, Div
from bokeh.server.server import BaseServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop

from dasktune.control.http_guard import LOCAL_NAMES
from dasktune.control.local_server import BoundedServer, BoundPort, url_host
from dasktune.dashboard.report.style import BODY
from dasktune.dashboard.server.controls import Commander
from dasktune.dashboard.server.experiment_source import ExperimentSource
from dasktune.dashboard.server.listing.comparison_viewer import MOST_COMPARED, ComparisonViewer
from dasktune.dashboard.server.listing.list_viewer import ListViewer
from dasktune.dashboard.server.listing.metric_select import MetricSelect, chosen_metric
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.repeated_errors import RepeatedErrors
from dasktune.dashboard.server.request_gate import GuardedApplication, RequestGate
from dasktune.dashboard.server.viewer import Viewer
from dasktune.full_collections import quick_full_collections
from dasktune.trial.metrics import Mode

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: The value instead of a step when a viewer has taken all of them.
_NO_STEP: Final = object()

_AnyViewer: TypeAlias = Viewer | ComparisonViewer | ListViewer

_TEMPLATE: Final = f"""
{{% block preamble %}}
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{BODY}</style>
{{% endblock %}}
{{% block contents %}}
<p class="dt-loading">Loading the dashboard ...</p>
<noscript><p>The dashboard needs JavaScript. Without it, <code>dasktune ls</code> and
<code>dasktune trials</code> show experiments in a terminal.</p></noscript>
<main>
{{{{ super() }}}}
</main>
{{% endblock %}}
"""

#: What the log says of failures that the server survives.
_NO_UPDATE: Final = "the dashboard could not update its pages"
_NO_LIST: Final = "the dashboard could not read the list of experiments"
_NO_FIND: Final = "the dashboard could not look for an experiment"

_BUSY: Final = "The dashboard has too many viewers. Close some, and reload this page in 15 seconds."

#: Seconds between two polls.
_PERIOD: Final = 0.5
#: Maximum share of the time in which the list of experiments is read once it is complete, and the
#: longest pause in seconds: a storage that takes long to answer takes no processor time.
_LIST_SHARE: Final = 0.03
_LIST_PAUSE: Final = 15.0
#: Seconds between two attempts to update viewers that could not be updated.
_RETRY_SECONDS: Final = 0.1
#: Maximum seconds to wait for the thread to start.
_START_TIMEOUT: Final = 30.0
#: Maximum seconds from a signal to its handler while the main thread waits for the server.
_SIGNAL_SECONDS: Final = 0.5

#: Maximum number of open connections.
_MAX_CONNECTIONS: Final = 256
#: Maximum number of viewers, and of those to which no browser has connected yet. A viewer takes a
#: fifth of a second to make, and one without a browser is kept for 15 s.
_MAX_VIEWERS: Final = 64
_MAX_UNCONNECTED: Final = 12
#: Maximum sizes in bytes: of a request's headers, of its body, and of a message from a browser.
_MAX_HEADERS: Final = 32 << 10
_MAX_BODY: Final = 64 << 10
_MAX_MESSAGE: Final = 1 << 20
#: Seconds until a connection without a request is closed, and in which a body must arrive.
_IDLE_TIMEOUT: Final = 60.0
_BODY_TIMEOUT: Final = 15.0


async def _run_in_thread(call: Callable[[], T]) -> T:
    """Return the result of `call` in a daemon thread; an executor would delay the process's end.

    If this coroutine is cancelled, the thread continues, and its result is ignored.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_outcome(value: T | None, error: BaseException | None) -> None:
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
        with suppress(RuntimeError):  # the loop was closed while the call ran
            loop.call_soon_threadsafe(set_outcome, value, error)

    threading.Thread(target=work, daemon=True, name="dasktune-dashboard-reader").start()
    return await future


def _is_connected(document: Document) -> bool:
    context = document.session_context
    session = None if context is None else context.session
    return session is not None and session.connection_count > 0


class PageApplication(Application):  # type: ignore[misc]
    """Ends the sessions of browsers that have left without stopping the other threads.

    Bokeh looks for garbage among all objects of the process at the end of each session. In a driver
    with the pages of 10,000 trials that takes 0.2 s, in which no other thread runs.
    """

    def initialize_document(self, doc: Document) -> None:
        """Add the page of its session to a new document."""
        destroy = doc.destroy

        def destroy_quickly(session: Any) -> None:
            with quick_full_collections():
                destroy(session)

        # The server makes the document, and of a class of its own choice.
        doc.destroy = destroy_quickly
        super().initialize_document(doc)

    async def on_session_destroyed(self, session_context: Any) -> None:
        """Call what waits for the end of a session; Bokeh looks for garbage here, too."""
        with quick_full_collections():
            await super().on_session_destroyed(session_context)


class _PreparedHandler(FunctionHandler):  # type: ignore[misc]
    """Fills the document of a new session after a coroutine that may wait for a storage.

    Parameters
    ----------
    prepare : callable
        The coroutine function, called with the context of the session.
    fill : callable
        Called with the document once the coroutine has ended, before anything else runs.
    """

    def __init__(
        self, prepare: Callable[[SessionContext], Awaitable[None]], fill: Callable[[Document], None]
    ) -> None:
        super().__init__(fill)
        self._prepare = prepare

    async def on_session_created(self, session_context: SessionContext) -> None:
        """Prepare the session; Bokeh waits for this, and its loop serves others meanwhile."""
        await self._prepare(session_context)


@dataclass(frozen=True, slots=True)
class _Address:
    """What the address of a page names."""

    #: The experiments to compare; otherwise the single experiment, and the metric to show.
    compared: tuple[str, ...]
    name: str
    metric: tuple[str, Mode] | None

    @classmethod
    def of(cls, arguments: Mapping[str, Sequence[bytes]], *, offers_metrics: bool) -> _Address:
        """Return what the arguments of a request name."""
        names = [one.decode("utf-8", "replace") for one in arguments.get("compare", [])]
        name = arguments.get("experiment", [b""])[0].decode("utf-8", "replace")
        metric = chosen_metric(arguments) if offers_metrics else None
        return cls(tuple(dict.fromkeys(names[:MOST_COMPARED])), name, metric)


@dataclass(frozen=True, slots=True)
class _PageContent:
    """The experiments that a page shows; without any it shows the list."""

    compared: tuple[LiveExperiment, ...] = ()
    live: LiveExperiment | None = None
    #: The metric that `live` has as its goal, if it is another one than the experiment's.
    metric: tuple[str, Mode] | None = None


def _find(experiments: ExperimentSource, address: _Address) -> _PageContent:
    """Return the experiments of an address; it may wait for the storage."""
    if address.compared:
        found = map(experiments.find, address.compared)
        # Several names may lead to one experiment, whose lock a viewer can take only once.
        lives = tuple(dict.fromkeys(live for live in found if live is not None))
        if lives:
            return _PageContent(lives)
    if address.metric is not None:
        live = experiments.find_by_metric(address.name, *address.metric)
        if live is not None:
            return _PageContent(live=live, metric=address.metric)
    return _PageContent(live=experiments.find(address.name))


async def _poll_all(lives: set[LiveExperiment]) -> None:
    """Poll experiments until all their records are applied."""
    for live in lives:
        try:
            while await _run_in_thread(live.poll):
                pass
        except Exception:
            # The pages show what was read before.
            logger.exception("the last records of an experiment could not be read")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLimits:
    """How long the end of a server may take. The driver waits for it, so it must be short."""

    #: Maximum seconds for the last poll.
    poll_s: float = 1.0
    #: Maximum seconds from the beginning of the end until all pages have been drawn for the last
    #: time.
    draw_s: float = 2.0
    #: Maximum seconds for the last figure to be drawn, and for the browser to show it.
    send_s: float = 0.7
    #: Maximum seconds for which `PageServer.close` waits for the thread to end.
    close_s: float = 3.0


class PageServer:
    """Serves pages of experiments as `WebServer` does, with viewers and limits that may be chosen.

    Parameters
    ----------
    experiments : ExperimentSource
        The experiments.
    port : int, default=0
        The port. If it is in use, or 0, a free port is chosen.
    address : str, default="localhost"
        The interface; by default other machines cannot reach the server.
    origins : sequence of str, default=()
        Other names of this server that browsers may use, as ``host:port``.
    commander : callable, optional
        Returns the object that takes commands; None while the experiment does not run.
    make_viewer : callable, optional
        Makes the viewer of an experiment for a new session; by default `Viewer`, whose arguments it
        gets.
    end_limits : EndLimits, optional
        How long the end of the server may take; by default ``EndLimits()``.

    Raises
    ------
    OSError
        If it cannot listen at this address.

    Attributes
    ----------
    port : int
        The port at which it listens.
    """

    def __init__(
        self,
        experiments: ExperimentSource,
        *,
        port: int = 0,
        address: str = "localhost",
        origins: Sequence[str] = (),
        commander: Callable[[], Commander | None] | None = None,
        make_viewer: Callable[..., Viewer] = Viewer,
        end_limits: EndLimits | None = None,
    ) -> None:
        self._make_viewer = make_viewer
        self._end_limits = EndLimits() if end_limits is None else end_limits
        self._experiments, self._address, self._origins = experiments, address, tuple(origins)
        self.port = port
        self._commander = commander
        guarded = commander is not None or address not in LOCAL_NAMES
        self._gate = RequestGate(address, self._origins, guarded=guarded)
        #: The viewers, each with the element by which its browser confirms what it has shown.
        self._viewers: dict[_AnyViewer, Div] = {}
        #: What the page of each session that is being created shows, by the session's id.
        self._found: dict[str, _PageContent] = {}
        #: Held while a thread looks for experiments: a slow storage gets one such thread.
        self._finding = asyncio.Lock()
        self._errors = RepeatedErrors(logger)
        self._loop: Any = None
        self._http: BoundedServer | None = None
        self._closing: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._ready, self._ended = threading.Event(), threading.Event()
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="dasktune-dashboard")
        self._thread.start()
        try:
            is_ready = self._ready.wait(_START_TIMEOUT)
        except BaseException:
            self._abandon()
            raise
        if not is_ready:
            self._abandon()
            raise TimeoutError(f"the dashboard did not start within {_START_TIMEOUT:g} s")
        if self._error is not None:
            raise self._error

    @property
    def url(self) -> str:
        """The address for a browser on this machine."""
        return f"http://{url_host(self._address)}:{self.port}/"

    @property
    def link(self) -> str:
        """The address with the token, if one is needed. It is for the user alone: never log it."""
        gate = self._gate
        return f"{self.url}{gate.prefix[1:]}/?token={gate.token}" if gate.token else self.url

    def close(self) -> None:
        """Stop the server, at most for `EndLimits.close_s`. A second call does nothing."""
        timeout = self._end_limits.close_s
        if self._loop is not None and self._thread.is_alive():
            # The loop may close before this call: Tornado then ignores the callback.
            self._loop.add_callback(self._end)
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.warning("the dashboard did not stop within %g s", timeout)

    def wait(self) -> None:
        """Wait until the server has stopped.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C; the server is still open then.
        """
        # A signal that comes just before the main thread blocks does not wake it, and neither does
        # one that the system delivers to another thread, so it must not block for long. After an
        # exception inside `join` Python takes the thread for dead, and `close` would not close it.
        while not self._ended.wait(_SIGNAL_SECONDS):
            pass
        self._thread.join()

    def _abandon(self) -> None:
        """End the server as soon as it has started, because its caller cannot close it."""
        # The thread sets `_loop` before it reads the flag. If it is not set yet, the thread will
        # see the flag; otherwise the loop runs, and the callback arrives.
        self._is_abandoned = True
        if self._loop is not None:
            self._loop.add_callback(self._end)

    def _end(self) -> None:
        if self._closing is not None:
            self._closing.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            # Before that, the constructor raises it.
            if self._ready.is_set():
                logger.exception("the dashboard has ended because of an error")
        finally:
            self._ready.set()
            self._ended.set()

    async def _serve(self) -> None:
        self._loop, self._closing = IOLoop.current(), asyncio.Event()
        bound = self._bind()
        self.port = bound.port
        application = GuardedApplication(
            {"/": PageApplication(_PreparedHandler(self._find, self._open))},
            gate=self._gate,
            accept=self._accept,
            use_index=False,
            unused_session_lifetime_milliseconds=15_000,
            check_unused_sessions_milliseconds=5_000,
            websocket_max_message_size_bytes=_MAX_MESSAGE,
        )
        http = self._http = BoundedServer(
            application,
            max_connections=_MAX_CONNECTIONS,
            max_header_size=_MAX_HEADERS,
            max_body_size=_MAX_BODY,
            idle_connection_timeout=_IDLE_TIMEOUT,
            body_timeout=_BODY_TIMEOUT,
        )
        http.add_sockets(bound.sockets)
        server = BaseServer(self._loop, application, http)
        server.start()
        polling = asyncio.create_task(self._poll())
        listing = asyncio.create_task(self._refresh_list())
        self._ready.set()
        if self._is_abandoned:
            self._end()
        try:
            await self._closing.wait()
        finally:
            # A reader thread may still be inside `poll` after this. The last poll below then waits
            # for the lock in a thread of its own, and the loop remains free.
            polling.cancel()
            listing.cancel()
            try:
                await self._show_final_state()
            except Exception:
                logger.exception("the dashboard could not show the last state of its experiments")
            for live in self._experiments.opened():
                if live.forecast is not None:
                    live.forecast.stop()
            server.stop()
            bound.close()

    def _accept(self, request: HTTPServerRequest) -> None:
        if self._http is not None:
            self._http.accept(request)

    def _bind(self) -> BoundPort:
        try:
            return BoundPort(self._address, self.port)
        except OSError as error:
            if not self.port:
                raise
            bound = BoundPort(self._address)
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            logger.warning("port %d %s: the dashboard listens at port %d", self.port, why, bound.port)
            return bound

    async def _poll(self) -> None:
        """Poll the experiments in a loop, each poll in a thread: a storage may be slow."""
        drawn = time.thread_time()
        while True:
            drawn, before = time.thread_time(), drawn
            try:
                await self._wait(await self._poll_opened(drawn - before))
            except Exception as error:
                # Without this task all pages would stay stale, and say nothing.
                self._errors.failed(_NO_UPDATE, error)
                await asyncio.sleep(_PERIOD)
            else:
                self._errors.succeeded(_NO_UPDATE)

    async def _poll_opened(self, drawn: float) -> float:
        """Poll each experiment once; return the seconds until the next poll.

        Parameters
        ----------
        drawn : float
            Processor seconds of this loop since the last call.
        """
        more, rest = False, 0.0
        for live in self._experiments.opened():
            if not live.needs_polling:
                continue
            failure = f"the dashboard could not poll an experiment: {live.projection.name!r}"
            try:
                more |= await _run_in_thread(live.poll)
                self._update_waiting(live)
            except Exception as error:
                self._errors.failed(failure, error)
            else:
                self._errors.succeeded(failure)
            if not live.is_in_driver:
                # Nothing else in this process needs the time. A pause for the figures of one
                # experiment would keep the journals of all others unread.
                continue
            waits = live.viewers > 0 and not live.has_caught_up
            rest += live.cpu_budget.pause_seconds(drawn, hurry=waits)
        return max(rest, 0.01 if more else _PERIOD)

    async def _refresh_list(self) -> None:
        """Read for the list of experiments while somebody looks at it, each time in a thread."""
        has_read_all = False
        while True:
            pause = _PERIOD
            if any(isinstance(one, ListViewer) and not one.is_hidden for one in self._viewers):
                began = time.monotonic()
                try:
                    more = await _run_in_thread(self._experiments.refresh)
                except Exception as error:
                    self._errors.failed(_NO_LIST, error)
                    more = False
                else:
                    self._errors.succeeded(_NO_LIST)
                has_read_all |= not more
                took = time.monotonic() - began
                # The first time a viewer waits for it; later it takes a small share of the time.
                pause = min(max(_PERIOD, took / _LIST_SHARE - took), _LIST_PAUSE) if has_read_all else 0.0
            await asyncio.sleep(pause)

    async def _wait(self, seconds: float) -> None:
        """Wait, and meanwhile retry the updates of viewers that could not be updated."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _RETRY_SECONDS))
            for live in self._experiments.opened():
                self._update_waiting(live)

    def _update_waiting(self, live: LiveExperiment) -> None:
        """Schedule updates of viewers that found the lock held or a figure not ready.

        A session may end before its update runs. Bokeh then drops the callback: both happen in the
        loop, never at the same time.
        """
        for viewer in self._viewers:
            if live in viewer.lives and viewer.needs_update:
                viewer.needs_update = False
                viewer.document.add_next_tick_callback(viewer.update)

    async def _show_final_state(self) -> None:
        """Poll for the last time, and show the final state to all viewers, on all their pages."""
        # Without a connection there is no browser that could show anything.
        lives = {live for one in self._viewers if _is_connected(one.document) for live in one.lives}
        limits = self._end_limits
        until = time.monotonic() + limits.draw_s
        try:
            await asyncio.wait_for(_poll_all(lives), limits.poll_s)
        except asyncio.TimeoutError:
            logger.debug("the last records are not shown: reading them took too long")
        # Browsers may have left or come during the poll; from here on, nothing else runs until each
        # viewer has a future.
        viewers = [one for one in self._viewers if _is_connected(one.document)]
        if viewers:
            shown = [self._shown_end(viewer, until) for viewer in viewers]
            # A session that has ended meanwhile drops its callbacks: do not wait for it for ever.
            left = until - time.monotonic()
            await asyncio.wait(shown, timeout=max(left, 0.0) + limits.send_s)

    def _shown_end(self, viewer: _AnyViewer, until: float) -> asyncio.Future[None]:
        """Schedule the last update of a viewer; return a future that is done once it is shown."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish() -> None:
            if not future.done():
                future.set_result(None)

        steps, receipt = viewer.show_end(until), self._viewers[viewer]

        def ask_for_receipt() -> None:
            # The end of a connection discards what a busy browser has not read yet.
            if not _is_connected(viewer.document):
                finish()
                return
            receipt.on_change("name", lambda attr, old, new: finish())
            receipt.tags = ["end"]

        def take_step() -> None:
            goes_on = False
            try:
                goes_on = next(steps, _NO_STEP) is not _NO_STEP
            finally:
                # Bokeh sends what a callback has changed before it runs the next one.
                viewer.document.add_next_tick_callback(take_step if goes_on else ask_for_receipt)

        viewer.document.add_next_tick_callback(take_step)
        return future

    async def _find(self, context: SessionContext) -> None:
        """Find what the page of a new session shows, without keeping the loop from other viewers.

        Nothing else runs between the end of this coroutine and `_open`. So no other session can
        drop a view by another metric before this session counts as its viewer.
        """
        if self._is_busy():
            return
        experiments = self._experiments
        address = _Address.of(context.request.arguments, offers_metrics=experiments.offers_metrics)
        if not address.compared and address.metric is None:
            live = experiments.known(address.name)
            if live is not None or not address.name:
                self._found[context.id] = _PageContent(live=live)
                return
        try:
            async with self._finding:
                self._found[context.id] = await _run_in_thread(partial(_find, experiments, address))
        except Exception as error:
            # The page shows the list, which says why the directory cannot be read.
            self._errors.failed(_NO_FIND, error)
        else:
            self._errors.succeeded(_NO_FIND)

    def _open(self, document: Document) -> None:
        """Fill the document of a new session."""
        document.template = _TEMPLATE
        found = self._found.pop(document.session_context.id, _PageContent())
        if self._is_busy():
            document.add_root(Div(text=_BUSY, disable_math=True, sizing_mode="stretch_width"))
            return
        if found.compared:
            self._add_viewer(ComparisonViewer(found.compared, document))
        elif found.live is not None:
            select = MetricSelect(found.metric) if self._experiments.offers_metrics else None
            has_list = self._experiments.has_list
            options = {"has_list": has_list, "draws_later": True}
            self._add_viewer(self._make_viewer(found.live, document, self._commander, select, **options))
        else:
            self._add_viewer(ListViewer(self._experiments, document))

    def _is_busy(self) -> bool:
        unconnected = sum(not _is_connected(viewer.document) for viewer in self._viewers)
        return len(self._viewers) >= _MAX_VIEWERS or unconnected >= _MAX_UNCONNECTED

    def _add_viewer(self, viewer: _AnyViewer) -> None:
        """Keep a viewer up to date until its session ends."""
        for live in viewer.lives:
            live.viewers += 1
        # An element that shows nothing. The browser changes its name when it gets a tag, and so
        # confirms all that was sent before.
        receipt = Div(visible=False)
        receipt.js_on_change("tags", CustomJS(code="cb_obj.name = 'shown'"))
        viewer.document.add_root(receipt)
        self._viewers[viewer] = receipt

        # Bokeh calls this in the loop, so no update of the viewer runs at the same time, and only
        # the loop changes `viewers`. A reader thread that reads an old count does no harm: it
        # updates the density once more or once less, and figures update it again.
        def leave(_: Any) -> None:
            self._viewers.pop(viewer, None)
            for live in viewer.lives:
                live.viewers -= 1

        viewer.document.on_session_destroyed(leave)


class WebServer(PageServer):
    """Serves pages of experiments until it is closed; read-only without a commander.

    With a commander, or if other machines can reach it, the pages require the token in `link`.

    Parameters
    ----------
    experiments : ExperimentSource
        The experiments.
    port : int, default=0
        The port. If it is in use, or 0, a free port is chosen.
    address : str, default="localhost"
        The interface; by default other machines cannot reach the server.
    origins : sequence of str, default=()
        Other names of this server that browsers may use, as ``host:port``.
    commander : callable, optional
        Returns the object that takes commands; None while the experiment does not run.

    Raises
    ------
    OSError
        If it cannot listen at this address.

    Attributes
    ----------
    port : int
        The port at which it listens.
    """

    def __init__(
        self,
        experiments: ExperimentSource,
        *,
        port: int = 0,
        address: str = "localhost",
        origins: Sequence[str] = (),
        commander: Callable[[], Commander | None] | None = None,
    ) -> None:
        super().__init__(experiments, port=port, address=address, origins=origins, commander=commander)
