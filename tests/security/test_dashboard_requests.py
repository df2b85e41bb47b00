"""Other users and pages of other sites get nothing from a dashboard, and cost it little."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import pytest
from bokeh.util.token import generate_jwt_token, generate_session_id
from projection_kit import RecordFeed

from dasktune.control.server import ControlServer
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server.experiment_source import SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.web import WebServer


def has_ipv6() -> bool:
    with suppress(OSError), closing(socket.socket(socket.AF_INET6)) as probe:
        probe.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="the machine has no IPv6")


class Opens:
    """Starts servers, and closes them at the end of the test."""

    def __init__(self) -> None:
        self.servers: list[WebServer] = []
        self.sessions = 0

    def __call__(self, *, controls: bool = False, **options: Any) -> WebServer:
        def projection() -> ExperimentProjection:
            return ExperimentProjection(metric="loss", mode="min")

        source = SingleExperiment(LiveExperiment(projection, RecordFeed()))
        known = source.known

        def count(name: str) -> Any:
            self.sessions += 1
            return known(name)

        source.known = count  # type: ignore[method-assign]
        commander = (lambda: None) if controls else None
        self.servers.append(WebServer(source, commander=commander, **options))
        return self.servers[-1]


@pytest.fixture
def opens() -> Iterator[Opens]:
    opens = Opens()
    yield opens
    for server in opens.servers:
        server.close()


def get(server: WebServer, path: str = "/", **headers: str) -> tuple[int, dict[str, str], str]:
    """Request a path; an underscore in a header's name stands for a hyphen."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as line:
        line.request("GET", path, headers={name.replace("_", "-"): one for name, one in headers.items()})
        answer = line.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode("utf-8", "replace")


# The address


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "0.0.0.0", ""])
def test_the_link_has_a_literal_address_and_no_name_that_a_browser_resolves(opens: Opens, address: str):
    server = opens(address=address)
    assert urlsplit(server.link).hostname == "127.0.0.1"
    assert urlsplit(server.url).port == server.port


@needs_ipv6
def test_an_ipv6_address_has_brackets_in_the_link(opens: Opens):
    server = opens(address="::1")
    assert server.link == f"http://[::1]:{server.port}/"
    with closing(http.client.HTTPConnection("::1", server.port, timeout=60)) as line:
        line.request("GET", "/metadata")
        assert line.getresponse().status == 200


@needs_ipv6
@pytest.mark.parametrize("reuse", [0, 1])
@pytest.mark.parametrize(
    ("address", "other"), [("localhost", "::1"), ("0.0.0.0", "::1"), ("0.0.0.0", "::"), ("::1", "127.0.0.1")]
)
def test_no_other_program_can_listen_at_the_port_of_the_other_family(
    opens: Opens, address: str, other: str, reuse: int
):
    server = opens(address=address)
    with closing(socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET)) as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        if ":" in other:
            thief.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        with pytest.raises(OSError, match="in use"):
            thief.bind((other, server.port))


@needs_ipv6
@pytest.mark.parametrize("place", ["::1", "::"])
def test_a_port_at_which_another_user_listens_in_one_family_is_taken(opens: Opens, place: str):
    with closing(socket.socket(socket.AF_INET6)) as theirs:
        theirs.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        theirs.bind((place, 0))
        theirs.listen()
        port = theirs.getsockname()[1]
        assert opens(port=port).port not in (0, port)


def test_a_port_can_be_used_again_after_the_server_is_closed(opens: Opens):
    first = opens()
    assert get(first, "/metadata")[0] == 200
    first.close()
    assert opens(port=first.port).port == first.port


# Pages of other sites

#: Headers of requests that a page of another site can cause, or that a rebound name leads here.
FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "localhost.evil.example:8788"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": ""},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://127.0.0.1"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
    {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    {
        "Sec_Fetch_Site": "cross-site",
        "Sec_Fetch_Mode": "navigate",
        "Sec_Fetch_Dest": "document",
        "Sec_Purpose": "prefetch",
    },
]


@pytest.mark.parametrize("path", ["/", "/autoload.js?bokeh-autoload-element=1", "/metadata", "/ws", "/other"])
@pytest.mark.parametrize("headers", FOREIGN, ids=repr)
@pytest.mark.parametrize("controls", [False, True])
def test_a_request_of_another_site_is_refused_before_a_page_is_made(
    opens: Opens, path: str, headers: dict[str, str], controls: bool
):
    server = opens(controls=controls)
    status, told, _ = get(server, path, **headers)
    assert status == 403
    assert not any(name.lower().startswith("access-control") for name in told)
    assert opens.sessions == 0


