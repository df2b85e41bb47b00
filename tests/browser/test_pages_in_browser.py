"""What a viewer does with the pages of an experiment that runs, in a real browser."""

from __future__ import annotations

import pytest
from test_dashboard_in_browser import open_live, wait
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

from dasktune.dashboard.server.experiment_source import SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.parts.trial_brush import TrialBrush
from dasktune.dashboard.server.viewer import Viewer
from dasktune.dashboard.server.web import EndLimits, PageServer, WebServer
from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.storage.fs.storage import Storage

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
def site(request):
    """Serve the experiment, with the options of the server that a test has as its parameter."""
    feed = RecordFeed()
    live = LiveExperiment(lambda: projection_of(*records(), total=COUNT), feed, command=COMMAND)
    server = PageServer(SingleExperiment(live), **getattr(request, "param", {}))
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
    press(browser, "download")
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


# On a busy machine the pages may take longer than a driver waits. Then the header names the pages
# that are not drawn, as the component tests check; here all must be drawn.
@pytest.mark.parametrize(
    "site",
    [{"end_limits": EndLimits(poll_s=100.0, draw_s=200.0, close_s=300.0)}],
    indirect=True,
    ids=["patient"],
)
def test_the_page_of_a_run_that_has_ended_says_so_and_has_all_pages(browser, site):
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


#: The place of a figure's frame in the window, by the figure's title or the label of its axis.
FRAME = f"""{MODELS}
const plot = found.find((one) => one.title?.text.startsWith(arguments[1])
  || (!one.title && one.below[0]?.axis_label === arguments[1]))
const view = plot && Bokeh.index.find_one(plot)
if (!view?.canvas_view) return null
view.el.scrollIntoView({{block: "center"}})
const {{left, top, width, height}} = view.frame.bbox
const box = view.canvas_view.el.getBoundingClientRect()
return [box.left + left, box.top + top, width, height]
"""

#: Trials that a figure shows.
SHOWN_TRIALS = f"""{MODELS}
const plot = found.find((one) => one.title?.text.startsWith(arguments[1])
  || (!one.title && one.below[0]?.axis_label === arguments[1]))
const shown = []
for (const one of plot?.renderers ?? []) {{
  const {{trial}} = one.data_source?.data ?? {{}}
  if (trial) shown.push(...[...one.view.indices].map((i) => trial[i]))
}}
return shown
"""


def drag(browser, title, left, bottom, right, top):
    """Draw a box in a figure; the places are shares of its frame, from the left and from below."""
    from selenium.webdriver.common.action_chains import ActionChains

    x, y, width, height = wait(browser, FRAME, "Figure", title)
    actions = ActionChains(browser)
    mouse = actions.w3c_actions.pointer_action
    mouse.move_to_location(int(x + left * width), int(y + (1 - top) * height))
    mouse.pointer_down()
    mouse.move_to_location(int(x + right * width), int(y + (1 - bottom) * height))
    mouse.pointer_up()
    actions.perform()


def until(browser, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 240).until(lambda driver: condition())


def chosen(browser):
    """Return the trials that the viewer has chosen."""
    code = f"{MODELS} return found.find((one) => one.name === 'brush').tags"
    return browser.execute_script(code, "Paragraph")


