"""Publishes the page of an experiment in the dashboard of Dask's scheduler; runs in the driver.

While the page has no viewer, the driver only waits for one, with a call every few seconds. For a
viewer it reads the experiment's journal as any reader would, makes the page in a thread and sends
the changes. An error of the page is logged and has no other effect.

All methods but `open` and `close` run on the client's event loop, except that `_next_update` and
`_start_following` run in the page's one thread. One `_post` is under way at a time, so updates are
made and sent in order.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.resources
import logging
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import cloudpickle
from distributed import Client, default_client
from distributed.utils import format_dashboard_link

from dasktune.cluster.scheduler_page import page_plugin
from dasktune.cluster.scheduler_page.page_plugin import PROTOCOL, DashboardPagePlugin
from dasktune.progress.background_stream import print_promptly
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_follower import JournalFollower

if TYPE_CHECKING:
    from dasktune.cluster.connection.connect import Connection
    from dasktune.dashboard.server.live_experiment import LiveExperiment
    from dasktune.dashboard.server.page_stream import Broadcast, PageUpdate

logger = logging.getLogger(__name__)

#: Seconds for which one call waits for a viewer. It is also the longest time between two calls,
#: which show the scheduler that the driver is alive.
_POLL_SECONDS: Final = 5.0
#: The longest pause in seconds to keep to `PublishingLimits.cpu_share`.
_LONGEST_PAUSE: Final = 60.0
#: Seconds between the first two attempts to reach a lost scheduler, and between any two at most.
_RETRY: Final = (0.5, 30.0)


class _Forgotten(Exception):
    """The scheduler no longer has the experiment, or its plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingLimits:
    """When a page is published, and how much of the driver's time it may take."""

    #: Seconds after which the page is published: the first trials would wait until it is.
    delay_s: float = 0.3
    #: Shortest time in seconds between two updates, with the journal on a disk.
    period_s: float = 1.0
    #: The same with the journal on a remote storage, where each update costs requests.
    far_period_s: float = 5.0
    #: Largest share of one CPU's time for the page while it has a viewer. A busy driver is slower
    #: by that share.
    cpu_share: float = 0.05
    #: Maximum seconds to report the experiment's end to the scheduler. The user waits for the
    #: results meanwhile.
    report_end_s: float = 1.0
    #: Maximum seconds to draw the last state while a browser shows the page; the user waits, too.
    draw_end_s: float = 5.0


