"""Pages of other sites make the scheduler's page do nothing, and other machines do not see it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.http.routing import RoutingApplication
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from dasktune.cluster.connection.connect import connect
from dasktune.cluster.scheduler_page.page_plugin import DashboardPagePlugin

FOLLOWED = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

REFUSED = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://[evil"},
]
SERVED = [
    {},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none", **FOLLOWED},
    {"Sec-Fetch-Site": "cross-site", **FOLLOWED},
    {"Host": "hub.example:8787", "Origin": "https://hub.example"},
]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[DashboardPagePlugin, str]]:
    """Serve the page of the experiment "k" as a scheduler does; yield its plugin and address."""
    application = RoutingApplication([])
    server = HTTPServer(application)
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    server.port = port = sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    scheduler: Any = SimpleNamespace(http_application=application, http_server=server, handlers={})
    plugin = DashboardPagePlugin("<p>page</p>", b"script")
    try:
        await plugin.start(scheduler)
        await plugin.answer("begin", "k", "d", name="exp", client="c", hint="")
        yield plugin, f"http://127.0.0.1:{port}/dasktune"
    finally:
        server.stop()
        await server.close_all_connections()


def statuses(headers: dict[str, str]) -> tuple[set[int], bool]:
    """Request all content of the page; return the statuses, and whether there was a viewer."""

    async def ask() -> tuple[set[int], bool]:
        async with serving() as (plugin, url):
            found = set()
            for what in ("", "~script", "~news?key=k"):
                answer = await AsyncHTTPClient().fetch(
                    f"{url}{what}", headers=headers, raise_error=False, request_timeout=60
                )
                found.add(answer.code)
            return found, plugin.sections["k"].is_wanted

    return asyncio.run(ask())


@pytest.mark.parametrize("headers", REFUSED, ids=repr)
def test_a_request_of_another_site_makes_no_driver_draw_the_scheduler_s_page(headers: dict[str, str]):
    assert statuses(headers) == ({403}, False)


@pytest.mark.parametrize("headers", SERVED, ids=repr)
def test_the_user_s_own_requests_for_the_scheduler_s_page_and_links_to_it_are_served(
    headers: dict[str, str],
):
    assert statuses(headers) == ({200}, True)


@pytest.mark.cluster
def test_other_machines_do_not_see_the_pages_of_a_local_cluster():
    with connect(n_workers=1) as connection:
        port = connection.client.scheduler_info()["services"]["dashboard"]
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
        # A server that listens at all addresses would answer at this one, too.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=60)
