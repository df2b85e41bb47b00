"""The live pages in a real browser."""

from __future__ import annotations

import threading

import pytest
from test_report_in_browser import MODELS, complaints, hostile_projection, wait_until_idle

from projection_kit import PAYLOADS, RecordFeed  # isort: skip - beside the unit tests

from dasktune.dashboard.server.experiment_source import ExperimentSource, SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.web import WebServer

pytest.importorskip("selenium.webdriver")

PATIENCE = 240


def wait(browser, script, *arguments):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, PATIENCE).until(
        lambda driver: driver.execute_script(f"if (!window.Bokeh) return false; {script}", *arguments)
    )


def open_live(browser, url):
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(url)
    wait(browser, "return Bokeh.documents.length > 0")
    wait(browser, f"{MODELS} return found.length > 0", "Tabs")


@pytest.mark.slow
def test_nothing_that_users_named_is_run_by_the_live_pages(browser):
    live = LiveExperiment(hostile_projection, RecordFeed())
    server = WebServer(SingleExperiment(live))
    try:
        open_live(browser, server.url)
        count = browser.execute_script(f"{MODELS} return found[0].tabs.length", "Tabs")
        assert count == 7
        for number in range(count):
            browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
            wait(
                browser,
                f"{MODELS} return found[0].tabs[arguments[1]].child.children.every("
                "(card) => !card.visible"
                " || (card.children.length > 0 && card.children[0].name !== 'coming'))",
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


SEE = """
Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true})
document.dispatchEvent(new Event("visibilitychange"))
"""


@pytest.mark.slow
def test_a_page_behind_another_one_is_sent_nothing_until_it_is_seen_again(browser):
    projection = hostile_projection()
    server = WebServer(SingleExperiment(LiveExperiment(lambda: projection, RecordFeed())))
    try:
        open_live(browser, server.url)
        [viewer] = server._viewers
        seen = threading.Event()
        viewer._header.on_change("tags", lambda name, old, new: seen.set())
        for hidden in (True, False):
            seen.clear()
            browser.execute_script(SEE, hidden)
            assert seen.wait(PATIENCE)
            assert viewer.is_hidden == hidden
        assert complaints(browser) == []
    finally:
        browser.get("about:blank")
        server.close()


class Hostile(ExperimentSource):
    """Experiments whose very names are attacks."""

    def __init__(self):
        self.lives = {name: LiveExperiment(self.projection(name), RecordFeed()) for name in PAYLOADS[:3]}

    @staticmethod
    def projection(name):
        return lambda: hostile_projection(name=name)

    def find(self, name):
        return self.lives.get(name)

    def listing(self):
        return "<b>Experiments</b>"

    def names(self):
        return list(self.lives)

    def opened(self):
        return list(self.lives.values())


CLICK = """
const button = (root) => [...root.querySelectorAll("*")].map((one) =>
  one.tagName === "BUTTON" ? one : one.shadowRoot && button(one.shadowRoot)).find(Boolean)
const found = button(document)
if (found) found.click()
return Boolean(found)
"""


def test_experiments_are_chosen_and_compared_and_nothing_that_users_named_is_run(browser):
    server = WebServer(Hostile())
    try:
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(server.url)
        wait(
            browser,
            "if (!Bokeh.documents.length) return false;" + f"{MODELS} return found.length > 0",
            "CheckboxGroup",
        )
        browser.execute_script(f"{MODELS} found[0].active = [0, 2]", "CheckboxGroup")
        wait(browser, CLICK)
        wait(browser, "return location.search.split('compare=').length === 3")
        wait(
            browser,
            "if (!Bokeh.documents.length) return false;"
            f"{MODELS} return found.some((one) => one.text.includes('<table'))",
            "Div",
        )
        lines = f"{MODELS} return found.filter((one) => 'experiment' in one.data).length"
        assert browser.execute_script(lines, "ColumnDataSource") == 4
        wait_until_idle(browser)
        browser.execute_script(
            f"{MODELS} for (const tool of found) for (const one of tool.renderers)"
            "  one.data_source.inspected.indices = [0]",
            "HoverTool",
        )
        wait_until_idle(browser)
        assert browser.execute_script("return window.__xss === undefined")
        assert complaints(browser) == []
    finally:
        browser.get("about:blank")
        server.close()
