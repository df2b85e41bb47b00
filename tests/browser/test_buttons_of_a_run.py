"""The buttons in a real browser, on a real run whose driver is another process."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from bokeh.util.token import generate_jwt_token, generate_session_id
from control_kit import told_secret
from test_controls_in_browser import press
from test_dashboard_in_browser import PATIENCE, open_live, wait
from test_live_run_in_browser import column, go, header, kill, pages
from test_report_in_browser import MODELS, complaints

pytest.importorskip("selenium.webdriver")

DRIVER = Path(__file__).with_name("driver_with_buttons.py")

#: Opens a socket to the dashboard, and tells what comes of it.
CONNECT = """
const done = arguments[2]
const socket = new WebSocket(arguments[0], ["bokeh", arguments[1]])
socket.onopen = () => done("open")
socket.onerror = () => done("refused")
"""


@pytest.fixture
def driver(tmp_path):
    """Return a run in a process group of its own, and the link to its pages."""
    command = [sys.executable, str(DRIVER), str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        told, links = threading.Event(), []

        def listen():
            for line in process.stderr:
                if (link := told_secret(line, "Dashboard")) is not None:
                    links.append(link)
                    told.set()

        reader = threading.Thread(target=listen)
        reader.start()
        try:
            assert told.wait(PATIENCE), "the driver has not told the link to its dashboard"
            yield process, links[0]
        finally:
            kill(process)
            reader.join(60)


def statuses(browser, script):
    wait(browser, f"{column('status')} return all && ({script})(all)", "DataTable")


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_user_with_the_link_stops_a_trial_and_then_the_experiment(browser, driver, tmp_path):
    process, link = driver
    url = link.partition("?")[0]
    socket = f"{url.replace('http', 'ws')}ws"
    session = generate_jwt_token(generate_session_id())
    # A page of another origin gets no socket, whether the browser has the cookie or not.
    other = tmp_path / "other.html"
    other.write_text("<title>other</title>")
    for place in ("before", "after"):
        browser.get(other.as_uri())
        assert browser.execute_async_script(CONNECT, socket, session) == "refused", place
        if place == "before":
            browser.get(url)
            assert "403" in browser.page_source
            assert browser.execute_script("return window.Bokeh === undefined")
            browser.get(link)
            assert browser.current_url == url
    open_live(browser, url)
    go(browser, pages(browser).index("Trials"))
    statuses(browser, "(all) => all.filter((one) => one === 'RUNNING').length === 2")
    # Without a trial that is selected there is nothing to stop.
    press(browser, "Stop trial")
    wait(browser, header("select a trial"), "Div")
    chosen = browser.execute_script(
        f"{MODELS} const [table] = found; const row = table.source.data.status.indexOf('RUNNING');"
        " table.source.selected.indices = [row]; return table.source.data.trial[row]",
        "DataTable",
    )
    wait(browser, f"{MODELS} return found[0].tabs[1].child.children.length === 2", "Tabs")
    press(browser, "Stop trial")
    wait(browser, header(f"stop trial {chosen}?"), "Div")
    press(browser, "Confirm")
    wait(
        browser,
        f"{MODELS} const {{trial, status}} = found[0].source.data;"
        " return ['STOPPED', 'TERMINATED'].includes(status[trial.indexOf(arguments[1])])",
        "DataTable",
        chosen,
    )
    # The third trial takes its place.
    statuses(browser, "(all) => all.filter((one) => one === 'RUNNING').length === 2")
    assert not (tmp_path / "over.txt").exists()
    assert complaints(browser) == []
    press(browser, "Stop experiment")
    press(browser, "Confirm")
    assert process.wait(PATIENCE) == 0
    assert (tmp_path / "over.txt").read_text() == "3 trials, 0 failed"
    browser.get("about:blank")
    browser.delete_all_cookies()
