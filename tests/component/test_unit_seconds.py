"""The check of how long tests of `tests/unit` take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

#: With limits that are reached soon.
CONFTEST = """
import unit_seconds

unit_seconds.QUICK_SECONDS, unit_seconds.MOST_SECONDS = 0.05, 0.25
"""

BURN = """
from time import process_time

def burn(seconds):
    end = process_time() + seconds
    while process_time() < end:
        pass
"""

UNIT = """
import gc
import sys

import pytest
from burning import burn

def test_one_is_quick():
    pass

def test_one_is_between():
    burn(0.1)

def test_one_is_over():
    burn(0.3)

def test_fails_and_is_over():
    burn(0.3)
    raise ValueError("its own error")

@pytest.fixture
def setup():
    burn(0.3)

def test_with_a_fixture(setup):
    pass

def test_one_that_imports():
    import takes_long

def collects(phase, facts):
    if phase == "start":
        burn(0.3)

def test_one_that_collects():
    gc.callbacks.append(collects)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(collects)
"""

COMPONENT = "from burning import burn\n\ndef test_one_is_elsewhere():\n    burn(0.3)\n"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
def test_a_unit_test_fails_that_takes_too_long_and_is_listed_before_that(tmp_path, processes):
    for name, text in (
        ("conftest.py", CONFTEST),
        ("pytest.ini", "[pytest]\n"),
        ("burning.py", BURN),
        ("takes_long.py", "from burning import burn\n\nburn(0.3)\n"),
        ("tests/unit/trial/test_those.py", UNIT),
        ("tests/component/test_others.py", COMPONENT),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    # Only the plugins that it needs, and the table of characters that Hypothesis has already made.
    plugins = ["-p", "unit_seconds", *(["-p", "xdist", "-n", str(processes)] if processes else [])]
    # In CI the summary of pytest repeats whole messages; options of the user change it, too.
    left_out = ("BUILD_NUMBER", "CI", "PYTEST_ADDOPTS")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    environment = {
        **inherited,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(TESTS.parent / ".hypothesis"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(tmp_path)]),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugins, "tests"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert "2 failed, 6 passed" in lines[-1], ended.stdout
    assert "its own error" in ended.stdout
    message = "s of processor time, and a test of tests/unit fails above 0.25 s: make it quicker"
    assert ended.stdout.count(message) == 1
    assert "or move it to tests/component/trial" in ended.stdout
    [head] = [
        n for n, line in enumerate(lines) if "tests of tests/unit above 0.05 s of processor time" in line
    ]
    listed = [line.partition("::")[2] for line in lines[head + 1 :] if "::" in line and " s  " in line]
    assert sorted(listed) == ["test_one_is_between", "test_one_is_over"]
