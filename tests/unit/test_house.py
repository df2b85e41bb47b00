"""What is said in two places must be the same in both."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import dasktune
from dasktune.trial.status import TRANSITIONS, PublicStatus, TrialStatus

ROOT = Path(__file__).parents[2]

#: What packages of ours take from each other.
INTERNAL = {
    "CallbackList",
    "Missed",
    "TrackedTrial",
    "TrialPlaces",
    "check",
    "check_callbacks",
    "run_key",
    "without_passwords",
}


def status_diagram() -> ModuleType:
    path = ROOT / "docs" / "status_diagram.py"
    spec = importlib.util.spec_from_file_location("status_diagram", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_status_diagram_in_the_documentation_is_the_table_that_the_code_obeys():
    diagram = status_diagram()
    page = diagram.PAGE.read_text(encoding="utf-8")
    assert diagram.mermaid() in page, "run: .venv/bin/python docs/status_diagram.py"
    assert diagram.updated(page) == page


def test_the_status_diagram_shows_every_row_and_every_status():
    diagram = status_diagram()
    shown = diagram.arrows(TRANSITIONS)
    assert sum(len(names) for names in shown.values()) == len(TRANSITIONS)
    assert {status for pair in shown for status in pair} == set(TrialStatus)


def test_the_words_that_users_see_cover_every_status():
    page = status_diagram().PAGE.read_text(encoding="utf-8")
    for public in PublicStatus:
        meant = [status.value for status in TrialStatus if status.public is public]
        assert f"| `{public.value}` | {', '.join(meant)} |" in page


def test_the_version_stands_in_one_place():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    written = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert written is not None
    assert dasktune.__version__ == written[1] == metadata.version("dasktune")


def test_every_news_fragment_has_a_kind_that_the_changelog_knows():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    kinds = set(re.findall(r'directory = "(\w+)", name', project))
    fragments = [path for path in (ROOT / "newsfragments").iterdir() if path.name != "README.md"]
    assert kinds
    assert all(re.fullmatch(r"(\d+|\+[\w-]+)\.\w+\.md", path.name) for path in fragments)
    assert {path.name.split(".")[-2] for path in fragments} <= kinds


#: The packages whose ``__all__`` is public.
PUBLIC = [
    "dasktune",
    "dasktune.callback",
    "dasktune.control",
    "dasktune.dashboard",
    "dasktune.errors",
    *(
        module.name
        for module in pkgutil.iter_modules(
            importlib.import_module("dasktune.integration").__path__, "dasktune.integration."
        )
        # What the modules for several packages have in common.
        if module.name.rpartition(".")[2] not in ("reporting", "tracked")
    ),
    "dasktune.logger",
    "dasktune.schedulers",
    "dasktune.search",
    "dasktune.sklearn",
    "dasktune.stopper",
    "dasktune.testing",
]


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_stands_in_the_api_documentation(package):
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   (?:\w+\.)*(\w+)$", page, re.MULTILINE))
    # What autosummary cannot show, such as a union, is told of in a sentence.
    named = set(re.findall(r"`(\w+)`", page))
    names = set(importlib.import_module(package).__all__) - {"__version__"} - INTERNAL
    assert sorted(names - listed - named) == []


def test_every_page_of_the_documentation_is_in_its_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    entries = re.findall(r"^([\w-]+)$", index, re.MULTILINE)
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert sorted(entries) == sorted(pages)
