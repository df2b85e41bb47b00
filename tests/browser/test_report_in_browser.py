from __future__ import annotations

import json
import sys
from importlib.resources import files
from math import inf
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / "unit" / name) for name in ("dashboard", "results")]

from bokeh.embed import file_html
from bokeh.resources import INLINE
from filter_cases import CASES, COLUMNS, ERRORS, ROWS, text_of
from projection_kit import (
    about,
    asha_journal,
    hostile_projection,
    projection_of,
    result,
    started,
    suggested,
)

from dasktune.cli.commands.trials import TrialTable
from dasktune.dashboard.model.filter_columns import searchable_text
from dasktune.dashboard.report import to_html
from dasktune.dashboard.report.trial_table import trial_table
from dasktune.results.trial_filter import parse_filter

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
    return to_html(projection_of(*journal, name="demo"))


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
    assert left("__import__('os')") == []
    assert complaints(browser) == []


#: Conditions, and the trials that meet them; the same as on the command line.
CONDITIONS = [
    ("lr > 0.01", "b c"),
    ("lr>0.01", "b c"),
    ("0.05 < lr <= 1", "b c"),
    ("lr > 0.01 and best < 0.3", "b"),
    ("lr > 0.01 best < 0.3", "b"),
    ("loss < 0.3 or status == 'RUNNING'", "b c"),
    ("not loss < 0.3", "a c d"),
    ("loss == null", "c"),
    ("loss != 0.5", "b c d"),
    ("opt = adam or opt:SGD", "a b d"),
    ("opt in [adam, 'sgd']", "a b d"),
    ("opt not in ['adam']", "b c"),
    ("opt ~ 'AD'", "a d"),
    ("'batch size' >= 64", "b d"),
    ("`batch size` = 32", "a"),
    ("config/lr >= 1e-1", "b c"),
    ("trial_id = a", "a"),
    ("status:RUNNING", "c"),
    ("(status:RUNNING or lr < 0.01) and not trial:d", "a c"),
    ("worker:127.0.0.1:4000", "b"),
    ("fixed = 3 lr = 1", "c"),
    ("best < last", "d"),
    ("'two words'", "c"),
    ("two", "c"),
    ("loss < 0.6", "a b"),
    ("'best loss' < 0.6 and `last loss` = 0.6", "d"),
    ("status = terminated", "a b d"),
    ("worker:tcp://127.0.0.1:4000", "b"),
    ("seconds > 0 and runtime_s = seconds", "a b c d"),
    ("error = null and reason = null and why = null", "a b c d"),
    ("config/fixed = 3", "a b c d"),
    ("layers = 64", "a c"),
    ("layers in [64, wide]", "a b c"),
    ("gamma = 0.000123456789", "b"),
    ("gamma ~ 0.00001", "c"),
    ("seed = 1152921504606846977", "a"),
    ("size = inf", "d"),
    ("words two", "c"),
    ("127.0.0.1", "b"),
]

#: Invalid filters, and what is said about them; all trials are shown then.
INVALID = [
    ("lr >", "filter must have a column, a number or a text at character 5, got the end"),
    ("opt = 'adam", "filter must have a closing ' for the quote at character 7"),
    (
        "batch sizes = 1",
        'filter must have a column in the comparison at character 7, got "sizes = 1"',
    ),
]


@pytest.fixture(scope="module")
def four():
    rows = [
        ("a", 0.001, "adam", 32, "tcp://w1:1", "64", "auto", 2**60 + 1, 1.0),
        ("b", 0.1, "sgd", 64, "tcp://127.0.0.1:4000", "wide", 0.000123456789, 2**60, 2.0),
        ("c", 1.0, "two words", 16, "tcp://w1:1", 64, 1e-05, 2**60 + 3, 3.0),
        ("d", 0.01, "adam", 64, "tcp://w1:1", None, None, 5, inf),
    ]
    records = []
    for name, lr, opt, batch, worker, layers, gamma, seed, size in rows:
        config = {"layers": layers, "gamma": gamma, "seed": seed, "size": size}
        records.append(suggested(name, lr=lr, opt=opt, fixed=3, **config, **{"batch size": batch}))
        records.append(started(name, 1.0, worker))
    for name, steps in (("a", [0.5]), ("b", [0.1]), ("d", [0.4, 0.6])):
        records += [result(name, i, 2.0 + i, loss=loss) for i, loss in enumerate(steps, 1)]
        records.append(about("TrialEnded", name, 9.0, status="TERMINATED"))
    return records


