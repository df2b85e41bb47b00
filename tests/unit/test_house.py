"""What is said in two places must be the same in both."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType

import dasktune
from dasktune.trial.status import TRANSITIONS, TrialStatus

ROOT = Path(__file__).parents[2]


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


def test_every_public_name_stands_in_the_api_documentation():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   (\w+)$", page, re.MULTILINE))
    assert set(dasktune.__all__) - {"__version__"} <= listed
