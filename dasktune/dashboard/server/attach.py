"""Start the dashboard of a driver; its failures never affect the experiment."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dasktune.control.secret_notice import secret_notice
from dasktune.placement import ClusterShares
from dasktune.progress.background_stream import print_promptly
from dasktune.runner.commands import Commands
from dasktune.storage.fs.storage import Storage
from dasktune.text.html_template import render_html

if TYPE_CHECKING:
    from dasktune.dashboard.server.feed import DriverFeed
    from dasktune.dashboard.server.web import WebServer

logger = logging.getLogger(__name__)

#: The default port.
_PORT: Final = 8788


@contextmanager
def serve_dashboard(
    wanted: bool | int | None,
    describe: Callable[[], Mapping[str, Any]],
    *,
    storage: Storage,
    runner_time: Callable[[], float],
    announce: bool = True,
    commander: Callable[[], Commands | None] | None = None,
    find_dask: Callable[[], str] = str,
    find_shares: Callable[[], ClusterShares | None] = lambda: None,
) -> Iterator[None]:
    """Serve the dashboard of an experiment while the context is open.

    Failures of the dashboard are logged and do not affect the experiment.

    Parameters
    ----------
    wanted : bool or int, optional
        The port; True for the default port, None or False for no dashboard.
    describe : callable
        Returns the content of ``experiment.json``.
    storage : Storage
        The experiment's directory; its journal may not exist yet.
    runner_time : callable
        Returns the time of the runner's clock. Reader threads call it.
    announce : bool, default=True
        Whether to print the dashboard's address on ``sys.stderr``, besides logging it.
    commander : callable, optional
        Returns the object that takes commands; without it the pages are read-only. With it, the
        link with the token is always shown to the user (see `secret_notice`).
    find_dask : callable, optional
        Returns the address of a page of Dask's own dashboard; empty while it is unknown.
    find_shares : callable, optional
        Returns what each experiment on the cluster holds and waits for; None if this one is alone.
    """
    feed, server = None, None
    if wanted:
        found = {"find_dask": find_dask, "find_shares": find_shares}
        feed, server = _start(wanted, describe, storage, runner_time, commander, found)
    notice: AbstractContextManager[None] = nullcontext()
    if server is not None and server.link != server.url:
        notice = secret_notice(sys.stderr, "Dashboard", server.link)
    elif server is not None and announce:
        print_promptly(sys.stderr, f"Dashboard with all figures: {server.url}\n")
    try:
        with notice:
            yield
    finally:
        if feed is not None and server is not None:
            # In this order: the last poll of the server must see that the driver has ended.
            feed.end()
            _quietly(server.close)


def _start(
    wanted: bool | int,
    describe: Callable[[], Mapping[str, Any]],
    storage: Storage,
    runner_time: Callable[[], float],
    commander: Callable[[], Commands | None] | None,
    found: Mapping[str, Any],
) -> tuple[DriverFeed, WebServer] | tuple[None, None]:
    try:
        # Imported here: Bokeh takes half a second.
        from dasktune.dashboard.model.load import empty_projection
        from dasktune.dashboard.server.experiment_source import SingleExperiment
        from dasktune.dashboard.server.feed import DriverFeed
        from dasktune.dashboard.server.live_experiment import LiveExperiment
        from dasktune.dashboard.server.web import WebServer
        from dasktune.results.trial_forecast import forecast_experiment
        from dasktune.storage.journal.journal_follower import JournalFollower

        spec = describe()
        feed = DriverFeed(JournalFollower(storage), runner_time)
        command = f"dasktune dashboard {shlex.quote(str(storage))}"
        replay = partial(forecast_experiment, storage)
        live = LiveExperiment(
            partial(empty_projection, spec), feed, command=command, storage=storage, replay=replay, **found
        )
        server = WebServer(
            SingleExperiment(live), port=_PORT if wanted is True else wanted, commander=commander
        )
    except Exception:  # the experiment continues without a dashboard
        logger.warning(
            "the dashboard could not be started; the experiment continues without it", exc_info=True
        )
        return None, None
    logger.info("dashboard: %s", server.url)
    return feed, server


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logger.debug("an action of the dashboard failed", exc_info=True)


def with_dashboard_link(text: str, link: str | None) -> str:
    """Return a text with a link to a dashboard as HTML.

    Parameters
    ----------
    text : str
        The text.
    link : str, optional
        The address of the dashboard, if there is one.

    Examples
    --------
    >>> with_dashboard_link("Tuner(<lambda>)", "http://localhost:8787/dasktune#5f")
    'Tuner(&lt;lambda&gt;), <a href="http://localhost:8787/dasktune#5f">dashboard</a>'
    """
    template = '{{ text }}{% if link %}, <a href="{{ link }}">dashboard</a>{% endif %}'
    return render_html(template, text=text, link=link)
