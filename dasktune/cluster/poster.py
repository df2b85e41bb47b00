"""Keeps the page of an experiment in the scheduler's own dashboard, from its driver.

While nobody looks, the driver only waits to be told that somebody does: one call each few seconds.
Then it reads its own journal, as anybody else would, makes the page in a thread and sends what
changes. Whatever goes wrong with it is logged and changes nothing else.
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
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import cloudpickle
from distributed import Client, default_client
from distributed.utils import format_dashboard_link

from dasktune.cluster import board
from dasktune.cluster.board import PROTOCOL, BoardPlugin
from dasktune.storage.experiment_store import ExperimentStore
from dasktune.storage.journal_follower import JournalFollower
from dasktune.storage.location import Storage

if TYPE_CHECKING:
    from dasktune.cluster.connect import Connection
    from dasktune.dashboard.server.broadcast import Broadcast, Bulletin
    from dasktune.dashboard.server.live import Live

__all__ = ["Poster", "board_link", "experiment_key", "find_link", "place_of", "posted"]

logger = logging.getLogger(__name__)

#: Seconds for which a driver waits to be told that somebody looks, before it asks anew. It is also
#: how often the scheduler hears of it.
_BEAT: Final = 5.0
#: Least seconds between two looks at what is new, on a disk and elsewhere: there it costs requests.
_PERIOD: Final = 1.0
_FAR_PERIOD: Final = 5.0
#: Of the time, the share of a processor that making the page may take while somebody looks, and
#: the longest pause that is made for it. A driver that is busy all the time is so much slower then.
_SHARE: Final = 0.05
_LONGEST_PAUSE: Final = 60.0
#: Seconds to wait before a scheduler that is away is tried again: at first, and at most.
_RETRY: Final = (0.5, 30.0)
#: Most seconds for telling the scheduler of the end of a run, and those who have looked how it
#: ended: nobody wants to wait longer for results because of a page.
_LAST_WORD: Final = 1.0


class _Clock:
    """Seconds, which stand still while a page is made.

    `Live` makes figures that take long more rarely. Here it is the page that comes more rarely, by
    the processor time that it takes: on a busy machine it would hardly come at all otherwise.
    """

    def __init__(self) -> None:
        self._stopped: float | None = None

    def __call__(self) -> float:
        return time.monotonic() if self._stopped is None else self._stopped

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it stand still inside the ``with`` block."""
        self._stopped = time.monotonic()
        try:
            yield
        finally:
            self._stopped = None


class _Forgotten(Exception):
    """The scheduler does not know of the experiment, or of any."""


