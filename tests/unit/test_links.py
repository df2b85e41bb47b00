"""Each link from one file of the project to another leads to what is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGES = [
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
    if not {"_build", "generated"} & set(path.parts)
]

#: Fences and code in lines: what looks like a link there is none.
CODE = re.compile(r"^(```+).*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """Return the anchor that MyST and GitHub give to a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^(```+).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    found: list[str] = []
    # The documentation has anchors for headings of three levels only.
    for heading in re.findall(r"^#{1,3} (.*)$", prose, re.MULTILINE):
        name = anchor(heading)
        found.append(f"{name}-{count}" if (count := found.count(name)) else name)
    return frozenset(found) | labels(text)


def labels(text: str) -> frozenset[str]:
    """Return the labels that a page sets by itself; they hold in all pages."""
    return frozenset(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def broken(page: Path, text: str) -> list[str]:
    known = {one for path in PAGES for one in labels(path.read_text(encoding="utf-8"))}
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        path = page if not name else (page.parent / name).resolve()
        there = path.exists() and (
            not fragment or path.suffix != ".md" or fragment in anchors(path) or fragment in known
        )
        if not there:
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")
    assert broken(page, text) == []
    pictures = re.findall(r"^```{(?:figure|image|literalinclude)} (\S+)", text, re.MULTILINE)
    assert [one for one in pictures if not (page.parent / one).exists()] == []


def test_a_broken_link_is_found():
    page = ROOT / "docs" / "index.md"
    text = (
        "[a](nowhere.md) [b](cli.md#no-such) [](#no-such) `[c](code.md)` [d](https://example.org) [](cli.md)"
    )
    assert broken(page, text) == ["nowhere.md", "cli.md#no-such", "#no-such"]


def test_every_file_of_the_documentation_that_code_names_is_there():
    named = {
        (path, name)
        for folder in ("dasktune", "tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"docs/[\w/-]+\.(?:md|py)", path.read_text(encoding="utf-8"))
    }
    assert named
    assert [one for one in sorted(named) if not (ROOT / one[1]).exists()] == []


def test_the_list_of_decisions_has_each_of_them():
    listed = re.findall(
        r"^- \[.*\]\(design/([\w-]+)\.md#([\w-]+)\)$", (ROOT / "docs/design.md").read_text("utf-8"), re.M
    )
    there = [
        (path.stem, anchor(heading))
        for path in sorted((ROOT / "docs" / "design").glob("*.md"))
        for heading in re.findall(r"^## (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert sorted(listed) == sorted(there)
    assert len(there) > 100
