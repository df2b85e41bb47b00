"""``docs/check_docstrings.py`` notices section titles that numpydoc takes for text."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("numpydoc")


@pytest.fixture(scope="module")
def misplaced_titles():
    path = Path(__file__).parents[2] / "docs" / "check_docstrings.py"
    spec = importlib.util.spec_from_file_location("check_docstrings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.misplaced_titles


def documented(*lines):
    return "\n".join(["def f():", '    """Do it.', "", *(f"    {line}" for line in lines), '    """', ""])


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["Notes ----- A text."], (4, "Notes -----")),
        (["A text. Notes", "-----", "More."], (4, ". Notes -----")),
        (["A text", "Examples", "--------", ">>> f()"], (4, "t Examples --------")),
    ],
)
def test_a_title_that_is_not_a_line_of_its_own_is_found(misplaced_titles, lines, found):
    assert list(misplaced_titles(documented(*lines))) == [found]


def test_whole_sections_and_other_dashes_are_no_findings(misplaced_titles):
    whole = documented("Notes", "-----", "Raises - or --- returns.", "", "Examples", "--------", ">>> f()")
    assert list(misplaced_titles(whole)) == []
    assert list(misplaced_titles('x = "Notes ----- A text."\n')) == []
