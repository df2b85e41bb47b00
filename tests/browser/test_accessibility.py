"""axe-core, which many audits of web pages use, finds no serious fault on any page."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile

import pytest
from test_dashboard_in_browser import open_live, wait
from test_live_run_in_browser import go, pages
from test_pages_in_browser import records
from test_report_in_browser import MODELS, wait_until_idle

from projection_kit import RecordFeed, asha_journal, projection_of  # isort: skip - beside the unit tests

from dasktune.dashboard import serve
from dasktune.dashboard.report import to_html
from dasktune.dashboard.server.experiment_source import SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.web import WebServer
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage

pytest.importorskip("selenium.webdriver")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VERSION = "4.14.1"

#: Runs axe-core, and returns a line for each serious fault.
AUDIT = """
const done = arguments[0]
axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => done(
  violations.filter((one) => ["serious", "critical"].includes(one.impact)).flatMap((one) =>
    one.nodes.slice(0, 3).map((node) => `${one.id}: ${node.target.flat().join(" ")}: ${node.failureSummary}`))
))
"""


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """Return the script axe-core, which npm has."""
    npm = shutil.which("npm")
    place = tmp_path_factory.mktemp("axe")
    command = [npm or "npm", "pack", "--silent", f"axe-core@{VERSION}"]
    if npm is None or subprocess.run(command, cwd=place, capture_output=True, timeout=120).returncode:
        if os.environ.get("CI") and npm is not None:
            pytest.fail("npm cannot get axe-core")
        pytest.skip("npm is needed, and a registry that it can reach")
    [archive] = place.glob("*.tgz")
    with tarfile.open(archive) as packed:
        return packed.extractfile("package/axe.min.js").read().decode()


@pytest.fixture(params=["light", "dark"])
def theme(request, browser):
    feature = {"name": "prefers-color-scheme", "value": request.param}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    yield request.param
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def faults(browser, axe):
    wait_until_idle(browser)
    browser.execute_script(axe)
    return browser.execute_async_script(AUDIT)


def test_the_pages_of_an_experiment_have_no_serious_fault(browser, axe, theme):
    live = LiveExperiment(lambda: projection_of(*records(), total=30), RecordFeed())
    server = WebServer(SingleExperiment(live))
    try:
        open_live(browser, server.url)
        found = {}
        for number, title in enumerate(pages(browser)):
            go(browser, number)
            if title == "Trials":
                browser.execute_script(f"{MODELS} found[0].source.selected.indices = [3]", "DataTable")
                wait(browser, f"{MODELS} return found[0].tabs[1].child.children.length === 2", "Tabs")
            found[title] = faults(browser, axe)
    finally:
        browser.get("about:blank")
        server.close()
    assert not {page: some for page, some in found.items() if some}
    assert len(found) >= 6


def test_the_list_of_experiments_and_a_comparison_have_no_serious_fault(browser, axe, theme, tmp_path):
    for name in ("one", "two"):
        store = ExperimentStore(Storage(tmp_path / name))
        store.create({"name": name, "metric": "loss", "mode": "min", "total_trials": 30})
        store.begin()
        for record in asha_journal():
            store.append(record)
        store.commit(force=True)
        store.close()
    server, found = serve(tmp_path, port=0), {}
    try:
        for query, shown in (("", "DataTable"), ("?compare=one&compare=two", "Figure")):
            browser.get(f"{server.url}{query}")
            wait(browser, "return Bokeh.documents.length > 0")
            wait(browser, f"{MODELS} return found.length > 0", shown)
            found[shown] = faults(browser, axe)
        size = {"width": 800, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wait(browser, "return document.documentElement.clientWidth <= 800")
        wait_until_idle(browser)
        width = browser.execute_script("return document.documentElement.scrollWidth")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.get("about:blank")
        server.close()
    assert found == {"DataTable": [], "Figure": []}
    assert width <= 800  # the table of a comparison scrolls by itself


def test_the_report_has_no_serious_fault(open_page, axe, theme):
    browser = open_page(to_html(projection_of(*records(), total=30)))
    found = {}
    for number, title in enumerate(pages(browser)):
        browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
        found[title] = faults(browser, axe)
    assert not {page: some for page, some in found.items() if some}