def test_nothing_is_served_that_other_pages_embed(opens: Opens):
    assert get(opens(), "/autoload.js?bokeh-autoload-element=1")[0] == 404
    assert opens.sessions == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Host": "localhost:9999", "Origin": "http://localhost:9999"},
        {"Host": "proxy.example", "Origin": "https://proxy.example"},
        {"Host": "127.0.0.1:8788", "Origin": "https://proxy.example"},
    ],
    ids=repr,
)
def test_the_user_s_own_requests_and_links_and_forwarded_ports_are_served(
    opens: Opens, headers: dict[str, str]
):
    assert get(opens(origins=["proxy.example:443"]), "/metadata", **headers)[0] == 200


@pytest.mark.parametrize(
    ("host", "status"), [("192.0.2.7:8788", 403), ("[2001:db8::1]:8788", 403), ("evil.example", 403)]
)
def test_where_other_machines_reach_it_an_address_is_a_name_and_a_token_is_needed(
    opens: Opens, host: str, status: int
):
    server = opens(address="0.0.0.0")
    answer = get(server, urlsplit(server.link).path, Host=host)
    assert answer[0] == status
    assert ("Use the link" in answer[2]) == ("evil" not in host)


def upgrade(server: WebServer, path: str, token: str, **headers: str) -> int:
    """Return the status with which the server answers a WebSocket."""
    return get(
        server,
        path,
        Upgrade="websocket",
        Connection="Upgrade",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
        Sec_WebSocket_Protocol=f"bokeh, {token}",
        **headers,
    )[0]


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:{port}.evil.example",
        "http://localhost.evil.example:{port}",
        "http://127.0.0.1.evil.example:{port}",
        "https://localhost:{port}@evil.example",
        "null",
    ],
)
def test_no_page_of_another_origin_opens_a_socket_and_no_refusal_fills_the_log(
    opens: Opens, origin: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    server = opens()
    token = generate_jwt_token(generate_session_id())
    with caplog.at_level(logging.INFO):
        for name in ("bokeh", "tornado"):
            monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        assert upgrade(server, "/ws", token, Origin=origin.format(port=server.port)) == 403
        server.close()  # it logs a request after its answer
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "token", ["none", "", "A" * 5000, generate_jwt_token(generate_session_id(), expiration=-10)]
)
def test_a_socket_without_a_session_is_refused_quietly(
    opens: Opens, token: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    server = opens()
    for name in ("bokeh", "tornado"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    assert upgrade(server, "/ws", token) == 403
    server.close()  # it logs a request after its answer
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    assert opens.sessions == 0


def packed_token(content: str) -> str:
    """Return a session's token as Bokeh makes it, with any text as its compressed content."""

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    packed = encoded(zlib.compress(content.encode(), 9))
    return encoded(json.dumps({"session_id": "x", "__bk__zlib_": packed}).encode())


@pytest.mark.slow
def test_the_token_of_a_session_is_not_decompressed_without_a_limit(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
):
    server = opens()
    small, large = (
        packed_token(json.dumps({"session_expiry": time.time() + 600, "filler": " " * size}))
        for size in (1_000, 10_000_000)
    )
    # It fits into the headers of a request.
    assert len(large) < 20_000
    decompressed = []
    decompress = zlib.decompress

    def watch(data: bytes, *options: Any) -> bytes:
        decompressed.append(len(decompress(data, *options)))
        return decompress(data, *options)

    monkeypatch.setattr(zlib, "decompress", watch)
    assert upgrade(server, "/ws", large) == 403
    assert decompressed == []
    assert upgrade(server, "/ws", small) == 101
    assert decompressed != []


# The cookie


def signed_in(server: WebServer) -> tuple[str, str, Any]:
    """Open the link as a browser does; return the page's path, the cookie header and the cookie."""
    parts = urlsplit(server.link)
    status, headers, _ = get(server, f"{parts.path}?{parts.query}")
    assert status == 302
    [morsel] = SimpleCookie(headers["Set-Cookie"]).values()
    return headers["Location"], f"{morsel.key}={morsel.value}", morsel


def test_a_browser_sends_the_cookie_to_no_other_server_of_the_machine(opens: Opens):
    page, _, morsel = signed_in(opens(controls=True))
    # Cookies know no ports: only a path that no other server has keeps this one here.
    assert morsel["path"] == page
    assert len(page) > 30
    assert signed_in(opens(controls=True))[0] != page


def test_the_cookie_is_worth_nothing_at_another_path_and_the_path_nothing_without_it(opens: Opens):
    server = opens(controls=True)
    page, cookie, _ = signed_in(server)
    assert get(server, page, Cookie=cookie)[0] == 200
    for path in ("/", "/ws", "/metadata", "/guess/", page[:-2] + "/"):
        assert get(server, path, Cookie=cookie)[0] == 403, path
    assert get(server, page)[0] == 403
    assert get(server, "/?" + urlsplit(server.link).query)[0] == 403


def test_without_the_token_there_is_the_icon_of_bokeh_and_nothing_else(opens: Opens):
    server = opens(controls=True)
    assert get(server, "/favicon.ico")[0] == 200
    assert get(server, "/favicon.ico", Origin="http://evil.example")[0] == 403
    for path in ("/static/js/bokeh.min.js", "/favicon.ico/", "/favicon.ico/ws", "/x/favicon.ico"):
        assert get(server, path)[0] == 403, path


def test_the_page_does_not_contain_the_cookie_that_its_scripts_must_not_read(opens: Opens):
    server = opens(controls=True)
    page, cookie, _ = signed_in(server)
    _, _, body = get(server, page, Cookie=cookie, X_Secret="header-secret")
    [token] = set(re.findall(r'"token":"([\w-]+)', body))
    payload = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    packed = json.loads(payload)["__bk__zlib_"]
    told = zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))).decode()
    assert cookie.partition("=")[2] not in told
    assert "header-secret" not in told


