"""Measures the processor time of each test of `tests/unit`, and lets one fail that takes too much.

A pytest plugin. Processor time, because a loaded machine stretches the time on the wall; and never
more than that on the wall, because the threads of a numeric library may spin on each processor.
"""

from __future__ import annotations

import functools
import gc
import importlib._bootstrap  # type: ignore[import-not-found]
from collections.abc import Callable, Generator
from time import monotonic, process_time
from types import TracebackType
from typing import Any

import pytest
from hypothesis import find
from hypothesis import strategies as st

#: Seconds that a unit test may take on a quiet machine; those that took longer are listed.
QUICK_SECONDS = 0.2
#: Seconds after which it fails. The margin is for slow and loaded machines.
MOST_SECONDS = 1.0
#: The same where coverage is measured, which doubles the time.
MOST_SECONDS_MEASURED = 2.0

PROPERTY = "unit_seconds"


class Stopwatch:
    """Counts processor time in a block, without what hits whichever test is first.

    These are the imports of modules, and the collections of all that the tests before have left.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._load = importlib._bootstrap._find_and_load
        self._left_out = (0.0, 0.0)
        #: How many imports and collections, each within the other, run now.
        self._depth = 0
        self._begun = self._paused = (0.0, 0.0)

    def __enter__(self) -> Stopwatch:
        # CPython calls this for each module that is not imported yet; there is no public hook.
        importlib._bootstrap._find_and_load = self._timed_load
        gc.callbacks.append(self._on_collection)
        self._begun = _now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Both clocks, and the smaller one counts.
        self.seconds = min(
            end - begin - out for begin, end, out in zip(self._begun, _now(), self._left_out, strict=True)
        )
        gc.callbacks.remove(self._on_collection)
        importlib._bootstrap._find_and_load = self._load

    def _timed_load(self, name: str, load: Callable[..., Any]) -> Any:
        self._pause()
        try:
            return self._load(name, load)
        finally:
            self._resume()

    def _on_collection(self, phase: str, facts: dict[str, int]) -> None:
        self._pause() if phase == "start" else self._resume()

    def _pause(self) -> None:
        if self._depth == 0:
            self._paused = _now()
        self._depth += 1

    def _resume(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            processor, wall = (
                end - begin + out
                for begin, end, out in zip(self._paused, _now(), self._left_out, strict=True)
            )
            self._left_out = (processor, wall)


def _now() -> tuple[float, float]:
    return process_time(), monotonic()


@functools.cache
def _prepare_hypothesis() -> None:
    """Let Hypothesis make its table of all characters, which takes seconds on a fresh clone."""
    find(st.text(), lambda _: True)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Measure a test of `tests/unit` without its fixtures."""
    unit = item.config.rootpath / "tests" / "unit"
    if unit not in item.path.parents:
        return (yield)
    _prepare_hypothesis()
    with Stopwatch() as watch:
        result = yield
    if watch.seconds > QUICK_SECONDS:
        # Reports take the properties of a test from a process of pytest-xdist to the main process.
        item.user_properties.append((PROPERTY, round(watch.seconds, 2)))
    most = MOST_SECONDS_MEASURED if item.config.pluginmanager.has_plugin("_cov") else MOST_SECONDS
    if watch.seconds > most:
        place = "/".join(["tests/component", *item.path.parent.relative_to(unit).parts])
        pytest.fail(
            f"the test used {watch.seconds:.1f} s of processor time, and a test of tests/unit fails above "
            f"{most:g} s: make it quicker ({QUICK_SECONDS:g} s on a quiet machine), or move it "
            f"to {place}",
            pytrace=False,
        )
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the tests of `tests/unit` that are not quick."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    slow = {
        report.nodeid: seconds
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, seconds in report.user_properties
        if name == PROPERTY
    }
    if slow:
        terminalreporter.section(f"tests of tests/unit above {QUICK_SECONDS:g} s of processor time")
        for nodeid, seconds in sorted(slow.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{seconds:.2f} s  {nodeid}")