def press(browser, name):
    """Press a button with the keyboard."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    focus = f"""{MODELS}
    Bokeh.index.find_one(found.find((one) => one.name === arguments[1])).button_el.focus()
    """
    browser.execute_script(focus, "Button", name)
    ActionChains(browser).send_keys(Keys.ENTER).perform()


def test_a_box_in_a_figure_chooses_the_trials_of_table_curves_and_slices(browser, site):
    server, _ = site
    open_live(browser, server.url)
    go(browser, 2)
    until(browser, lambda: len(browser.execute_script(SHOWN_TRIALS, "Figure", "lr")) == COUNT)
    # The lower half of the first axis, which is lr: the first trials.
    drag(browser, "Parallel coordinates", 0.02, 0.02, 0.15, 0.5)
    until(browser, lambda: chosen(browser))
    first = chosen(browser)
    assert 0 < len(first) < COUNT
    assert set(first) < set(NAMES[:14])
    until(browser, lambda: len(browser.execute_script(SHOWN_TRIALS, "Figure", "lr")) == len(first))
    # A second box, in another figure, narrows the choice.
    drag(browser, "lr", 0.02, 0.02, 0.3, 0.98)
    until(browser, lambda: len(chosen(browser)) < len(first))
    second = chosen(browser)
    assert set(second) < set(first)
    go(browser, 1)
    until(browser, lambda: set(browser.execute_script(ORDER, "DataTable")) == set(second))
    go(browser, 0)
    shown = [SHOWN_TRIALS, "Figure", "Learning curves"]
    until(browser, lambda: set(browser.execute_script(*shown)) == set(second))
    # The keyboard shows all again, and chooses by the filter of the table.
    press(browser, "clear brush")
    until(browser, lambda: not chosen(browser))
    go(browser, 1)
    until(browser, lambda: len(browser.execute_script(ORDER, "DataTable")) == COUNT)
    browser.execute_script(f"{MODELS} found[0].value = 'depth == 1'", "TextInput")
    until(browser, lambda: len(browser.execute_script(ORDER, "DataTable")) < COUNT)
    press(browser, "brush filtered")
    until(browser, lambda: chosen(browser))
    assert set(chosen(browser)) == {NAMES[i] for i in range(1, COUNT, 5)}
    assert complaints(browser) == []


def with_small_brush(*arguments, **more):
    return Viewer(*arguments, **more, brush=TrialBrush(most_characters=20))


@pytest.mark.parametrize("site", [{"make_viewer": with_small_brush}], indirect=True, ids=["small brush"])
def test_more_trials_than_a_message_to_the_server_may_have_are_not_chosen(browser, site):
    server, _ = site
    open_live(browser, server.url)
    go(browser, 1)
    browser.execute_script(f"{MODELS} found[0].value = 'depth == 1'", "TextInput")
    until(browser, lambda: len(browser.execute_script(ORDER, "DataTable")) < COUNT)
    press(browser, "brush filtered")
    bar = f"{MODELS} return found.find((one) => one.name === arguments[1])"
    text = f"{bar}.text"
    until(browser, lambda: "5 trials are too many" in browser.execute_script(text, "Paragraph", "brush"))
    assert chosen(browser) == []
    press(browser, "clear brush")
    until(browser, lambda: not browser.execute_script(f"{bar}.visible", "Row", "brush bar"))
    assert complaints(browser) == []


def test_the_output_of_a_trial_is_followed_below_its_details(browser, tmp_path):
    storage, name = Storage(tmp_path / "exp"), f"trials/{NAMES[20]}/stdout"
    TunerFile({"run_config.log_to_file": {"value": True}}).write(storage)
    storage.write_bytes(name, b"<img src=x onerror='window.__xss=1'>\nfirst\n")
    live = LiveExperiment(lambda: projection_of(*records(), total=COUNT), RecordFeed(), storage=storage)
    server = WebServer(SingleExperiment(live))
    text = f"{MODELS} return found.find((one) => one.name === 'log 0')?.text ?? ''"
    try:
        open_live(browser, server.url)
        go(browser, 1)
        select = f"""{MODELS}
        const {{source}} = found[0]
        source.selected.indices = [source.data.trial.indexOf(arguments[1])]
        """
        browser.execute_script(select, "DataTable", NAMES[23])
        browser.execute_script(select, "DataTable", NAMES[20])
        until(browser, lambda: browser.execute_script(text, "PreText").endswith("first"))
        # The trial has ended in the journal, so the file is looked at every ten seconds.
        storage.write_bytes(name, b"<img src=x onerror='window.__xss=1'>\nfirst\nnext\n")
        until(browser, lambda: browser.execute_script(text, "PreText").endswith("next"))
        assert browser.execute_script("return window.__xss === undefined")
        # A user who has scrolled up keeps the place; another stays at the end.
        lines = b"".join(b"line %d\n" % number for number in range(200))
        storage.write_bytes(name, lines)
        until(browser, lambda: browser.execute_script(text, "PreText").endswith("line 199"))
        box = f"{MODELS} const box = Bokeh.index.find_one(found.find((one) => one.name === 'log 0')).el;"
        assert browser.execute_script(f"{box} return box.scrollTop", "PreText") == 0
        browser.execute_script(f"{box} box.scrollTop = -500", "PreText")
        storage.write_bytes(name, lines + b"more\n")
        until(browser, lambda: browser.execute_script(text, "PreText").endswith("more"))
        wait_until_idle(browser)
        assert browser.execute_script(f"{box} return box.scrollTop", "PreText") < -400
        assert complaints(browser) == []
    finally:
        browser.get("about:blank")
        server.close()