class Poster:
    """Tells the scheduler of an experiment, and those who look at its page how it goes.

    Parameters
    ----------
    connection : Connection
        To the cluster.
    storage : Storage
        The experiment's directory.
    name : str
        The experiment's name.
    place : str
        Where Dask's own dashboard is, as a link to one of its pages; empty for what a scheduler at
        this address usually has.
    on_link : callable
        Called, on the client's event loop, with the address of the page once it is there.
    """

    def __init__(
        self,
        connection: Connection,
        storage: Storage,
        name: str,
        place: str,
        on_link: Callable[[str, bool], None],
    ) -> None:
        self._client, self._address = connection.client, connection.address
        self._storage, self._name = storage, name
        self._place, self._on_link = place, on_link
        self._key = experiment_key(storage)
        self._driver = ""
        self._task: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        #: What is known of the experiment, once somebody has looked.
        self._live: Live | None = None
        self._broadcast: Broadcast | None = None
        self._clock = _Clock()
        #: Seconds of processor time that the last turn has taken.
        self._took = 0.0
        #: The last change, and whether the scheduler has nothing yet to which it could be one.
        self._number, self._anew = 0, True
        self._link = ""

    def open(self) -> None:
        """Begin, on the client's event loop; returns at once."""
        self._client.loop.add_callback(self._begin)

    def close(self) -> None:
        """Show how it ended, and end; returns soon in any case."""
        try:
            if self._client.status == "running":
                # The loop may be busy, too; it gives up by itself before.
                self._client.sync(self._end_soon, callback_timeout=2 * _LAST_WORD)
            elif self._task is not None:
                self._client.loop.add_callback(self._task.cancel)
        except Exception:
            logger.debug("the dashboard was not told of the end", exc_info=True)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        pause, longest = _RETRY
        while True:
            try:
                await self._register()
                await self._serve()
            except (OSError, _Forgotten) as error:
                logger.debug("the scheduler's dashboard is away: %r", error)
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.info("there is no page in the scheduler's dashboard", exc_info=True)
                return
            else:
                logger.info("another driver has taken over the page in the scheduler's dashboard")
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _register(self) -> None:
        # For good: several experiments of one process may be at this point at the same time.
        cloudpickle.register_pickle_by_value(board)
        files = importlib.resources.files("dasktune.cluster")
        page = (files / "board.html").read_text(encoding="utf-8")
        script = (files / "board.js").read_bytes()
        await self._client.register_plugin(BoardPlugin(page, script))

    async def _serve(self) -> None:
        """Tell of the experiment until another driver does."""
        self._driver = uuid.uuid4().hex
        begun = {"name": self._name, "client": self._client.id, "hint": self._hint()}
        answer = await self._say("begin", **begun)
        self._tell_link(answer)
        self._anew = True
        posting: asyncio.Task[None] | None = None
        try:
            while True:
                answer = await self._say("beat", wait=0.0 if answer["wanted"] else _BEAT)
                if not answer["yours"]:
                    return
                if answer["wanted"] and posting is None:
                    posting = asyncio.ensure_future(self._post(answer))
                if posting is not None:
                    # It may take longer than a scheduler wants to wait for a sign of life.
                    done, _ = await asyncio.wait({posting}, timeout=_BEAT)
                    if done:
                        posting.result()
                        posting = None
        finally:
            if posting is not None:
                posting.cancel()
                await asyncio.wait({posting})

    async def _post(self, answer: dict[str, Any]) -> None:
        """Tell those who look what is new, and wait until there may be more."""
        # The first page takes much longer than what changes of it.
        anew = self._anew
        more, bulletin = await self._in_thread(self._turn)
        if bulletin is not None:
            await self._push(answer, bulletin)
        await asyncio.sleep(self._took if more else self._pause(0.0 if anew else self._took))

    def _pause(self, took: float) -> float:
        least = _PERIOD if self._storage.is_local else _FAR_PERIOD
        return min(max(least, took / _SHARE - took), _LONGEST_PAUSE)

    async def _say(self, do: str, **told: Any) -> dict[str, Any]:
        call = getattr(self._client.scheduler, f"dasktune_board_{PROTOCOL}")
        answer: dict[str, Any] | None = await call(
            do=do, key=self._key, driver=self._driver, **told
        )
        if answer is None or not answer["known"]:
            # It was started anew, or has forgotten the experiment.
            raise _Forgotten
        return answer

    async def _push(self, answer: dict[str, Any], bulletin: Bulletin) -> None:
        from dasktune.dashboard.server.broadcast import scripts

        version, read = scripts()
        if version not in answer["scripts"]:
            files = await self._in_thread(lambda: dict(read))
            await self._say("script", bokeh=version, files=files)
        self._number += 1
        await self._say(
            "push",
            number=self._number,
            whole=bulletin.whole,
            change=bulletin.change,
            bokeh=version,
        )
        self._anew = False

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        # The loop is that of the experiment's own calls.
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="dasktune-page")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _turn(self) -> tuple[bool, Bulletin | None]:
        """Take in what is new, and return whether there is more, and what there is to tell."""
        if self._live is None or self._broadcast is None:
            if not self._look():
                return False, None
            return self._turn()
        began = time.thread_time()
        try:
            if self._live.poll():
                return True, None
            with self._clock.stopped():
                return False, self._broadcast.turn(anew=self._anew)
        finally:
            self._took = time.thread_time() - began

    def _look(self) -> bool:
        """Begin to follow the journal, and return whether the experiment has one yet."""
        # Bokeh takes half a second to import.
        from dasktune.dashboard.server.broadcast import Broadcast
        from dasktune.dashboard.server.feed import JournalFeed
        from dasktune.dashboard.server.live import Live
        from dasktune.dashboard.sources import described
        from dasktune.storage.experiment_store import SPEC_FILE

        if not self._storage.exists(SPEC_FILE):
            return False
        spec = ExperimentStore(self._storage).spec()
        feed = JournalFeed(JournalFollower(self._storage))
        self._live = Live(partial(described, spec), feed, clock=self._clock)
        self._broadcast = Broadcast(self._live)
        return True

    async def _end_soon(self) -> None:
        await asyncio.wait_for(self._end(), _LAST_WORD)

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if not self._driver:
            return
        answer = await self._say("end", hint=self._hint(), complete=False)
        # Who has looked sees how it ended; for others it would take too long.
        if self._live is None:
            return
        more, bulletin = await self._in_thread(self._turn)
        while more:
            more, bulletin = await self._in_thread(self._turn)
        if bulletin is not None:
            await self._push(answer, bulletin)
        await self._say("end", hint=self._hint(), complete=True)

    def _hint(self) -> str:
        return f"dasktune dashboard {shlex.quote(str(self._storage))}"

    def _tell_link(self, answer: dict[str, Any]) -> None:
        link = board_link(self._place, self._address, answer, self._key)
        if link and link != self._link:
            self._link = link
            with suppress(Exception):
                self._on_link(link, bool(answer.get("has_neighbours")))


