"""What a viewer does with the pages of an experiment that runs, in a real browser."""

from __future__ import annotations

import pytest
from test_dashboard_in_browser import CLICK, open_live, wait
from test_live_run_in_browser import go, pages, seen, wait_until_seen
from test_report_in_browser import MODELS, complaints, wait_until_idle

from projection_kit import (  # isort: skip - beside the unit tests
    RecordFeed,
    about,
    projection_of,
    result,
    started,
    suggested,
)

from dasktune.dashboard.server import web
from dasktune.dashboard.server.experiment_source import SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.web import WebServer

pytest.importorskip("selenium.webdriver")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = "dasktune dashboard '/tmp/my results'"
COUNT = 24
#: One of them is a formula to a spreadsheet.
NAMES = [f"t{i:02}" if i != 22 else "=t22" for i in range(COUNT)]


def records():
    """Yield trials of which the last ones are the best, three have failed, and two run."""
    for i in range(COUNT):
        name = NAMES[i]
        yield suggested(name, float(i), lr=0.1 * (i + 1), depth=i % 5, opt=("adam", "sgd", "lion")[i % 3])
        yield started(name, float(i))
        yield result(name, 1, i + 1.0, loss=30.0 - i)
        if i < 3:
            error = {"message": f"no {name}", "traceback": f"Traceback\nno {name}"}
            yield about("TrialFailed", name, i + 2.0, status="ERROR", error=error)
        elif i < COUNT - 2:
            yield about("TrialEnded", name, i + 2.0, status="TERMINATED")


@pytest.fixture
def site():
    feed = RecordFeed()
    live = LiveExperiment(lambda: projection_of(*records(), total=COUNT), feed, command=COMMAND)
    server = WebServer(SingleExperiment(live))
    yield server, feed
    server.close()


#: The element that has the keyboard, wherever in the shadow trees it is, and the box of the filter.
FOCUSED = """
let one = document.activeElement
while (one?.shadowRoot?.activeElement) one = one.shadowRoot.activeElement
"""
BOX = f"{MODELS} const box = Bokeh.index.find_one(found[0]).input_el;"

#: Trials in the order in which the table shows them.
ORDER = f"""{MODELS}
const {{grid}} = Bokeh.index.find_one(found[0])
return Array.from({{length: grid.getDataLength()}}, (_, i) => grid.getDataItem(i).trial)
"""


#: The rows that are drawn, from the top: the texts of their first seven cells.
DRAWN = f"""{MODELS}
const rows = [...Bokeh.index.find_one(found[0]).shadow_el.querySelectorAll(".slick-row")]
rows.sort((one, other) => one.getBoundingClientRect().top - other.getBoundingClientRect().top)
return rows.map((row) => [...row.children].slice(0, 6).map((cell) => cell.textContent))
"""


def test_the_table_draws_changed_cells_and_another_viewer_sees_the_best_trial_first(browser, site):
    from selenium.webdriver.support.ui import WebDriverWait

    server, feed = site

    def wait_for_rows(*rows):
        WebDriverWait(browser, 240).until(
            lambda driver: driver.execute_script(DRAWN, "DataTable")[: len(rows)] == [*rows]
        )

    open_live(browser, server.url)
    go(browser, pages(browser).index("Trials"))
    wait_for_rows(
        ["1", "t23", "RUNNING", "7", "7", "1"],
        ["2", "=t22", "RUNNING", "8", "8", "1"],
        ["3", "t21", "TERMINATED", "9", "9", "1"],
    )
    # A few cells change at a time, and the rows stay the same ones.
    feed.put(result("=t22", 2, 40.0, loss=3.5))
    after = (
        ["1", "=t22", "RUNNING", "3.5", "3.5", "2"],
        ["2", "t23", "RUNNING", "7", "7", "1"],
        ["3", "t21", "TERMINATED", "9", "9", "1"],
    )
    wait_for_rows(*after)
    feed.put(about("TrialEnded", "=t22", 41.0, status="TERMINATED"))
    after[0][2] = "TERMINATED"
    wait_for_rows(*after)
    # The rows of the second viewer are in the order in which the first one got them.
    open_live(browser, server.url)
    go(browser, pages(browser).index("Trials"))
    wait_for_rows(*after)
    assert complaints(browser) == []
    browser.get("about:blank")


