"""Tests use the public surface: few private names, and few patches of our own code.

A test that reads an internal attribute, or replaces an internal function, forbids changes that no
user would notice. Test the effect that a caller sees, or let the code take the limit, the clock or
the collaborator as a parameter.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "dasktune"

#: A little more than there is. What is left is, for example, a method that must fail once at a
#: point that no parameter reaches, and names of Ray Tune with an underscore.
MOST_PRIVATE_USES = 50
MOST_PATCHES = 45

DEFINITION = re.compile(
    r"^\s*(?:(?:async )?def|class|self\.)?\s*(_\w*\w)\b\s*[(:=,]|\bself\.(_\w+)", re.MULTILINE
)
IMPORT = re.compile(
    r"^\s*from dasktune\b[\w.]* import (?:\(([^)]*)\)|(.*))|^\s*import (dasktune\b.*)", re.MULTILINE
)
PRIVATE_USE = re.compile(r"([\w)\]]*)\.(_[a-z]\w*[a-z0-9])\b", re.IGNORECASE)
PATCHED = re.compile(r"\bsetattr\([^,]*,")
PATCH = re.compile(r"\bsetattr\(\s*[\"']?(\w+)")

#: Documented parts of `collections.namedtuple`.
OF_NAMEDTUPLE = {"_replace", "_fields", "_asdict", "_make"}


def private_names_of(text: str) -> set[str]:
    """Return the private names that a module defines or gives its objects."""
    return {one or other for one, other in DEFINITION.findall(text)} - OF_NAMEDTUPLE


def imported_from_dasktune(text: str) -> set[str]:
    names = set()
    for several, one, module in IMPORT.findall(text):
        for name in re.sub(r"#.*", "", several or one or module).split(","):
            names.add(name.split()[-1].partition(".")[0] if name.split() else "")
    return names - {""}


def private_uses(text: str, names: set[str]) -> list[str]:
    """Return the uses of `names` and the private names that are imported; patches do not count."""
    text = PATCHED.sub("", text)
    own = {name for owner, name in PRIVATE_USE.findall(text) if owner in ("self", "cls")}
    used = [f"{owner}.{name}" for owner, name in PRIVATE_USE.findall(text) if name in names - own]
    return used + [name for name in imported_from_dasktune(text) if re.match("_[a-z]", name, re.IGNORECASE)]


def patches(text: str) -> list[str]:
    """Return what is replaced of dasktune, or of a module of it."""
    return [name for name in PATCH.findall(text) if name in {"dasktune", *imported_from_dasktune(text)}]


def test_tests_use_few_private_names_and_patch_little_of_our_code():
    names = set().union(
        *(private_names_of(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    )
    texts = {path.relative_to(TESTS): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}
    texts.pop(Path(__file__).relative_to(TESTS))
    private = {str(path): private_uses(text, names) for path, text in texts.items()}
    patched = {str(path): patches(text) for path, text in texts.items()}
    assert sum(map(len, private.values())) <= MOST_PRIVATE_USES, {k: v for k, v in private.items() if v}
    assert sum(map(len, patched.values())) <= MOST_PATCHES, {k: v for k, v in patched.items() if v}


@pytest.mark.parametrize(
    ("text", "private", "patched"),
    [
        ("one._hidden", 1, 0),
        ("one.two()._hidden", 1, 0),
        ("one.shown", 0, 0),
        ("one._repr_html_", 0, 0),
        ("one._of_another_package", 0, 0),
        ("self._hidden, other._hidden", 0, 0),
        ("from dasktune.x import _hidden", 1, 0),
        ("from dasktune.x import (\n    shown,  # some\n    _hidden,\n)", 1, 0),
        ("from dasktune import x\nmonkeypatch.setattr(x.time, 'sleep', print)", 0, 1),
        ("from dasktune import x as y\nmonkeypatch.setattr(\n    y, 'shown', print)", 0, 1),
        ("monkeypatch.setattr('dasktune.x.y', 1)", 0, 1),
        ("import time\nmonkeypatch.setattr(time, 'sleep', print)", 0, 0),
    ],
)
def test_private_uses_and_patches_are_counted(text: str, private: int, patched: int):
    names = private_names_of("class A:\n    def _hidden(self):\n        self._x = self.shown = _repr_html_")
    assert (len(private_uses(text, names)), len(patches(text))) == (private, patched)