class PagePublisher:
    """Publishes an experiment's page on the scheduler, and keeps it up to date.

    Parameters
    ----------
    connection : Connection
        The connection to the cluster.
    storage : Storage
        The experiment's directory.
    name : str
        The experiment's name.
    dashboard_url : str
        A link to one of the pages of Dask's dashboard; empty for the scheduler's usual address.
    on_link : callable
        Called, on the client's event loop, with the address of the page, and whether Dask's own
        pages are next to it.
    limits : PublishingLimits, optional
        When the page is published, and how much time it may take.
    make_broadcast : callable, optional
        Makes the page of the followed experiment; a `Broadcast` by default. The page's thread calls
        it.
    """

    def __init__(
        self,
        connection: Connection,
        storage: Storage,
        name: str,
        dashboard_url: str,
        on_link: Callable[[str, bool], None],
        *,
        limits: PublishingLimits | None = None,
        make_broadcast: Callable[[LiveExperiment], Broadcast] | None = None,
    ) -> None:
        self._limits = PublishingLimits() if limits is None else limits
        self._make_broadcast = make_broadcast
        self._client, self._address = connection.client, connection.address
        self._storage, self._name = storage, name
        self._dashboard_url, self._on_link = dashboard_url, on_link
        self._key = experiment_key(storage)
        self._driver = ""
        #: Whether the scheduler has confirmed the begin.
        self._has_begun = False
        self._task: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        #: The experiment as read from its journal; None until the page has had a viewer.
        self._live: LiveExperiment | None = None
        self._broadcast: Broadcast | None = None
        #: Seconds of CPU time that the last update took.
        self._cpu_seconds = 0.0
        #: The number of the last change, and whether the scheduler needs a full page first.
        self._number, self._needs_full_page = 0, True
        self._link = ""

    def open(self) -> None:
        """Start publishing on the client's event loop; returns at once."""
        self._client.loop.add_callback(self._begin)

    def close(self) -> None:
        """Show the experiment's end, and stop; returns after seven seconds at most."""
        try:
            if self._client.status == "running":
                # This timeout is for a loop that is busy; `_end` has a shorter one.
                timeout = 2 * self._limits.report_end_s + self._limits.draw_end_s
                self._client.sync(self._end, callback_timeout=timeout)
            elif self._task is not None:
                self._client.loop.add_callback(self._task.cancel)
        except Exception:
            logger.debug("the end could not be shown in the dashboard", exc_info=True)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await asyncio.sleep(self._limits.delay_s)
        pause, longest = _RETRY
        while True:
            try:
                await self._register()
                await self._serve()
            except (OSError, _Forgotten) as error:
                logger.debug("the scheduler's dashboard does not answer: %r", error)
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.info("the page in the scheduler's dashboard could not be published", exc_info=True)
                return
            else:
                logger.info("another driver has taken over the page in the scheduler's dashboard")
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _register(self) -> None:
        # The module is never unregistered, because another experiment of this process may need the
        # registration at this moment.
        cloudpickle.register_pickle_by_value(page_plugin)
        files = importlib.resources.files("dasktune.cluster.scheduler_page")
        page = (files / "page.html").read_text(encoding="utf-8")
        script = (files / "page.js").read_bytes()
        await self._client.register_plugin(DashboardPagePlugin(page, script))

    async def _serve(self) -> None:
        """Publish this experiment until another driver takes over."""
        answer = await self._show_begin()
        self._needs_full_page = True
        post: asyncio.Task[None] | None = None
        try:
            while True:
                answer = await self._call("beat", wait=0.0 if answer["wanted"] else _POLL_SECONDS)
                if not answer["yours"]:
                    return
                if answer["wanted"] and post is None:
                    post = asyncio.ensure_future(self._post(answer))
                if post is not None:
                    # Wait for a limited time: if the update takes longer, the next call must still
                    # show the scheduler in time that the driver is alive.
                    done, _ = await asyncio.wait({post}, timeout=_POLL_SECONDS)
                    if done:
                        post.result()
                        post = None
        finally:
            if post is not None:
                post.cancel()
                await asyncio.wait({post})

    async def _show_begin(self) -> dict[str, Any]:
        """Report the begin to the scheduler, and return its answer."""
        self._driver = uuid.uuid4().hex
        begun = {"name": self._name, "client": self._client.id, "hint": self._hint()}
        answer = await self._call("begin", **begun)
        self._has_begun = True
        self._report_link(answer)
        return answer

    async def _post(self, answer: dict[str, Any]) -> None:
        """Send the next page update, and wait until another one is due."""
        # A full page takes much longer than a change, so its time does not prolong the pause.
        anew = self._needs_full_page
        try:
            more, page_update = await self._in_thread(self._next_update)
            if page_update is not None:
                await self._push(answer, page_update)
        except BaseException:
            # The update may be lost, and the next one has only what has changed after it. After a
            # cancellation the thread may still make this one, which changes nothing about that.
            self._needs_full_page = True
            raise
        await asyncio.sleep(self._cpu_seconds if more else self._pause(0.0 if anew else self._cpu_seconds))

    def _pause(self, took: float) -> float:
        limits = self._limits
        least = limits.period_s if self._storage.is_local else limits.far_period_s
        return min(max(least, took / limits.cpu_share - took), _LONGEST_PAUSE)

    async def _call(self, do: str, **fields: Any) -> dict[str, Any]:
        call = getattr(self._client.scheduler, f"dasktune_board_{PROTOCOL}")
        answer: dict[str, Any] | None = await call(do=do, key=self._key, driver=self._driver, **fields)
        if answer is None or not answer["known"]:
            # The scheduler was restarted, or has dropped the experiment.
            raise _Forgotten
        return answer

    async def _push(self, answer: dict[str, Any], page_update: PageUpdate) -> None:
        from dasktune.dashboard.server.page_stream import scripts

        version, read = scripts()
        if version not in answer["scripts"]:
            files = await self._in_thread(lambda: dict(read))
            await self._call("script", bokeh=version, files=files)
        self._number += 1
        await self._call(
            "push", number=self._number, whole=page_update.page, change=page_update.changes, bokeh=version
        )
        self._needs_full_page = False

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        # In a thread, because the experiment's own calls run on the loop.
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="dasktune-page")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _next_update(self) -> tuple[bool, PageUpdate | None]:
        """Read new records. Return whether there are more, and if not, the update of the page."""
        if self._live is None or self._broadcast is None:
            if not self._start_following():
                return False, None
            return self._next_update()
        began = time.thread_time()
        try:
            if self._live.poll():
                return True, None
            return False, self._broadcast.update(full=self._needs_full_page)
        finally:
            self._cpu_seconds = time.thread_time() - began

    def _start_following(self) -> bool:
        """Start to follow the journal, and return False if the experiment has none yet."""
        # Imported here, because Bokeh takes half a second.
        from dasktune.dashboard.model.load import empty_projection
        from dasktune.dashboard.server.feed import JournalFeed
        from dasktune.dashboard.server.live_experiment import LiveExperiment
        from dasktune.dashboard.server.page_stream import Broadcast
        from dasktune.storage.experiment.experiment_store import SPEC_FILE

        if not self._storage.exists(SPEC_FILE):
            return False
        spec = ExperimentStore(self._storage).spec()
        feed = JournalFeed(JournalFollower(self._storage))
        # `_pause` limits the processor time of the whole page. A second limit for each figure would
        # leave figures out of the update that shows the experiment's end.
        self._live = LiveExperiment(partial(empty_projection, spec), feed, used=lambda: 0.0)
        self._broadcast = (self._make_broadcast or Broadcast)(self._live)
        return True

    async def _end(self) -> None:
        limits = self._limits
        answer = await asyncio.wait_for(self._report_end(), limits.report_end_s)
        # If the page had no viewer, it was never made, and making it now would take too long.
        if answer is not None and self._live is not None:
            timeout = limits.draw_end_s if answer["wanted"] else limits.report_end_s
            await asyncio.wait_for(self._show_end(answer), timeout)

    async def _report_end(self) -> dict[str, Any] | None:
        """Report the end to the scheduler; return its answer, or None if there is no page."""
        has_given_up = self._task is not None and self._task.done()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if not self._has_begun:
            if has_given_up:
                return None
            # The experiment has ended before the page was published, or while it was.
            await self._register()
            await self._show_begin()
        return await self._call("end", hint=self._hint(), complete=False)

    async def _show_end(self, answer: dict[str, Any]) -> None:
        more, page_update = await self._in_thread(self._next_update)
        while more:
            more, page_update = await self._in_thread(self._next_update)
        if page_update is not None:
            await self._push(answer, page_update)
        await self._call("end", hint=self._hint(), complete=True)

    def _hint(self) -> str:
        return f"dasktune dashboard {shlex.quote(str(self._storage))}"

    def _report_link(self, answer: dict[str, Any]) -> None:
        link = page_link(self._dashboard_url, self._address, answer, self._key)
        if link and link != self._link:
            self._link = link
            with suppress(Exception):
                self._on_link(link, bool(answer.get("has_neighbours")))


