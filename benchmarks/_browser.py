"""Headless Chromium, driven by Selenium, that shows pages of the dashboard."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "browser",
    "first_paint_s",
    "open_dashboard",
    "open_page",
    "page_errors",
    "titles",
    "wait_for_journal",
    "websocket_bytes",
]

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)

#: Seconds to wait: a busy machine may take a hundred times as long as an idle one.
_TIMEOUT_S = 1_800

_TABS = """
if (!window.Bokeh || !Bokeh.documents.length) return null
const tabs = [...Bokeh.documents[0]._all_models.values()].find((one) => one.type === "Tabs")
if (tabs === undefined) return null
"""

_IS_SHOWN = f"""{_TABS}
const isShown = (card) => !card.visible || (card.children.length > 0 && card.children[0].name !== "coming")
return tabs.tabs[tabs.active].child.children.every(isShown)
  && Bokeh.documents[0].is_idle
"""

_IS_READ = f"""{_TABS}
return !JSON.stringify(Bokeh.documents[0].to_json()).includes("reading the journal")
"""


@contextmanager
def browser(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """Yield a browser with an empty window of `width` by `height` pixels."""
    from selenium import webdriver

    found = shutil.which("chromium") or shutil.which("google-chrome")
    program = shutil.which("chromedriver")
    if found is None or program is None:
        raise FileNotFoundError("needs chromium and chromedriver")
    with tempfile.TemporaryDirectory(prefix="dasktune-chromium-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = found
        for option in (
            *_OPTIONS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
        ):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=program))
        # Otherwise the HTTP client of Selenium times out before the waits below do.
        driver.command_executor._client_config.timeout = 2 * _TIMEOUT_S
        driver.set_page_load_timeout(_TIMEOUT_S)
        driver.set_script_timeout(_TIMEOUT_S)
        try:
            yield driver
        finally:
            driver.quit()


def _wait(driver: Any, script: str, *arguments: Any) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, _TIMEOUT_S, poll_frequency=0.05).until(
        lambda one: one.execute_script(script, *arguments)
    )


def open_dashboard(driver: Any, url: str) -> None:
    """Open the dashboard and wait until its first page is drawn."""
    driver.get(url)
    _wait(driver, _IS_SHOWN)
    _wait_for_draw(driver)


def first_paint_s(driver: Any) -> float:
    """Return the seconds from the click until the browser showed text of the open page."""
    script = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return float(driver.execute_script(script)) / 1e3


def wait_for_journal(driver: Any) -> None:
    """Wait until the page no longer says that the journal is being read."""
    _wait(driver, _IS_READ)


def titles(driver: Any) -> list[str]:
    """Return the titles of the pages."""
    return [*driver.execute_script(f"{_TABS} return tabs.tabs.map((tab) => tab.title)")]


def open_page(driver: Any, page: int) -> None:
    """Open a page of the dashboard and wait until it is drawn."""
    driver.execute_script(f"{_TABS} tabs.active = arguments[0]", page)
    _wait(driver, _IS_SHOWN)
    _wait_for_draw(driver)


def _wait_for_draw(driver: Any) -> None:
    # After two frames every change has been drawn.
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )


def page_errors(driver: Any) -> list[str]:
    """Return the errors of the page since the last call."""
    return [one["message"] for one in driver.get_log("browser") if one["level"] == "SEVERE"]


def websocket_bytes(driver: Any) -> int:
    """Return how many bytes the websockets received since the last call."""
    total = 0
    for one in driver.get_log("performance"):
        message = json.loads(one["message"])["message"]
        if message["method"] == "Network.webSocketFrameReceived":
            frame = message["params"]["response"]
            length = len(frame["payloadData"])
            # The log has binary frames in base64.
            total += length if frame["opcode"] == 1 else length * 3 // 4
    return total
