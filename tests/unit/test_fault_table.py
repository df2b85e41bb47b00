"""What the tables of faults and of security promise to be tested is tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "least"), [("fault_tolerance", 40), ("security", 30)])
def test_every_test_in_the_table_exists(page: str, least: int) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / f"docs/{page}.md").read_text())
    assert len(named) > least
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert not missing


def test_every_promise_about_security_names_a_test() -> None:
    page = (ROOT / "docs/security.md").read_text()
    table = page.partition("| promise | test |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = table.splitlines()
    assert len(rows) > 20
    assert [row for row in rows if "::test_" not in row] == []
