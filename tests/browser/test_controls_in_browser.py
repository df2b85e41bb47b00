"""The dashboard's buttons in a real browser, on an experiment that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_dashboard_in_browser import MODELS, open_live, wait

from projection_kit import (  # isort: skip - beside the unit tests
    RecordFeed,
    projection_of,
    result,
    started,
    suggested,
)

from dasktune.dashboard.model.load import empty_projection
from dasktune.dashboard.server.experiment_source import SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.web import WebServer
from dasktune.errors import ConfigError
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import MemoryStore

pytest.importorskip("selenium.webdriver")
sys.path.append(str(Path(__file__).parents[1] / "unit" / "control"))

PRESS = (
    f"{MODELS} const [one] = found.filter((one) => one.label === arguments[1]);"
    " if (!one || !one.visible) return false;"
    " const view = Object.values(Bokeh.index).length && Bokeh.index.find_one(one);"
    " if (!view) return false; view.click(); return true;"
)


class TellingStore(MemoryStore):
    """Puts each record that is appended to the journal into a feed."""

    def __init__(self, feed):
        super().__init__()
        self.feed = feed

    def append(self, record):
        position = super().append(record)
        self.feed.put(decode(self._lines[-1]))
        return position


@pytest.fixture
def place():
    from control_kit import Controlled

    feed = RecordFeed()
    place = Controlled(TellingStore(feed))
    live = LiveExperiment(lambda: empty_projection({"metric": "loss", "mode": "min"}), feed)
    server = WebServer(SingleExperiment(live), commander=lambda: place.runner.commands)
    yield place, server
    server.close()
    place.close()


def press(browser, label):
    wait(browser, PRESS, "Button", label)


def held(place):
    return place.runner.commands.ask(lambda experiment, now: experiment.state.on_hold).result(60)


@pytest.mark.slow
def test_a_user_with_the_link_holds_and_stops_an_experiment(browser, place):
    run, server = place
    browser.get(server.url)
    assert "403" in browser.page_source
    assert browser.execute_script("return window.Bokeh === undefined")
    open_live(browser, server.link)
    assert browser.current_url == server.link.partition("?")[0]
    assert not [one for one in browser.get_cookies() if not one["httpOnly"]]
    press(browser, "Hold new trials")
    assert not held(run)
    press(browser, "Confirm")
    wait(browser, f"{MODELS} return found.some((one) => one.text.includes('release'))", "Div")
    assert held(run)
    press(browser, "Stop experiment")
    press(browser, "Confirm")
    run.wait()
    assert run.experiment.finished
    records = [decode(line) for line in run.store.journal.splitlines()]
    by = [one["by"] for one in records if "by" in one]
    assert by == ["viewer of the dashboard at 127.0.0.1"] * 2
    browser.delete_all_cookies()


@pytest.mark.slow
def test_each_click_on_the_page_what_if_computes_and_bokeh_does_not_warn(browser):
    errors = iter(("too few <trials>", "still too few"))

    def replay(*, progress):
        raise ConfigError(next(errors))

    records = [suggested("a", x=1.0), started("a", 0.0), result("a", 1, 1.0, loss=1.0)]
    live = LiveExperiment(lambda: projection_of(*records), RecordFeed(), replay=replay)
    server = WebServer(SingleExperiment(live))
    try:
        open_live(browser, server.url)
        browser.execute_script(
            f"{MODELS} found[0].active = found[0].tabs.findIndex((one) => one.title === 'What if')", "Tabs"
        )
        for text in ("too few &lt;trials&gt;", "still too few"):
            # A warning of Bokeh's server, which is an error in these tests, would lose the click.
            press(browser, "Compute")
            wait(
                browser, f"{MODELS} return found.some((one) => one.text.includes(arguments[1]))", "Div", text
            )
    finally:
        browser.get("about:blank")
        server.close()