def test_each_server_has_a_token_and_a_path_of_its_own(opens: Opens):
    links = [urlsplit(opens(controls=True).link) for _ in range(2)]
    assert links[0].query != links[1].query
    assert links[0].path != links[1].path
    tokens = set()
    for _ in range(2):
        with closing(ControlServer(None)) as server:  # type: ignore[arg-type]
            tokens.add(server.token)
    assert len(tokens) == 2


def test_other_pages_get_neither_the_path_nor_the_token(opens: Opens):
    server = opens(controls=True)
    page, cookie, _ = signed_in(server)
    assert get(server, page, Cookie=cookie)[1]["Referrer-Policy"] == "same-origin"
    assert page.strip("/") not in server.url
    assert urlsplit(server.link).query not in server.url


# Load


def test_pages_that_no_browser_connects_to_are_made_only_a_few_at_a_time(opens: Opens):
    server = opens()
    assert {get(server)[0] for _ in range(16)} == {200}
    assert opens.sessions == 12


def lines_to(port: int, number: int) -> list[socket.socket]:
    lines: list[socket.socket] = []
    while len(lines) < number:
        lines += [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(30)]
        # The answer shows that the server has accepted the others. A full queue would delay others.
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as last:
            last.request("GET", "/other")
            last.getresponse().read()
    return lines


def control_answers(server: Any) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as line:
        headers = {"Authorization": f"Bearer {server.token}"}
        line.request("GET", "/api/v1/openapi.json", headers=headers)
        return line.getresponse().status == 200


def dashboard_answers(server: Any) -> bool:
    return get(server, "/metadata")[0] == 200


@pytest.mark.parametrize("kind", ["control", "dashboard"])
def test_idle_connections_of_another_user_do_not_lock_the_owner_out(opens: Opens, kind: str):
    answers: Callable[[Any], bool]
    if kind == "control":
        # Otherwise the idle connections would end, and the owner would only wait.
        server: Any = ControlServer(None, request_timeout_s=600.0)  # type: ignore[arg-type]
        answers, most = control_answers, 128
    else:
        server, answers, most = opens(), dashboard_answers, 256
    lines = lines_to(server.port, most + 20)
    try:
        assert answers(server)
        assert answers(server)
    finally:
        for line in lines:
            line.close()
        server.close()


def test_a_connection_with_an_accepted_request_stays_when_idle_ones_are_dropped():
    with closing(ControlServer(None)) as server:  # type: ignore[arg-type]
        owner = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {"Authorization": f"Bearer {server.token}"}
        owner.request("GET", "/api/v1/openapi.json", headers=headers)
        owner.getresponse().read()
        kept = owner.sock
        lines = lines_to(server.port, 200)
        owner.request("GET", "/api/v1/openapi.json", headers=headers)
        assert owner.getresponse().status == 200
        assert owner.sock is kept
        for line in [*lines, owner]:
            line.close()
