"""What is said in two places must be the same in both."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import re
from pathlib import Path
from types import ModuleType

from dasktune.trial.status import TRANSITIONS, PublicStatus, TrialStatus

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


def test_the_words_that_users_see_cover_every_status():
    page = status_diagram().PAGE.read_text(encoding="utf-8")
    for public in PublicStatus:
        meant = [status.value for status in TrialStatus if status.public is public]
        assert f"| `{public.value}` | {', '.join(meant)} |" in page


#: Folders of the documentation that a build writes.
GENERATED = ("_build", "generated")


def test_every_news_fragment_has_a_kind_that_the_changelog_knows():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    kinds = set(re.findall(r'directory = "(\w+)", name', project))
    fragments = [path for path in (ROOT / "newsfragments").iterdir() if path.name != "README.md"]
    assert kinds
    assert all(re.fullmatch(r"(\d+|\+[\w-]+)\.\w+\.md", path.name) for path in fragments)
    assert {path.name.split(".")[-2] for path in fragments} <= kinds


def test_every_page_of_the_documentation_is_in_one_table_of_contents():
    docs = ROOT / "docs"
    pages = [path for path in docs.rglob("*.md") if path.relative_to(docs).parts[0] not in GENERATED]
    entries = [
        entry
        for page in pages
        for toctree in re.findall(r"^```{toctree}\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
        for entry in re.findall(r"^([\w/-]+)$", toctree, re.M)
    ]
    there = {str(path.relative_to(docs).with_suffix("")) for path in pages}
    assert sorted(entries) == sorted(there - {"index"})
    # Sphinx writes these pages itself.
    assert there & {"search", "genindex", "py-modindex"} == set()


# The map of the code


def layers_of_the_linter() -> list[set[str]]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["importlinter:contract:layers"]["layers"].split("\n")
    return [set(re.split(r"[\s|:]+", line.strip())) for line in lines if line.strip()]


def architecture() -> str:
    return (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_table_of_layers_is_the_contract_of_the_import_linter():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", architecture(), re.MULTILINE)
    table: dict[int, set[str]] = {}
    for layer, package in rows:
        table.setdefault(int(layer), set()).add(package)
    assert [table[layer] for layer in sorted(table, reverse=True)] == layers_of_the_linter()


def test_the_table_of_layers_names_every_package_and_module_at_the_top():
    there = {path.stem for path in (ROOT / "dasktune").iterdir() if path.suffix == ".py"}
    there |= {path.parent.name for path in (ROOT / "dasktune").glob("*/__init__.py")}
    assert set.union(*layers_of_the_linter()) == there - {"__init__"}


def test_the_table_of_folders_is_the_contracts_of_the_import_linter():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    rows = dict(re.findall(r"^\| `(\w+)` \| (`\w+`[;,].*) \|$", architecture(), re.MULTILINE))
    assert rows
    for package, folders in rows.items():
        lines = config[f"importlinter:contract:{package}"]["layers"].split("\n")
        there = {path.parent.name for path in (ROOT / "dasktune" / package).glob("*/__init__.py")}
        contract = [set(re.split(r"[\s|]+", line.strip())) & there for line in lines]
        table = [set(re.findall(r"\w+", row)) for row in folders.split(";")]
        assert table == [row for row in contract if row]
        assert set.union(*table) == there


def test_every_path_in_the_map_exists():
    named = re.findall(r"`((?:dasktune|tests)/[\w/.]*)`", architecture())
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_two_modules_and_no_two_classes_of_the_package_share_a_name():
    # Names that Ray Tune or the command line prescribe.
    prescribed = {"TuneReportCheckpointCallback"}
    modules: dict[str, list[str]] = {}
    classes: dict[str, list[str]] = {}
    for path in (ROOT / "dasktune").rglob("*.py"):
        where = path.relative_to(ROOT).as_posix()
        # A subcommand has a module of its name.
        if path.stem not in ("__init__", "base", "create") and where != "dasktune/cli/commands/errors.py":
            modules.setdefault(path.stem, []).append(where)
        # Parsing all modules would take a second.
        for name in re.findall(r"^\s*class (\w+)[(:\[]", path.read_text(encoding="utf-8"), re.MULTILINE):
            if name not in prescribed:
                classes.setdefault(name, []).append(where)
    assert len(classes) > 400
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
    assert {name: found for name, found in classes.items() if len(found) > 1} == {}


def test_no_folder_has_more_than_sixteen_modules_and_the_top_at_most_ten():
    for folder in (ROOT / "dasktune").rglob("__init__.py"):
        number = sum(path.name != "__init__.py" for path in folder.parent.glob("*.py"))
        # Each command is a module, and there is nothing else in their folder.
        assert number <= {"dasktune": 10, "commands": 24}.get(folder.parent.name, 16), folder
        assert (ast.get_docstring(ast.parse(folder.read_text())) or "").count("\n") <= 6, folder