@pytest.mark.parametrize("live", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_filter_understands_conditions_and_says_what_is_wrong_with_others(open_page, four, live):
    browser = open_page(file_html(trial_table(projection_of(*four), live=live), INLINE))

    def told(text):
        browser.execute_script(f"{MODELS} found[0].value = arguments[1]", "TextInput", text)
        wait_until_idle(browser)
        left = browser.execute_script(
            f"{MODELS} const {{view, source}} = found[0];"
            "return view.filter.indices.map((i) => source.data.trial[i]).sort().join(' ')",
            "DataTable",
        )
        notes = f"{MODELS} return found.map((one) => one.text)"
        return left, browser.execute_script(notes, "Paragraph")

    for text, trials in CONDITIONS:
        left, notes = told(text)
        # The best ones come first.
        assert (text, sorted(left.split())) == (text, trials.split())
        assert f"{len(trials.split())} of 4 trials" in notes
    for text, words in INVALID:
        left, notes = told(text)
        assert (text, sorted(left.split())) == (text, ["a", "b", "c", "d"])
        assert any(note.startswith(words) for note in notes), notes
    assert complaints(browser) == []


@pytest.mark.parametrize(("text", "trials"), CONDITIONS)
def test_a_filter_finds_the_same_trials_on_the_command_line(four, text, trials):
    projection = projection_of(*four)
    holds = parse_filter(text, TrialTable(projection).filter_columns(), searchable_text)
    assert " ".join(trial.trial_id for trial in projection.trials if holds(trial)) == trials


def test_the_browser_gives_the_answers_of_the_filter_language(browser):
    script = files("dasktune.dashboard.report").joinpath("trial_filter.js").read_text("utf-8")
    script += """
    const [texts, names, rows] = arguments
    const value = (one) => one?.number === undefined ? one : Number(one.number)
    const columns = new Map(names.map((name) => [name, (row) => value(row.values[name])]))
    return texts.map((text) => {
      try {
        const holds = parseFilter(text, columns, (row) => row.text)
        return rows.filter(holds).map((row) => row.key).join("")
      } catch (error) {
        if (!(error instanceof FilterError)) throw error
        return error.message
      }
    })
    """
    words = {inf: "Infinity"}
    rows = []
    for key, row in ROWS.items():
        values = {
            name: {"number": words.get(one, str(one).replace("nan", "NaN"))} if type(one) is float else one
            for name, one in row.items()
        }
        rows.append({"key": key, "values": values, "text": text_of(row)})
    texts = [text for text, _ in (*CASES, *ERRORS)]
    found = browser.execute_script(script, texts, COLUMNS, rows)
    for (text, wanted), answer in zip((*CASES, *ERRORS), found, strict=True):
        assert (text, answer[: len(wanted)] if " " in wanted else answer) == (text, wanted)


def test_a_trial_that_is_selected_shows_its_details(open_page, report):
    browser = open_page(report)
    browser.execute_script(
        f"{MODELS} found[0].source.selected.indices = [found[0].source.data.trial.length - 1]",
        "DataTable",
    )
    texts = browser.execute_script(f"{MODELS} return found.map((one) => one.text)", "PreText")
    assert any(
        text.startswith("broken: ERROR") and "x = 0.5" in text and "ValueError: no" in text for text in texts
    )
    browser.execute_script(f"{MODELS} found[0].source.selected.indices = [0]", "DataTable")
    titles = browser.execute_script(f"{MODELS} return found.map((one) => one.text)", "Title")
    first = browser.execute_script(f"{MODELS} return found[0].source.data.trial[0]", "DataTable")
    assert first in titles
    assert complaints(browser) == []


@pytest.mark.slow
def test_nothing_that_users_named_is_run(open_page):
    browser = open_page(to_html(hostile_projection()))
    count = show_all_tabs(browser)
    browser.execute_script(f"{MODELS} found[0].source.selected.indices = [0]", "DataTable")
    for number in range(count):
        browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
        browser.execute_script(
            # Every tooltip there is, as if the pointer were on the first point that it describes.
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
