"""The dashboard of a driver: what it needs, and that it can hurt nobody."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Final

from dasktune.runner.commands import Commands
from dasktune.storage.location import Storage

if TYPE_CHECKING:
    from dasktune.dashboard.server import WebServer
    from dasktune.dashboard.server.feed import DriverFeed

__all__ = ["linked", "shown"]

logger = logging.getLogger(__name__)

#: Where the dashboard listens if nobody says.
_PORT: Final = 8788


@contextmanager
def shown(
    wanted: bool | int | None,
    describe: Callable[[], Mapping[str, Any]],
    *,
    storage: Storage,
    runner_time: Callable[[], float],
    loud: bool = True,
    commander: Callable[[], Commands | None] | None = None,
    find_dask: Callable[[], str] = str,
) -> Iterator[None]:
    """Show an experiment in browsers for as long as the context lasts.

    What goes wrong with it is logged and changes nothing else.

    Parameters
    ----------
    wanted : bool or int, optional
        Whether to show it, or at which port; not by default.
    describe : callable
        Gives what ``experiment.json`` says of it.
    storage : Storage
        Where its journal is, or soon will be.
    runner_time : callable
        The time of the runner's clock.
    loud : bool, default=True
        Whether to tell on ``sys.stderr`` where it is, besides the log.
    commander : callable, optional
        Returns who takes commands; without it the pages can only be looked at. The link with the
        token that they need is told on ``sys.stderr`` in any case.
    find_dask : callable, optional
        Returns the address of a page of Dask's own dashboard; empty as long as nobody knows it.
    """
    feed, server = None, None
    if wanted:
        feed, server = _begun(wanted, describe, storage, runner_time, commander, find_dask)
    if server is not None and (loud or commander is not None):
        link = server.link
        _quietly(lambda: sys.stderr.write(f"Dashboard: {link}\n"))
    try:
        yield
    finally:
        if feed is not None and server is not None:
            feed.end()
            _quietly(server.close)


def _begun(
    wanted: bool | int,
    describe: Callable[[], Mapping[str, Any]],
    storage: Storage,
    runner_time: Callable[[], float],
    commander: Callable[[], Commands | None] | None,
    find_dask: Callable[[], str],
) -> tuple[DriverFeed, WebServer] | tuple[None, None]:
    try:
        # Bokeh takes half a second to import.
        from dasktune.dashboard.server import WebServer
        from dasktune.dashboard.server.feed import DriverFeed
        from dasktune.dashboard.server.live import Live
        from dasktune.dashboard.server.shelf import Single
        from dasktune.dashboard.sources import described
        from dasktune.storage.journal_follower import JournalFollower

        spec = describe()
        feed = DriverFeed(JournalFollower(storage), runner_time)
        live = Live(partial(described, spec), feed, find_dask=find_dask)
        server = WebServer(
            Single(live), port=_PORT if wanted is True else wanted, commander=commander
        )
    except Exception:  # whatever it is, the experiment goes on without
        logger.warning("there is no dashboard, as it could not be started", exc_info=True)
        return None, None
    logger.info("dashboard: %s", server.url)
    return feed, server


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logger.debug("the dashboard could not do this", exc_info=True)


def linked(text: str, link: str | None) -> str:
    """Return a text and the address of its dashboard as HTML.

    Parameters
    ----------
    text : str
        Any.
    link : str, optional
        The address, if there is one.

    Examples
    --------
    >>> linked("Tuner(<lambda>)", "http://localhost:8787/dasktune#5f")
    'Tuner(&lt;lambda&gt;), <a href="http://localhost:8787/dasktune#5f">dashboard</a>'
    """
    told = f', <a href="{escape(link)}">dashboard</a>' if link else ""
    return f"{escape(text)}{told}"
