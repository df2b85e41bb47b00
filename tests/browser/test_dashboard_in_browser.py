"""The live pages in a real browser."""

from __future__ import annotations

import threading

import pytest
from test_report_in_browser import MODELS, complaints, hostile_projection, wait_until_idle

from projection_kit import PAYLOADS, RecordFeed  # isort: skip - beside the unit tests

from dasktune.dashboard.server.experiment_source import ExperimentSource, SingleExperiment
from dasktune.dashboard.server.listing.experiment_summaries import ExperimentSummary
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.viewer import Viewer
from dasktune.dashboard.server.web import PageServer, WebServer

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
    projection, viewers = hostile_projection(), []

    def make_viewer(*arguments, **more):
        viewers.append(Viewer(*arguments, **more))
        return viewers[-1]

    live = LiveExperiment(lambda: projection, RecordFeed())
    server = PageServer(SingleExperiment(live), make_viewer=make_viewer)
    try:
        open_live(browser, server.url)
        [viewer] = viewers
        seen = threading.Event()
        header = viewer.document.select_one({"name": "header"})
        header.on_change("tags", lambda name, old, new: seen.set())
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
        self._summaries = []

    @staticmethod
    def projection(name):
        return lambda: hostile_projection(name=name)

    def find(self, name):
        return self.lives.get(name)

    def summaries(self):
        return self._summaries

    def refresh(self):
        if not self._summaries:
            # As while the journals are read; the rows stay the same ones later.
            self._summaries = [ExperimentSummary(name=name, state="reading") for name in self.lives]
            return True
        self._summaries = [
            ExperimentSummary(name=name, state="live", goal=name, best=float(place), created=f"2026-0{place}")
            for place, name in enumerate(self.lives, 1)
        ]
        return False

    def opened(self):
        return list(self.lives.values())


#: Finds an element by a selector in the shadow trees, and clicks it.
CLICK = """
const search = (root) => root.querySelector(arguments[0])
  ?? [...root.querySelectorAll("*")].map((one) => one.shadowRoot && search(one.shadowRoot)).find(Boolean)
const found = search(document)
if (found) found.click()
return Boolean(found)
"""

#: The states of the experiments that are drawn.
STATES = f"""{MODELS}
const {{shadow_el}} = Bokeh.index.find_one(found[0])
const rows = [...shadow_el.querySelectorAll(".slick-row .slick-cell.l2")].map((one) => one.textContent)
"""

#: Returns a column of the table of experiments, in the order in which it is seen.
SHOWN = f"""{MODELS}
const {{grid}} = Bokeh.index.find_one(found[0])
return Array.from({{length: grid.getDataLength()}}, (_, i) => grid.getDataItem(i)[arguments[1]])
"""


#: Returns the names of the boxes of a table for a screen reader, the one of the heading first.
LABELS = f"""{MODELS}
const boxes = [...Bokeh.index.find_one(found[0]).shadow_el.querySelectorAll("input[type=checkbox]")]
return boxes.map((one) => one.getAttribute("aria-label"))
"""


def test_experiments_are_chosen_and_compared_and_nothing_that_users_named_is_run(browser):
    server = WebServer(Hostile())
    try:
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(server.url)
        wait(
            browser,
            "if (!Bokeh.documents.length) return false;"
            f"{MODELS} return found.length > 0 && found[0].source.data.name.length === 3",
            "DataTable",
        )
        wait(
            browser, f"{STATES} return rows.length === 3 && rows.every((one) => one === 'live')", "DataTable"
        )
        # The newest comes first; a click on a heading sorts by another column.
        assert browser.execute_script(SHOWN, "DataTable", "best") == [3.0, 2.0, 1.0]
        wait_until_idle(browser)
        assert browser.execute_script(f"{MODELS} return found.length", "CheckboxGroup") == 0
        labels = browser.execute_script(LABELS, "DataTable")
        assert labels[0] == "Select all experiments"
        assert len(labels) == 4
        assert all(one.startswith("Select experiment ") and len(one) > 20 for one in labels[1:])
        # One alone is compared with nothing, and the page says so.
        browser.execute_script(f"{MODELS} found[0].source.selected.indices = [0]", "DataTable")
        wait(browser, CLICK, "button.bk-btn")
        wait(browser, f"{MODELS} return found.some((one) => one.text.startsWith('Select 2 to'))", "Paragraph")
        browser.execute_script(f"{MODELS} found[0].source.selected.indices = [0, 2]", "DataTable")
        wait(browser, f"{MODELS} return found[0].label === 'Compare 2 selected'", "Button")
        browser.execute_script(f"{MODELS} found[0].value = 'best > 1'", "TextInput")
        wait_until_idle(browser)
        assert browser.execute_script(SHOWN, "DataTable", "best") == [3.0, 2.0]
        browser.execute_script(f"{MODELS} found[0].value = ''", "TextInput")
        wait_until_idle(browser)
        assert browser.execute_script("return window.__xss === undefined")
        wait(browser, CLICK, "button.bk-btn")
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
