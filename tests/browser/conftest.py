"""A real browser: Chromium without a window, driven by Selenium."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1400,1000",
)


def programs() -> tuple[str, str] | None:
    """Return the paths of Chromium and of its driver."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@pytest.fixture(scope="module")
def browser(folder_scope: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the driver of a browser; skip only on a contributor's machine that has none."""
    found = programs()
    if found is None:
        why = "chromium and chromedriver are needed: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    webdriver = pytest.importorskip("selenium.webdriver")

    def start(stack: ExitStack) -> Any:
        options = webdriver.ChromeOptions()
        options.binary_location = found[0]
        for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(executable_path=found[1])
        driver = webdriver.Chrome(options=options, service=service)
        driver.set_page_load_timeout(120)
        driver.set_script_timeout(120)
        stack.callback(driver.quit)
        return driver

    return folder_scope.shared("browser", start)


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Any:
    """Return what opens a page from a file, and waits until Bokeh has drawn it."""

    def open_page(html: str) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        browser.get(path.as_uri())
        ready = "return window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle"
        WebDriverWait(browser, 120).until(lambda driver: driver.execute_script(ready))
        return browser

    return open_page
