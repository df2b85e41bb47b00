"""The token of a dashboard with buttons: who has it, and who has not."""

from __future__ import annotations

import http.client
import logging
import time
from http.cookies import SimpleCookie

import pytest
from bokeh.client import pull_session
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


def get(server, path, **headers):
    connection = http.client.HTTPConnection("localhost", server.port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def cookie_of(server):
    token = server.link.partition("token=")[2]
    status, headers, _ = get(server, f"/?token={token}")
    assert (status, headers["Location"]) == (302, "/")
    return SimpleCookie(headers["Set-Cookie"])


@pytest.fixture
def server():
    live = LiveExperiment(ExperimentProjection, RecordFeed())
    server = WebServer(SingleExperiment(live), commander=lambda: None)
    yield server
    server.close()


@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/?token=", "/autoload.js", "/metadata"])
def test_without_the_token_there_is_nothing_and_nowhere_to_go(server, path):
    status, headers, _ = get(server, path)
    assert status == 403
    assert "Location" not in headers
    assert "Set-Cookie" not in headers


def test_the_token_is_taken_from_the_link_and_a_cookie_stands_for_it(server):
    [(name, morsel)] = cookie_of(server).items()
    assert morsel["httponly"] is True
    assert morsel["samesite"] == "Strict"
    assert server.link.partition("token=")[2] not in morsel.value
    status, _, body = get(server, "/", Cookie=f"{name}={morsel.value}")
    assert status == 200
    assert server.link.partition("token=")[2].encode() not in body
    assert get(server, "/", Cookie=f"{name}=guess")[0] == 403


def connects(server, origin, cookie):
    headers = {"Origin": origin, "Sec-WebSocket-Protocol": "bokeh, none", "Cookie": cookie}

    async def connect():
        request = HTTPRequest(f"ws://localhost:{server.port}/ws", headers=headers)
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
    cookie, own = f"{name}={morsel.value}", f"http://localhost:{server.port}"
    assert connects(server, own, cookie) == 101
    assert connects(server, own, "") == 403
    assert connects(server, "http://evil.example", cookie) == 403


def test_a_session_is_given_to_nobody_without_the_token(server):
    with pytest.raises(OSError, match=r".+"):
        pull_session(url=server.url)


def test_where_nothing_can_be_done_and_nobody_else_comes_no_token_is_needed():
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
def test_the_link_with_the_token_is_told_on_stderr_and_nowhere_else(loud, tmp_path, caplog, capsys):
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
        token = told.err.partition("token=")[2].strip()
        assert len(token) >= 32
        assert token not in told.out + caplog.text
        assert "http://localhost:" in caplog.text


@pytest.mark.parametrize("path", ["/", "/other", "/autoload.js", "/metadata", "/ws", "/static/a"])
def test_the_token_of_a_link_that_is_opened_is_in_no_log(server, path, caplog, monkeypatch):
    for name in ("", "tornado", "tornado.access"):
        caplog.set_level(logging.DEBUG, logger=name)
        # Distributed, if it is there, keeps it to itself.
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    token = server.link.partition("token=")[2]
    get(server, f"{path}?experiment=one&token={token}")
    get(server, f"{path}?token={token[:-1]}")
    server.close()
    assert f"GET {path} " in caplog.text
    assert token[:-1] not in caplog.text
