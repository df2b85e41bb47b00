"""What the table of faults promises to be tested is tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_in_the_table_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs/fault_tolerance.md").read_text())
    assert len(named) > 40
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert not missing
