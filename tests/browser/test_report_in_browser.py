from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "dashboard"))

from chronicle_kit import (
    about,
    asha_journal,
    chronicle_of,
    hostile_chronicle,
    started,
    suggested,
)

from dasktune.dashboard.report import to_html

#: Finds the models of a kind in what the browser has, not in what it was sent.
MODELS = """
const found = []
const kind = arguments[0]
Bokeh.documents[0]._all_models.forEach((model) => model.type === kind && found.push(model))
"""


@pytest.fixture(scope="module")
def report():
    error = {"message": "ValueError: no", "traceback": "Traceback\nValueError: no"}
    failed = about("TrialFailed", "broken", 3.0, status="ERROR", error=error)
    journal = [*asha_journal(), suggested("broken", x=0.5), started("broken", 2.0), failed]
    return to_html(chronicle_of(*journal, name="demo"))


def complaints(browser):
    return [one["message"] for one in browser.get_log("browser") if one["level"] == "SEVERE"]


def requests(browser):
    messages = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    sent = [one for one in messages if one["method"] == "Network.requestWillBeSent"]
    urls = [one["params"]["request"]["url"] for one in sent]
    return [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]


def show_all_tabs(browser):
    count = browser.execute_script(f"{MODELS} return found[0].tabs.length", "Tabs")
    for number in range(count):
        browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
        wait_until_idle(browser)
    return count


def wait_until_idle(browser):
    # Two frames on, everything that has changed has been drawn.
    browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )


def test_the_report_opens_offline_and_without_complaint(open_page, report):
    browser = open_page(report)
    assert browser.title == "demo · dasktune"
    assert show_all_tabs(browser) == 6
    assert complaints(browser) == []
    assert requests(browser) == []


def test_the_filter_leaves_the_trials_that_are_asked_for(open_page, report):
    browser = open_page(report)

    def left(text):
        browser.execute_script(f"{MODELS} found[0].value = arguments[1]", "TextInput", text)
        wait_until_idle(browser)  # callbacks of Bokeh are asynchronous
        return browser.execute_script(
            f"{MODELS} const {{view, source}} = found[0];"
            "return view.filter.indices.map((i) => source.data.trial[i])",
            "DataTable",
        )

    everybody = left(" ")
    assert len(everybody) == 31
    assert left("status:ERROR") == ["broken"]
    assert left("BROKEN") == ["broken"]
    assert 0 < len(left("iteration>=9")) < 30
    assert left("iteration>=9 iteration<9") == []
    assert len(left("x<=0.5")) + len(left("x>0.5")) == 31
    # A field that is not there is said to be unknown, and decides nothing.
    assert len(left("constructor:1")) == 31
    assert left("__import__('os')") == []
    assert complaints(browser) == []


def test_a_trial_that_is_selected_shows_its_details(open_page, report):
    browser = open_page(report)
    browser.execute_script(
        f"{MODELS} found[0].source.selected.indices = [found[0].source.data.trial.length - 1]",
        "DataTable",
    )
    texts = browser.execute_script(f"{MODELS} return found.map((one) => one.text)", "PreText")
    assert any(
        text.startswith("broken: ERROR") and "x = 0.5" in text and "ValueError: no" in text
        for text in texts
    )
    browser.execute_script(f"{MODELS} found[0].source.selected.indices = [0]", "DataTable")
    titles = browser.execute_script(f"{MODELS} return found.map((one) => one.text)", "Title")
    first = browser.execute_script(f"{MODELS} return found[0].source.data.trial[0]", "DataTable")
    assert first in titles
    assert complaints(browser) == []


def test_nothing_that_users_named_is_run(open_page):
    browser = open_page(to_html(hostile_chronicle()))
    count = show_all_tabs(browser)
    browser.execute_script(f"{MODELS} found[0].source.selected.indices = [0]", "DataTable")
    for number in range(count):
        browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
        browser.execute_script(
            # Every tooltip there is, as if the pointer were on the first of what it tells of.
            f"{MODELS} for (const tool of found) for (const one of tool.renderers)"
            "  one.data_source.inspected.indices = [0]",
            "HoverTool",
        )
        wait_until_idle(browser)
    found = browser.execute_script(
        "let found = 0; const look = (root) => root.querySelectorAll('*').forEach((one) => {"
        " if (one.tagName === 'IMG' && one.getAttribute('src') === 'x') found++;"
        " if (one.shadowRoot) look(one.shadowRoot) }); look(document); return found"
    )
    assert found == 0
    assert browser.execute_script("return window.__xss === undefined")
    assert requests(browser) == []
    assert complaints(browser) == []


def test_the_test_of_attacks_would_see_one(open_page, report):
    evil = report.replace("<body>", "<body><img src=x onerror=\"window.__xss='img'\">")
    browser = open_page(evil)
    assert browser.execute_script("return window.__xss") == "img"
    assert complaints(browser) != []
