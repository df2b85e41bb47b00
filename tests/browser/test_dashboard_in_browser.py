"""The live pages in a real browser."""

from __future__ import annotations

import pytest
from test_report_in_browser import MODELS, complaints, hostile_chronicle, wait_until_idle

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
