"""The token of a dashboard with buttons: who has it, and who has not."""

from __future__ import annotations

import http.client
import logging
import time
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

import pytest
from bokeh.client import pull_session
from bokeh.util.token import generate_jwt_token, generate_session_id
from control_kit import told_secret
from projection_kit import RecordFeed
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.ioloop import IOLoop
from tornado.websocket import websocket_connect

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server.attach import serve_dashboard
from dasktune.dashboard.server.experiment_source import SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.web import WebServer
from dasktune.storage.fs.storage import Storage

pytestmark = pytest.mark.usefixtures("complete_notices")


def get(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def page_of(server):
    """Return the secret path of the pages."""
    return urlsplit(server.link).path


def cookie_of(server):
    token = server.link.partition("token=")[2]
    status, headers, _ = get(server, f"{page_of(server)}?token={token}")
    assert (status, headers["Location"]) == (302, page_of(server))
    return SimpleCookie(headers["Set-Cookie"])


@pytest.fixture
def server():
    live = LiveExperiment(ExperimentProjection, RecordFeed())
    server = WebServer(SingleExperiment(live), commander=lambda: None)
    yield server
    server.close()


@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/?token=", "/autoload.js", "/metadata"])
def test_without_the_token_there_is_nothing_and_nowhere_to_go(server, path):
    for place in (path, page_of(server) + path[1:]):
        status, headers, _ = get(server, place)
        assert status == 403
        assert "Location" not in headers
        assert "Set-Cookie" not in headers


def test_the_token_is_taken_from_the_link_and_a_cookie_stands_for_it(server):
    [(name, morsel)] = cookie_of(server).items()
    assert morsel["httponly"] is True
    assert morsel["samesite"] == "Strict"
    assert server.link.partition("token=")[2] not in morsel.value
    status, _, body = get(server, page_of(server), Cookie=f"{name}={morsel.value}")
    assert status == 200
    assert server.link.partition("token=")[2].encode() not in body
    assert get(server, page_of(server), Cookie=f"{name}=guess")[0] == 403


def connects(server, origin, cookie):
    session = generate_jwt_token(generate_session_id())
    headers = {"Origin": origin, "Sec-WebSocket-Protocol": f"bokeh, {session}", "Cookie": cookie}

    async def connect():
        request = HTTPRequest(f"ws://127.0.0.1:{server.port}{page_of(server)}ws", headers=headers)
        try:
            connection = await websocket_connect(request)
        except HTTPClientError as error:
            return error.code
        connection.close()
        return 101

    loop = IOLoop(make_current=False)
    try:
        return loop.run_sync(connect)
    finally:
        loop.close()


def test_no_socket_is_opened_without_the_cookie_or_from_another_page(server):
    [(name, morsel)] = cookie_of(server).items()
    cookie, own = f"{name}={morsel.value}", f"http://127.0.0.1:{server.port}"
    assert connects(server, own, cookie) == 101
    assert connects(server, own, "") == 403
    assert connects(server, "http://evil.example", cookie) == 403


def test_a_session_is_not_given_without_the_token(server):
    with pytest.raises(OSError, match=r".+"):
        pull_session(url=server.link.partition("?")[0])


def test_a_page_without_buttons_for_this_machine_needs_no_token():
    live = LiveExperiment(ExperimentProjection, RecordFeed())
    server = WebServer(SingleExperiment(live))
    try:
        assert server.link == server.url
        assert get(server, "/")[0] == 200
    finally:
        server.close()


def test_where_other_machines_can_reach_it_a_token_is_needed():
    live = LiveExperiment(ExperimentProjection, RecordFeed())
    server = WebServer(SingleExperiment(live), address="0.0.0.0")
    try:
        assert "?token=" in server.link
        assert get(server, "/")[0] == 403
        assert cookie_of(server)
    finally:
        server.close()


@pytest.mark.parametrize("loud", [True, False])
def test_the_link_with_the_token_is_shown_to_the_user_and_no_log(loud, tmp_path, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    with serve_dashboard(
        True,
        lambda: {"name": "x"},
        storage=Storage(tmp_path),
        runner_time=time.time,
        announce=loud,
        commander=lambda: None,
    ):
        told = capsys.readouterr()
        link = told_secret(told.err, "Dashboard")
        assert link is not None
        token = link.partition("token=")[2]
        assert len(token) >= 32
        assert token not in told.out + told.err + caplog.text
        assert "http://127.0.0.1:" in caplog.text


@pytest.mark.parametrize("path", ["/", "/other", "/autoload.js", "/metadata", "/ws", "/static/a"])
def test_the_token_of_a_link_that_is_opened_is_in_no_log(server, path, caplog, monkeypatch):
    for name in ("", "tornado", "tornado.access"):
        caplog.set_level(logging.DEBUG, logger=name)
        # Distributed, if it is there, keeps it to itself.
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    token = server.link.partition("token=")[2]
    page = page_of(server)
    for place in (path, page + path[1:]):
        get(server, f"{place}?experiment=one&token={token}")
        get(server, f"{place}?token={token[:-1]}")
    server.close()
    assert f"GET {path}\n" in caplog.text
    assert token[:-1] not in caplog.text
    assert page.strip("/") not in caplog.text