def test_a_filter_is_typed_while_the_table_changes_and_a_trial_is_selected(browser, site):
    from selenium.webdriver.common.action_chains import ActionChains

    server, feed = site
    open_live(browser, server.url)
    go(browser, pages(browser).index("Trials"))
    order = browser.execute_script(ORDER, "DataTable")
    assert order == NAMES[::-1]
    browser.execute_script(f"{MODELS} found[0].source.selected.indices = [0]", "DataTable")
    wait(browser, f"{MODELS} return found[0].tabs[1].child.children.length === 2", "Tabs")
    browser.execute_script(f"{BOX} box.focus()", "TextInput")
    text = "los < 8.5"
    for step, character in enumerate(text, 2):
        ActionChains(browser).send_keys(character).perform()
        # The next character waits until the table has changed.
        feed.put(result("t23", step, 30.0 + step, loss=7.0 - 0.5 * step))
        wait(
            browser,
            f"{MODELS} const {{trial, iteration}} = found[0].source.data;"
            "return iteration[trial.indexOf('t23')] === arguments[1]",
            "DataTable",
            step,
        )
        wait_until_idle(browser)
        assert browser.execute_script(f"{BOX} {FOCUSED} return one === box", "TextInput"), character
    assert browser.execute_script(f"{BOX} return box.value", "TextInput") == text
    said = f"{MODELS} return found.find((one) => one.name === 'filter note').text"
    assert 'Did you mean "loss"?' in browser.execute_script(said, "Paragraph")
    width = browser.execute_script(f"{BOX} return box.getBoundingClientRect().width", "TextInput")
    assert width > 800
    ActionChains(browser).send_keys("\ue011\ue014\ue014\ue014s").perform()  # Home, three to the right
    wait(browser, f"{MODELS} return found[0].value === 'loss < 8.5'", "TextInput")
    wait_until_idle(browser)
    assert browser.execute_script(ORDER, "DataTable") == ["t23", "=t22"]
    browser.execute_script(SAVE)
    wait(browser, CLICK, "button.bk-btn")
    wait(browser, "return window.saved !== undefined")
    head, *rows = browser.execute_script("return window.saved").splitlines()
    assert head.startswith("rank,trial,status,best loss,last loss,iteration,seconds,")
    assert [row.split(",")[1] for row in rows] == ["t23", "'=t22"]
    assert complaints(browser) == []
    browser.get("about:blank")


#: Catches what a page saves as a file.
SAVE = """
URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text }); return "blob:none" }
HTMLAnchorElement.prototype.click = () => {}
"""


def height(browser):
    wait_until_idle(browser)
    return browser.execute_script("return document.documentElement.scrollHeight")


def test_a_page_is_as_long_as_what_is_on_it_whichever_was_seen_before(browser, site):
    server, _ = site
    open_live(browser, server.url)
    titles = pages(browser)
    lengths = {}
    for title in ("Errors", "Scheduler", "Parameters", "Errors", "Scheduler"):
        go(browser, titles.index(title))
        lengths.setdefault(title, []).append(height(browser))
    for title in ("Errors", "Scheduler"):
        first, second = lengths[title]
        assert abs(first - second) < 20, lengths
    browser.get("about:blank")


TAB = f"""{FOCUSED} return one?.getAttribute("role") === "tab" ? one.textContent : null"""


def test_the_keyboard_reaches_the_tabs_before_the_figures_and_chooses_a_page(browser, site):
    from selenium.webdriver.common.action_chains import ActionChains

    server, _ = site
    open_live(browser, server.url)
    # The script of the page has named the tabs.
    heads = (
        f"{MODELS} return Bokeh.index.find_one(found[0]).shadow_el.querySelector('[role=tablist] [role=tab]')"
    )
    wait(browser, heads, "Tabs")
    ActionChains(browser).send_keys("\ue004").perform()  # Tab
    assert browser.execute_script(TAB) == "Overview"
    for title in ("Trials", "Parameters"):
        ActionChains(browser).send_keys("\ue014").perform()  # to the right
        assert browser.execute_script(TAB) == title
    active = f"{MODELS} return found[0].tabs[found[0].active].title"
    assert browser.execute_script(active, "Tabs") == "Parameters"
    browser.get("about:blank")


@pytest.mark.skip(reason="known to fail: the last step of the end does not always reach the page")
def test_the_page_of_a_run_that_has_ended_says_so_and_has_all_pages(browser, site, monkeypatch):
    # On a busy machine the pages may take longer than a driver waits. Then the header names the
    # pages that are not drawn, as the component tests check; here all must be drawn.
    monkeypatch.setattr(web, "_FINAL_DRAW_SECONDS", 200.0)
    monkeypatch.setattr(web, "_FINAL_POLL_TIMEOUT", 100.0)
    monkeypatch.setattr(web, "_CLOSE_TIMEOUT", 300.0)
    server, feed = site
    open_live(browser, server.url)
    titles = pages(browser)
    wait_until_seen(browser, "2 running")
    for name in ("=t22", "t23"):
        feed.put(about("TrialEnded", name, 40.0, status="TERMINATED"))
    feed.state = "driver has ended"
    server.close()
    wait_until_seen(browser, "The server of this page has ended with the run")
    assert seen(browser, COMMAND)
    # Until all pages are drawn the header names those that are not.
    wait_until_seen(browser, "This is the last state.")
    wait_until_seen(browser, "21 terminated")
    # The connection is lost now, and Bokeh does not say that it connects again, for ever.
    wait(browser, f"{MODELS} return found.some((one) => one.css_classes.includes('dt-lost'))", "Div")
    assert not browser.execute_script(
        "return [...document.body.children].some((one) => one.shadowRoot?.querySelector('.entries .error'))"
    )
    for number, title in enumerate(titles):
        # Nothing can be sent any more: what is seen now was drawn before.
        browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
        wait_until_idle(browser)
        drawn = browser.execute_script(
            f"{MODELS} return found[0].tabs[arguments[1]].child.children.every((card) => !card.visible"
            " || card.children[0].name !== 'coming')",
            "Tabs",
            number,
        )
        assert drawn, title
    errors = browser.execute_script(
        f"{MODELS} return found.filter((one) => one.visible && one.text.includes('Traceback')).length",
        "PreText",
    )
    assert errors == 3
    assert not browser.execute_script(
        f"{MODELS} return found.some((one) => one.name === 'running' && 'restored' in one.data)",
        "ColumnDataSource",
    )
    browser.get("about:blank")
