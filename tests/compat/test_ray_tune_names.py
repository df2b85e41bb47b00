"""What the documentation says of each public name of Ray Tune is complete, and true."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from pathlib import Path

import pytest
from ray_tune_names import (
    ARGUMENTS,
    COMMANDS,
    DOTTED,
    EXECUTORS,
    NAMES,
    OLDER_ARGUMENTS,
    TRIALS,
    VARIABLES,
)

import dasktune as tune
from dasktune.callback import TrialView

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
def test_the_table_lists_every_name_and_no_other(module):
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
        assert is_there(home, name) == (verdict in HERE), f"{home}.{name} is listed as {verdict!r}"


@pytest.mark.parametrize("module", NAMES, ids=lambda name: f"ray.tune{name}")
def test_what_is_not_the_same_says_why(module):
    silent = {n for n, (verdict, note) in verdicts(module).items() if not note}
    open_ones = {"Callback", "ProgressReporter", "LoggerCallback", "TBXLoggerCallback"}
    assert all(verdicts(module)[n][0] == "same" for n in silent - open_ones)


# What has no list of public names


def rows_below(heading: str, columns: int) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in found[1].splitlines()
        if line.startswith("| `")
    ]
    assert {len(row) for row in rows} == {columns}
    return rows


def names_below(heading: str) -> list[str]:
    """Return the names that the first cells of a table are about."""
    first = (row[0] for row in rows_below(heading, 2))
    return [name.removesuffix("()") for cell in first for name in re.findall("`([^`]+)`", cell)]


@pytest.mark.parametrize("heading", DOTTED)
def test_the_page_lists_every_other_name(heading):
    rows = rows_below(heading, 3)
    assert sorted(row[0].strip("`") for row in rows) == sorted(DOTTED[heading].split())
    assert {verdict for _, verdict, _ in rows} <= HERE | NOT_HERE
    assert all(note for _, verdict, note in rows if verdict != "same")


@pytest.mark.parametrize(
    ("heading", "name", "verdict", "note"),
    [(heading, *row) for heading in DOTTED for row in rows_below(heading, 3)],
)
def test_every_other_name_is_where_the_page_says(heading, name, verdict, note):
    moved = re.search(r"It is `([\w.]+)`", note)
    target = f"dasktune.{name.strip('`')}" if moved is None else moved[1]
    assert resolves(re.sub("^tune", "dasktune", target)) == (verdict in HERE)


def test_the_page_lists_what_executors_runners_and_trials_had():
    told = names_below("What executors and runners could be told")
    assert sorted(told) == sorted(EXECUTORS.split())
    assert sorted(names_below("Attributes of a trial")) == sorted(TRIALS.split())


def test_trials_have_the_attributes_that_the_page_names():
    for cell, here in rows_below("Attributes of a trial", 2):
        alike = here == "the same"
        for name in re.findall("`([a-z_]+)(?:\\(\\))?`", cell if alike else here):
            assert hasattr(TrialView, name), name


def test_every_argument_of_run_is_taken_or_listed():
    taken = signature(tune.run).parameters.keys() | signature(tune.run_experiments).parameters.keys()
    told = set(names_below("Arguments of `tune.run`"))
    assert set(ARGUMENTS.split()) <= taken | told
    assert set(OLDER_ARGUMENTS.split()) <= taken | told
    for name in {*ARGUMENTS.split(), *OLDER_ARGUMENTS.split()} - taken:
        with pytest.raises(tune.ConfigError, match=f"^{name} must be left out, got 1. [A-Z]"):
            tune.run(print, **{name: 1})


def test_the_page_lists_every_variable_and_command():
    assert sorted(names_below("Environment variables")) == sorted(VARIABLES.split())
    told = [name.removeprefix("tune ") for name in names_below("The command line")]
    assert sorted(told) == sorted(COMMANDS.split())


def resolves(target: str) -> bool:
    """Whether a dotted name can be imported, or is an attribute of what can."""
    parts = target.split(".")
    for length in range(len(parts) - 1, 0, -1):
        home = ".".join(parts[:length])
        with suppress(ModuleNotFoundError):
            if find_spec(home) is not None:
                try:
                    attrgetter(".".join(parts[length:]))(import_module(home))
                except AttributeError:
                    return False
                return True
    return False


def is_there(home: str, name: str) -> bool:
    return find_spec(home) is not None and hasattr(import_module(home), name)