@contextmanager
def publishing(
    wanted: bool,
    given: Any,
    connection: Connection,
    storage: Storage,
    *,
    name: str,
    loud: bool,
    on_link: Callable[[str, bool], None],
    limits: PublishingLimits | None = None,
    make_broadcast: Callable[[LiveExperiment], Broadcast] | None = None,
) -> Iterator[None]:
    """Publish an experiment's page in the scheduler's dashboard inside the ``with`` block.

    Parameters
    ----------
    wanted : bool
        Whether to publish it.
    given : object
        The user's ``client``, which names the cluster.
    connection : Connection
        The connection to the cluster.
    storage : Storage
        The experiment's directory.
    name : str
        The experiment's name.
    loud : bool
        Whether to print the address to ``sys.stderr``, besides the log.
    on_link : callable
        Called, in any thread, with the address of the page, and whether Dask's own pages are next
        to it.
    limits, make_broadcast
        As for :class:`PagePublisher`.
    """
    if not wanted:
        yield
        return

    def report(link: str, has_neighbours: bool) -> None:
        on_link(link, has_neighbours)
        logger.info("page in Dask's dashboard: %s", link)
        if loud:
            print_promptly(sys.stderr, f"Dashboard: {link}\n")

    publisher = PagePublisher(
        connection,
        storage,
        name,
        dashboard_url_of(given),
        report,
        limits=limits,
        make_broadcast=make_broadcast,
    )
    publisher.open()
    try:
        yield
    finally:
        publisher.close()


