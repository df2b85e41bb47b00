"""What the documentation says of each public name of Ray Tune is complete, and true."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_tune_names import NAMES

PAGE = Path(__file__).parents[2] / "docs" / "migrating-from-ray-tune.md"

HERE = {"same", "better", "different"}
NOT_HERE = {"not needed", "not here yet"}


def verdicts(module: str) -> dict[str, tuple[str, str]]:
    """Return verdict and note of each name in the table below a module's heading."""
    heading = f"## `ray.tune{module}`\n"
    section = PAGE.read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*?) ?\|$", section, re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows})
    return {name: (verdict, note) for name, verdict, note in rows}


@pytest.mark.parametrize("module", NAMES, ids=lambda name: f"ray.tune{name}")
def test_the_table_tells_of_every_name_and_of_no_other(module):
    told = verdicts(module)
    assert sorted(told) == sorted(NAMES[module].split())
    assert {verdict for verdict, _ in told.values()} <= HERE | NOT_HERE


@pytest.mark.parametrize("module", NAMES, ids=lambda name: f"ray.tune{name}")
def test_what_is_said_to_be_here_is_here_and_nothing_else_is(module):
    if module == ".search.optuna":
        pytest.importorskip("optuna")
    for name, (verdict, note) in verdicts(module).items():
        # What has moved is found where the note says.
        moved = f"It is `tune.{name}`" in note
        home = "dasktune" if moved else f"dasktune{module}"
        assert is_there(home, name) == (verdict in HERE), f"{home}.{name} is told to be {verdict!r}"


@pytest.mark.parametrize("module", NAMES, ids=lambda name: f"ray.tune{name}")
def test_what_is_not_the_same_says_why(module):
    silent = {n for n, (verdict, note) in verdicts(module).items() if not note}
    open_ones = {"Callback", "ProgressReporter", "LoggerCallback", "TBXLoggerCallback"}
    assert all(verdicts(module)[n][0] == "same" for n in silent - open_ones)


def is_there(home: str, name: str) -> bool:
    return find_spec(home) is not None and hasattr(import_module(home), name)
