"""The page in Dask's own dashboard in a real browser, with real drivers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client
from test_report_in_browser import MODELS, complaints, wait_until_idle

sys.path.append(str(Path(__file__).parents[1] / "cluster"))

from cluster_kit import kill
from free_port import free_port

pytest.importorskip("selenium.webdriver")

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PATIENCE = 240

#: No name may have a slash in it, but values and errors may.
HOSTILE = "<img src=x onerror='window.__xss=1'>$$x$$"
TEXT = "</script><script>window.__xss=1</script><img src=x onerror=window.__xss=1>"

#: Reports a step each time that the test allows one more, by the number in a file.
DRIVER = """
import sys, time
from pathlib import Path
import dasktune as tune

HOSTILE, TEXT = {hostile!r}, {text!r}
PLACE = Path({place!r})

def train(config):
    for step in range(1, 100):
        while int((PLACE / "allowed").read_text() or 0) < step:
            time.sleep(0.02)
        if step == 3 and config[HOSTILE] == 1.0:
            raise ValueError(TEXT)
        if step == 50:
            return
        tune.report({{HOSTILE: config[HOSTILE] / step, "step": step}})

if __name__ == "__main__":
    tune.Tuner(
        train,
        param_space={{HOSTILE: tune.grid_search([1.0, 2.0, 3.0]), "name": TEXT}},
        tune_config=tune.TuneConfig(metric=HOSTILE, mode="min"),
        run_config=tune.RunConfig(storage_path=PLACE / "results", name={name!r}, verbose=0),
        client={address!r},
    ).fit()
"""


class Site:
    """A scheduler with a dashboard, a worker, and drivers in processes of their own."""

    def __init__(self, place: Path, *options: str, prefix: str = "") -> None:
        self.place, self._processes = place, []
        self.allow(0)
        port, web = free_port(), free_port()
        self.address = f"tcp://127.0.0.1:{port}"
        self.url = f"http://127.0.0.1:{web}{prefix}/dasktune"
        main = "from distributed.cli.dask_{} import main\nmain()"
        at = ("--host=127.0.0.1", f"--port={port}", f"--dashboard-address=127.0.0.1:{web}")
        self._start(main.format("scheduler"), *at, *options)
        flags = ("--nthreads=3", "--no-dashboard", "--memory-limit=0", "--no-nanny")
        self._start(main.format("worker"), self.address, *flags)
        with Client(self.address, timeout=PATIENCE) as client:
            client.wait_for_workers(1, timeout=PATIENCE)

    def drive(self, name: str) -> subprocess.Popen[bytes]:
        place = str(self.place)
        program = DRIVER.format(hostile=HOSTILE, text=TEXT, place=place, name=name, address=self.address)
        path = self.place / f"drive_{name}.py"
        path.write_text(program)
        return self._start(None, str(path))

    def allow(self, steps: int) -> None:
        (self.place / "allowed.new").write_text(str(steps))
        (self.place / "allowed.new").replace(self.place / "allowed")

    def close(self) -> None:
        for process in reversed(self._processes):
            kill(process)

    def _start(self, program: str | None, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.place / f"process-{len(self._processes)}.log").open("wb")
        first = [] if program is None else ["-c", program]
        path = os.pathsep.join(sys.path)
        with log:
            process = subprocess.Popen(
                [sys.executable, *first, *arguments],
                stdout=log,
                stderr=log,
                cwd=self.place,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._processes.append(process)
        return process


@contextmanager
def running(*arguments, **options):
    site = Site(*arguments, **options)
    try:
        yield site
    finally:
        site.close()


def wait(browser, script, *arguments):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, PATIENCE).until(lambda driver: driver.execute_script(script, *arguments))


def visit(browser, url, driver):
    """Open the page as soon as a driver has mounted it."""
    browser.get("about:blank")

    def is_there(_):
        assert driver.poll() is None, "the driver has ended"
        browser.get(url)
        return browser.execute_script("return document.getElementById('chosen') !== null")

    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, PATIENCE, poll_frequency=2).until(is_there)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(url)


def failed_requests(browser):
    messages = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    answers = [one["params"]["response"] for one in messages if "response" in one["params"]]
    return [(one["url"], one["status"]) for one in answers if one["status"] >= 400]


STATE = "return document.getElementById('state').className === arguments[0]"
#: The page says that it lacks the last state.
INCOMPLETE = "return document.getElementById('why').textContent.startsWith('This is the last state')"
DRAWN = "return window.Bokeh !== undefined && Bokeh.documents.length === 1"


def rows(browser):
    wait(browser, DRAWN)
    found = browser.execute_script(f"{MODELS} return found.map((one) => one.source.data)", "DataTable")
    return found[0] if found else {"iteration": []}


def wait_for_rows(browser, look):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, PATIENCE).until(lambda driver: look(rows(driver)))


def reached(browser, iteration, count=3):
    wait_for_rows(browser, lambda table: sum(one >= iteration for one in table["iteration"]) >= count)


@pytest.mark.slow
def test_the_page_shows_a_run_live_and_runs_nothing_that_users_named(browser, tmp_path):
    with running(tmp_path) as site:
        site.allow(2)
        driver = site.drive("first")
        visit(browser, site.url, driver)
        reached(browser, 2)
        assert browser.title == "first · dasktune"
        assert browser.execute_script(STATE, "alive")
        site.allow(5)
        reached(browser, 5, count=2)
        # The same models as before, which were changed: nothing was loaded again.
        for number in range(4):
            browser.execute_script(f"{MODELS} found[0].active = arguments[1]", "Tabs", number)
            wait_until_idle(browser)
            browser.execute_script(
                f"{MODELS} for (const tool of found) for (const one of tool.renderers)"
                "  one.data_source.inspected.indices = [0]",
                "HoverTool",
            )
            wait_until_idle(browser)
        # The failure may be shown later than the results of the other trials.
        wait_for_rows(browser, lambda table: any(TEXT[:10] in one for one in table.get("why", ())))
        site.allow(100)
        wait(browser, STATE, "ended")
        driver.wait()
        # On a slow machine the driver does not wait for the last figures, and the page says so.
        if not browser.execute_script(INCOMPLETE):
            reached(browser, 49, count=2)
        assert browser.execute_script("return window.__xss === undefined")
        assert complaints(browser) == []
        assert failed_requests(browser) == []


@pytest.mark.slow
def test_a_driver_that_was_killed_is_lost_at_once_and_what_it_showed_stays(browser, tmp_path):
    with running(tmp_path, "--dashboard-prefix=/user/ann", prefix="/user/ann") as site:
        site.allow(2)
        driver = site.drive("killed")
        visit(browser, site.url, driver)
        reached(browser, 2)
        driver.send_signal(signal.SIGKILL)
        wait(browser, STATE, "lost")
        # What was known stays.
        reached(browser, 2)
        assert complaints(browser) == []
        assert failed_requests(browser) == []
