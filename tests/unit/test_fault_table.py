"""What the tables of faults and of security promise to be tested is tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "least"), [("fault_tolerance", 40), ("security", 30), ("distributed-trials", 20)]
)
def test_every_test_in_the_table_exists(page: str, least: int) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / f"docs/{page}.md").read_text())
    assert len(named) > least
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert not missing


def tables_of(page: str) -> dict[str, list[str]]:
    """Return the rows of each table of a page that has a column of tests, by its first column."""
    tables: dict[str, list[str]] = {}
    head = ""
    for line in (ROOT / f"docs/{page}.md").read_text().splitlines():
        if not line.startswith("|"):
            head = ""
        elif not head:
            head = line.split("|")[1].strip()
            if line.endswith("| test |"):
                tables[head] = []
        elif head in tables and not line.startswith("|---"):
            tables[head].append(line)
    return tables


@pytest.mark.parametrize(("table", "least"), [("who", 10), ("promise", 20), ("place", 6), ("text", 2)])
def test_every_row_about_security_names_a_test(table: str, least: int) -> None:
    rows = tables_of("security")[table]
    assert len(rows) > least
    assert [row for row in rows if "::test_" not in row.split("|")[-2]] == []


def test_every_row_about_faults_of_ranks_names_a_test() -> None:
    rows = tables_of("distributed-trials")["fault of ranks"]
    assert len(rows) > 19
    assert [row for row in rows if "::test_" not in row.split("|")[-2]] == []


def test_every_module_of_attacks_is_named_in_the_page_about_security() -> None:
    page = (ROOT / "docs/security.md").read_text()
    modules = [path.name for path in (ROOT / "tests/security").glob("test_*.py")]
    assert len(modules) > 9
    assert [name for name in modules if f"security/{name}::" not in page] == []
