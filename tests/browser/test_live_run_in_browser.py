"""A real run, whose driver is another process, as a real browser shows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from test_dashboard_in_browser import open_live, wait
from test_report_in_browser import MODELS, complaints, wait_until_idle

from projection_kit import projection_of, result, started, suggested  # isort: skip

from dasktune.dashboard import serve
from dasktune.dashboard.server.experiment_source import SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.viewer import Viewer
from dasktune.dashboard.server.web import PageServer

pytest.importorskip("selenium.webdriver")

DRIVER = Path(__file__).with_name("driver_of_a_run.py")
PATIENCE = 240


@pytest.fixture
def driver(tmp_path):
    """Return a run in a process group of its own, where its pages are, and its gates."""
    gates = tmp_path / "gates"
    gates.mkdir()
    command = [sys.executable, str(DRIVER), str(tmp_path), str(gates)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        told = threading.Event()
        urls = []

        def listen():
            for line in process.stderr:
                # Dask's own dashboard has a page of it, too, and says so in another line.
                if line.startswith("Dashboard with all figures: "):
                    urls.append(line.split()[-1])
                    told.set()

        reader = threading.Thread(target=listen)
        reader.start()
        try:
            assert told.wait(PATIENCE), "the driver has not told where its dashboard is"
            yield process, urls[0], gates
        finally:
            kill(process)
            reader.join(60)


def kill(process):
    # Its workers, too: they would wait at their gates.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def go(browser, number):
    browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
    wait(
        browser,
        f"{MODELS} return found[0].tabs[arguments[1]].child.children.every("
        "(card) => !card.visible || (card.children.length > 0 && card.children[0].name !== 'coming'))",
        "Tabs",
        number,
    )
    wait_until_idle(browser)


def pages(browser):
    return browser.execute_script(f"{MODELS} return found[0].tabs.map((one) => one.title)", "Tabs")


def column(name):
    """Return a script that gives a column of the table of trials."""
    return f"{MODELS} const all = found.map((one) => one.source.data['{name}'])[0];"


def refused(browser):
    messages = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    answers = [one["params"]["response"] for one in messages if one["method"] == _ANSWERED]
    return [(one["url"], one["status"]) for one in answers if one["status"] >= 400]


_ANSWERED = "Network.responseReceived"


def header(words):
    return f"{MODELS} return found.some((one) => one.text.includes({json.dumps(words)}))"


#: The words of the header that can be seen.
WORDS = """
const texts = []
const look = (node) => {
  if (node.nodeType === Node.TEXT_NODE) texts.push(node.data)
  else if (!node.matches?.("style, script") && (node instanceof ShadowRoot
           || getComputedStyle(node).display !== "none")) {
    const inner = node.shadowRoot ? [node.shadowRoot] : []
    for (const one of [...inner, ...node.childNodes]) look(one)
  }
}
const [header] = found.filter((one) => one.text.includes("trials done"))
if (header) look(Bokeh.index.find_one(header).el)
return texts.join(" ")
"""


def seen(browser, words):
    return words in browser.execute_script(MODELS + WORDS, "Div")


def wait_until_seen(browser, words):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, PATIENCE).until(lambda _: seen(browser, words))


@pytest.mark.slow
def test_a_page_says_when_its_server_is_silent_and_back(browser):
    records = [suggested("a"), started("a", 0.0), result("a", 1, 1.0, loss=1.0)]
    live = LiveExperiment(lambda: projection_of(*records, total=4), Silent())
    stuck, free = threading.Event(), threading.Event()

    class Source(SingleExperiment):
        # The server's loop asks for the experiments.
        def opened(self):
            if stuck.is_set():
                free.wait(PATIENCE)
            return super().opened()

    server = PageServer(Source(live), make_viewer=partial(Viewer, heartbeat_s=0.0, lost_after_s=10.0))
    try:
        open_live(browser, server.url)
        wait_until_seen(browser, "driver is running")
        # The connection stays open, but its other end does not answer.
        stuck.set()
        wait_until_seen(browser, "this page's server does not answer")
        assert seen(browser, "1 was running")
        free.set()
        wait_until_seen(browser, "driver is running")
        assert not seen(browser, "does not answer")
        assert complaints(browser) == []
    finally:
        free.set()
        browser.get("about:blank")
        server.close()


class Silent:
    """A driver that lives and says nothing."""

    state, always_follow, now, read_share = "driver is running", False, None, None

    def poll(self):
        return False, iter(())


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_page_shows_a_run_while_it_lasts_and_as_lost_without_its_driver(browser, driver, tmp_path):
    process, url, gates = driver
    (gates / "1").touch()
    open_live(browser, url)
    titles = pages(browser)
    assert titles[:3] == ["Overview", "Trials", "Parameters"]
    go(browser, titles.index("Trials"))
    wait(
        browser,
        f"{column('iteration')} return all.length === 4 && all.every((i) => i === 1)",
        "DataTable",
    )
    # What comes is shown without anybody doing anything.
    (gates / "2").touch()
    (gates / "3").touch()
    reached = f"{column('iteration')} return [...all].sort().join() === '1,3,3,3'"
    wait(browser, reached, "DataTable")
    wait(
        browser,
        f"{column('status')} return all.filter((one) => one === 'ERROR').length === 1",
        "DataTable",
    )
    for number, title in enumerate(titles):
        go(browser, number)
        if title == "Workers":
            wait(
                browser,
                f"{MODELS} return found.filter((one) => 'restored' in one.data)"
                ".reduce((sum, one) => sum + one.data.left.length, 0) === 4",
                "ColumnDataSource",
            )
        if title == "Errors":
            wait(browser, header("the third one breaks"), "PreText")
    assert complaints(browser) == []
    assert refused(browser) == []
    assert seen(browser, "driver is running")
    assert seen(browser, "3 running")
    assert not seen(browser, "driver is lost")
    kill(process)
    # The server is gone with its driver, so the page has to see it by itself.
    wait_until_seen(browser, "driver is lost")
    assert not seen(browser, "driver is running")
    assert seen(browser, "3 were running")
    assert not seen(browser, "left")
    browser.get("about:blank")
    server = serve(tmp_path / "watched", port=0)
    try:
        open_live(browser, server.url)
        wait(browser, header("driver is lost, last sign of life"), "Div")
        wait(browser, header("3 were running"), "Div")
        assert complaints(browser) == []
    finally:
        browser.get("about:blank")
        server.close()
