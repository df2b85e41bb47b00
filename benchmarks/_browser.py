"""Chromium without a window, driven by Selenium, and pages of the dashboard in it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "await_the_journal",
    "browser",
    "complaints",
    "go_to",
    "open_dashboard",
    "received",
    "titles",
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

#: Seconds: a machine that is busy may take a hundred times as long as an idle one.
_PATIENCE = 1_800

_TABS = """
if (!window.Bokeh || !Bokeh.documents.length) return null
const tabs = [...Bokeh.documents[0]._all_models.values()].find((one) => one.type === "Tabs")
if (tabs === undefined) return null
"""

_IS_SHOWN = f"""{_TABS}
const isShown = (card) => card.children.length > 0 && card.children[0].name !== "coming"
return tabs.tabs[tabs.active].child.children.every(isShown)
  && Bokeh.documents[0].is_idle
"""

_IS_READ = f"""{_TABS}
return !JSON.stringify(Bokeh.documents[0].to_json()).includes(" is being read")
"""


@contextmanager
def browser(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """Give a browser with an empty window of a size in pixels."""
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
        # Else Selenium itself gives up earlier than what it waits for.
        driver.command_executor._client_config.timeout = 2 * _PATIENCE
        driver.set_page_load_timeout(_PATIENCE)
        driver.set_script_timeout(_PATIENCE)
        try:
            yield driver
        finally:
            driver.quit()


def _wait(driver: Any, script: str, *arguments: Any) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, _PATIENCE, poll_frequency=0.05).until(
        lambda one: one.execute_script(script, *arguments)
    )


def open_dashboard(driver: Any, url: str) -> None:
    """Open the dashboard, and wait until its first page is drawn."""
    driver.get(url)
    _wait(driver, _IS_SHOWN)
    _let_draw(driver)


def await_the_journal(driver: Any) -> None:
    """Wait until the page says no more that the journal is being read."""
    _wait(
        driver,
        f"{_TABS} return !JSON.stringify(Bokeh.documents[0].to_json()).includes(' is being read')",
    )


def titles(driver: Any) -> list[str]:
    """Return the titles of the pages."""
    return [*driver.execute_script(f"{_TABS} return tabs.tabs.map((tab) => tab.title)")]


def go_to(driver: Any, page: int) -> None:
    """Open a page of the dashboard, and wait until it is drawn."""
    driver.execute_script(f"{_TABS} tabs.active = arguments[0]", page)
    _wait(driver, _IS_SHOWN)
    _let_draw(driver)


def _let_draw(driver: Any) -> None:
    # Two frames on, everything that has changed has been drawn.
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )


def complaints(driver: Any) -> list[str]:
    """Return the errors of the page since this was asked last."""
    return [one["message"] for one in driver.get_log("browser") if one["level"] == "SEVERE"]


def received(driver: Any) -> int:
    """Return the bytes that came by websockets since this was asked last."""
    total = 0
    for one in driver.get_log("performance"):
        message = json.loads(one["message"])["message"]
        if message["method"] == "Network.webSocketFrameReceived":
            frame = message["params"]["response"]
            length = len(frame["payloadData"])
            # What is not text is told in base 64.
            total += length if frame["opcode"] == 1 else length * 3 // 4
    return total
