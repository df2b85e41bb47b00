"""What a real browser gives to other servers of the machine, and does for pages of other sites."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from bokeh.util.token import generate_jwt_token, generate_session_id
from projection_kit import RecordFeed

from dasktune.dashboard.model.load import empty_projection
from dasktune.dashboard.server.experiment_source import SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.web import WebServer

pytest.importorskip("selenium.webdriver")


class OtherServer:
    """A server of another user, which serves a page and notes the requests of the browser."""

    def __init__(self) -> None:
        self.page = ""
        self.requests: list[tuple[str, str | None]] = []
        other = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                other.requests.append((self.path, self.headers.get("Cookie")))
                body = other.page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(60)


@pytest.fixture
def other() -> Iterator[OtherServer]:
    server = OtherServer()
    yield server
    server.close()


class CountingSource(SingleExperiment):
    """Counts the pages that the dashboard makes."""

    pages = 0

    def known(self, name: str) -> LiveExperiment | None:
        self.pages += 1
        return super().known(name)


def source() -> CountingSource:
    return CountingSource(
        LiveExperiment(lambda: empty_projection({"metric": "loss", "mode": "min"}), RecordFeed())
    )


@pytest.mark.slow
def test_the_browser_gives_the_cookie_to_no_other_server_of_the_machine(browser: Any, other: OtherServer):
    server = WebServer(source(), commander=lambda: None)
    try:
        browser.get(server.link)
        assert browser.current_url == server.link.partition("?")[0]
        [cookie] = browser.get_cookies()
        other.page = "<title>other</title>"
        for path in ("", "ws", "guess/"):
            browser.get(other.url + path)
        paths = [path for path, _ in other.requests]
        assert {"/", "/ws", "/guess/"} <= set(paths)
        assert [given for _, given in other.requests if given is not None] == []
        # The path is the secret that keeps the cookie here: a server that knew it would get it.
        browser.get(other.url + cookie["path"][1:])
        assert dict(other.requests)[cookie["path"]] == f"{cookie['name']}={cookie['value']}"
    finally:
        browser.get("about:blank")
        browser.delete_all_cookies()
        server.close()


#: Lets the browser request the dashboard in the ways in which any page can, and tells what came.
ATTACKS = """
<img src="{url}"><script src="{url}autoload.js?bokeh-autoload-element=x"></script>
<iframe src="{url}"></iframe><link rel="prefetch" href="{url}"><link rel="stylesheet" href="{url}">
<script>
window.told = []
const tell = (what) => window.told.push(what)
fetch("{url}", {{mode: "no-cors", credentials: "include"}}).then(() => tell("fetch"), () => tell("fetch"))
fetch("{url}metadata").then(() => tell("read"), () => tell("refused"))
const socket = new WebSocket("{ws}", ["bokeh", "{token}"])
socket.onopen = () => tell("socket")
socket.onerror = () => tell("refused")
window.onload = () => tell("loaded")
</script>
"""


@pytest.mark.parametrize("controls", [False, True])
def test_a_page_of_another_origin_makes_the_dashboard_do_nothing(
    browser: Any, other: OtherServer, controls: bool
):
    from selenium.webdriver.support.ui import WebDriverWait

    pages = source()
    server = WebServer(pages, commander=(lambda: None) if controls else None)
    try:
        url = server.link.partition("?")[0]
        token = generate_jwt_token(generate_session_id())
        other.page = ATTACKS.format(url=url, ws=f"{url.replace('http', 'ws')}ws", token=token)
        browser.get(other.url)
        WebDriverWait(browser, 120).until(lambda one: len(one.execute_script("return told")) == 4)
        told = browser.execute_script("return told")
        assert sorted(told) == ["fetch", "loaded", "refused", "refused"]
        assert pages.pages == 0
        # A link to the dashboard is no attack.
        if not controls:
            browser.execute_script("location.href = arguments[0]", url)
            WebDriverWait(browser, 120).until(lambda one: one.current_url == url)
            WebDriverWait(browser, 120).until(lambda one: pages.pages == 1)
    finally:
        browser.get("about:blank")
        server.close()