def experiment_key(storage: Storage) -> str:
    """Return the key of an experiment in addresses, which is the same for all its drivers.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """
    return hashlib.sha256(storage.url.rstrip("/").encode()).hexdigest()[:16]


def dashboard_url_of(given: Any) -> str:
    """Return the dashboard's address from the user's object, without a call to the cluster.

    Parameters
    ----------
    given : object
        The user's ``client``, which names the cluster.
    """
    try:
        if given is None:
            given = default_client()
        if isinstance(given, Client):
            given = given.cluster
        return str(getattr(given, "dashboard_link", None) or "")
    except Exception:
        # The property of a user's cluster class may raise anything, or there is no default client.
        return ""


def page_link(place: str, address: str, answer: dict[str, Any], key: str) -> str:
    """Return the address of an experiment's page; empty if there is none.

    Parameters
    ----------
    place : str
        A link to one of the pages of Dask's dashboard, or empty.
    address : str
        The scheduler's address.
    answer : dict
        The scheduler's answer about the page.
    key : str
        The experiment's key.

    Examples
    --------
    >>> answer = {"path": "/dasktune", "prefix": "", "port": 8787, "scheme": "http"}
    >>> page_link("https://hub/user/ann/proxy/8787/status", "tcp://10.0.0.1:8786", answer, "5f")
    'https://hub/user/ann/proxy/8787/dasktune#5f'
    >>> page_link("", "tcp://10.0.0.1:8786", {**answer, "path": ""}, "5f")
    ''
    """
    if not answer["path"]:
        return ""
    if not place:
        protocol, _, rest = address.partition("://")
        host = "localhost" if protocol == "inproc" else rest.rpartition(":")[0]
        place = str(format_dashboard_link(host, answer["port"]))
        # Dask takes the protocol from the configuration of this process, not of the scheduler.
        if answer["scheme"] == "https" and place.startswith("http:"):
            place = place.replace("http:", "https:", 1)
    parts = urlsplit(place)
    folder = parts.path.rpartition("/")[0]
    # Dask's usual link lacks the prefix with which the scheduler was started.
    if answer["prefix"] and not folder.endswith(answer["prefix"]):
        folder += answer["prefix"]
    page = answer["path"].rpartition("/")[2]
    # The query may contain a token, so it is left out.
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{page}", "", key))


def find_link(client: Any, name: str, place: str) -> str:
    """Return the address of the page of a running experiment; empty if there is none.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    name : str
        The experiment's name.
    place : str
        As for :func:`page_link`.

    Raises
    ------
    OSError
        If the scheduler does not answer.
    """
    found = client.run_on_scheduler(_find(), f"dasktune-board-{PROTOCOL}", name)
    return "" if found is None else page_link(place, client.scheduler.address, found, found["key"])


def _find() -> Callable[..., dict[str, Any] | None]:
    """Return a function that asks the plugin on the scheduler; nested, to pickle by value."""

    def find(plugin: str, name: str, dask_scheduler: Any) -> dict[str, Any] | None:
        page_plugin = dask_scheduler.plugins.get(plugin)
        found: dict[str, Any] | None = None if page_plugin is None else page_plugin.find(name)
        return found

    return find
