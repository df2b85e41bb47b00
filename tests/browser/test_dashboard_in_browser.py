"""The pages of a run on a real cluster, in a real browser, and those of a hostile journal."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from distributed import LocalCluster
from test_report_in_browser import MODELS, complaints, hostile_chronicle, wait_until_idle

import dasktune as tune
from dasktune.dashboard.server import WebServer
from dasktune.dashboard.server.feed import DriverFeed
from dasktune.dashboard.server.live import Live
from dasktune.dashboard.server.shelf import Single

pytest.importorskip("selenium.webdriver")

PATIENCE = 240


def wait(browser, script, *arguments):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, PATIENCE).until(
        lambda driver: driver.execute_script(
            f"if (!window.Bokeh) return false; {script}", *arguments
        )
    )


def open_live(browser, url):
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(url)
    wait(browser, "return Bokeh.documents.length > 0")
    wait(browser, f"{MODELS} return found.length > 0", "Tabs")


def header(browser):
    return browser.execute_script(f"{MODELS} return found[0].text", "Div")


def wait_for_header(browser, text):
    wait(
        browser,
        f"{MODELS} return found.some((one) => one.text.includes(arguments[1]))",
        "Div",
        text,
    )


def train_in_steps(config):
    """Report once, and go on when the test says so."""
    tune.report({"loss": config["x"]})
    deadline = time.monotonic() + PATIENCE
    while not Path(config["gate"]).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tune.report({"loss": config["x"] / 2})
    if config["x"] > 3.5:
        raise ValueError("<img src=x onerror=\"window.__xss='error'\">")


@pytest.mark.timeout(600)
def test_a_run_is_seen_while_it_goes_on_and_at_its_end(browser, tmp_path, capsys):
    found = threading.Event()
    urls = []

    class Listener(tune.Callback):
        def on_trial_result(self, *args, **kwargs):
            urls.extend(word for word in capsys.readouterr().err.split() if "http://" in word)
            found.set()

    with LocalCluster(n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster:
        tuner = tune.Tuner(
            train_in_steps,
            param_space={
                "x": tune.grid_search([1.0, 2.0, 3.0, 4.0]),
                "gate": str(tmp_path / "gate"),
            },
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(
                name="seen", storage_path=tmp_path, dashboard=True, callbacks=[Listener()]
            ),
            client=cluster,
        )
        run = threading.Thread(target=tuner.fit)
        run.start()
        assert found.wait(PATIENCE)
        open_live(browser, urls[0])
        wait_for_header(browser, "4 running")
        wait_for_header(browser, "0 of 4")
        count = browser.execute_script(f"{MODELS} return found[0].tabs.length", "Tabs")
        for number in range(count):
            browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
            wait(
                browser,
                f"{MODELS} return found[0].tabs[arguments[1]].child.children.every("
                "(card) => card.children.length > 0)",
                "Tabs",
                number,
            )
        browser.execute_script(f"{MODELS} found[0].active = 1", "Tabs")
        wait(browser, f"{MODELS} return found[0].source.data.iteration.length === 4", "DataTable")
        (tmp_path / "gate").touch()
        # What comes then changes the rows that are there.
        wait(
            browser,
            f"{MODELS} return [...found[0].source.data.iteration].every((one) => one === 2)",
            "DataTable",
        )
        run.join(PATIENCE)
        assert not run.is_alive()
    assert "of 4" in header(browser)
    assert browser.execute_script("return window.__xss === undefined")
    severe = [one for one in complaints(browser) if "WebSocket" not in one and "/ws" not in one]
    assert severe == []


def test_nothing_that_users_named_is_run_by_the_live_pages(browser):
    live = Live(hostile_chronicle, DriverFeed())
    server = WebServer(Single(live))
    try:
        open_live(browser, server.url)
        count = browser.execute_script(f"{MODELS} return found[0].tabs.length", "Tabs")
        assert count == 7
        for number in range(count):
            browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
            wait(
                browser,
                f"{MODELS} return found[0].tabs[arguments[1]].child.children.every("
                "(card) => card.children.length > 0)",
                "Tabs",
                number,
            )
            wait_until_idle(browser)
            browser.execute_script(
                f"{MODELS} for (const tool of found) for (const one of tool.renderers)"
                "  one.data_source.inspected.indices = [0]",
                "HoverTool",
            )
            wait_until_idle(browser)
        browser.execute_script(f"{MODELS} found[0].active = 1", "Tabs")
        browser.execute_script(f"{MODELS} found[0].source.selected.indices = [0]", "DataTable")
        wait(
            browser,
            f"{MODELS} return found[0].tabs[1].child.children.length === 2",
            "Tabs",
        )
        wait_until_idle(browser)
        assert browser.execute_script("return window.__xss === undefined")
        assert complaints(browser) == []
    finally:
        server.close()