@contextmanager
def posted(
    wanted: bool,
    given: Any,
    connection: Connection,
    storage: Storage,
    *,
    name: str,
    loud: bool,
    on_link: Callable[[str, bool], None],
) -> Iterator[None]:
    """Have a page of an experiment in the scheduler's dashboard for as long as the context lasts.

    Parameters
    ----------
    wanted : bool
        Whether to have it.
    given : object
        What the user gave to name the cluster.
    connection : Connection
        To the cluster.
    storage : Storage
        The experiment's directory.
    name : str
        The experiment's name.
    loud : bool
        Whether to tell on ``sys.stderr`` where it is, besides the log.
    on_link : callable
        Called, in some thread, with the address of the page, and whether Dask's own are beside it.
    """
    if not wanted:
        yield
        return

    def tell(link: str, has_neighbours: bool) -> None:
        on_link(link, has_neighbours)
        logger.info("page in Dask's dashboard: %s", link)
        if loud:
            sys.stderr.write(f"Dashboard: {link}\n")

    poster = Poster(connection, storage, name, place_of(given), tell)
    poster.open()
    try:
        yield
    finally:
        poster.close()


def experiment_key(storage: Storage) -> str:
    """Return what stands for an experiment in addresses: the same for all its drivers.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """
    return hashlib.sha256(storage.url.rstrip("/").encode()).hexdigest()[:16]


def place_of(given: Any) -> str:
    """Return where the dashboard is, as the user's own object tells it without asking anybody.

    Parameters
    ----------
    given : object
        What the user gave to name the cluster.
    """
    try:
        if given is None:
            given = default_client()
        if isinstance(given, Client):
            given = given.cluster
        return str(getattr(given, "dashboard_link", None) or "")
    except Exception:
        # Somebody else's property, or there is no client.
        return ""


def board_link(place: str, address: str, answer: dict[str, Any], key: str) -> str:
    """Return the address of an experiment's page; empty if there is none.

    Parameters
    ----------
    place : str
        A link to one of the pages of Dask's dashboard, or empty.
    address : str
        The scheduler's address.
    answer : dict
        What the scheduler has told of the page.
    key : str
        The experiment's.

    Examples
    --------
    >>> answer = {"path": "/dasktune", "prefix": "", "port": 8787, "scheme": "http"}
    >>> board_link("https://hub/user/ann/proxy/8787/status", "tcp://10.0.0.1:8786", answer, "5f")
    'https://hub/user/ann/proxy/8787/dasktune#5f'
    >>> board_link("", "tcp://10.0.0.1:8786", {**answer, "path": ""}, "5f")
    ''
    """
    if not answer["path"]:
        return ""
    if not place:
        protocol, _, rest = address.partition("://")
        host = "localhost" if protocol == "inproc" else rest.rpartition(":")[0]
        place = str(format_dashboard_link(host, answer["port"]))
        # Dask's link goes by what this process was told of certificates, not the scheduler.
        if answer["scheme"] == "https" and place.startswith("http:"):
            place = place.replace("http:", "https:", 1)
    parts = urlsplit(place)
    folder = parts.path.rpartition("/")[0]
    # The usual link does not tell a prefix that the scheduler was started with.
    if answer["prefix"] and not folder.endswith(answer["prefix"]):
        folder += answer["prefix"]
    page = answer["path"].rpartition("/")[2]
    # What else stands there may be a token.
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{page}", "", key))


def find_link(client: Any, name: str, place: str) -> str:
    """Return the address of the page of an experiment that some driver runs; empty if none.

    Parameters
    ----------
    client : distributed.Client
        A synchronous one.
    name : str
        The experiment's name.
    place : str
        As for :func:`board_link`.

    Raises
    ------
    OSError
        If the scheduler does not answer.
    """
    found = client.run_on_scheduler(_find(), f"dasktune-board-{PROTOCOL}", name)
    return "" if found is None else board_link(place, client.scheduler.address, found, found["key"])


def _find() -> Callable[..., dict[str, Any] | None]:
    """Return what asks the plugin; pickled by value, as the scheduler may lack dasktune."""

    def find(plugin: str, name: str, dask_scheduler: Any) -> dict[str, Any] | None:
        board = dask_scheduler.plugins.get(plugin)
        found: dict[str, Any] | None = None if board is None else board.find(name)
        return found

    return find
