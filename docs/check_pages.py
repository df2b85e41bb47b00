"""Check that the built documentation has every page, with all headings and all code: ``make docs``.

Sphinx writes some pages itself, such as ``search.html``, and overwrites a page of that name
without a warning.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

DOCS = Path(__file__).parent

#: Elements of a page whose text is not its content.
_IGNORED = ("script", "style", "nav", "aside", "head")


class _Text(HTMLParser):
    """Collects the text of an HTML page, without its menus."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._ignored = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._ignored += tag in _IGNORED

    def handle_endtag(self, tag: str) -> None:
        self._ignored -= tag in _IGNORED

    def handle_data(self, data: str) -> None:
        if not self._ignored:
            self.parts.append(data)


def sources() -> list[Path]:
    """Return all pages of the documentation."""
    pages = (path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
    return sorted(page for page in pages if page.parts[0] not in ("_build", "generated"))


def squeezed(text: str) -> str:
    """Return the letters and digits of a text: quotes and white space differ in HTML."""
    return "".join(re.findall(r"\w", text))


def expected(source: str) -> list[str]:
    """Return what a page must have: its headings, and the lines of its code."""
    found, opened = [], None
    for line in source.splitlines():
        if line.startswith("```"):
            opened = line.strip("`") if opened is None else None
        elif opened is None and line.startswith("#"):
            found.append(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line))
        elif opened is not None and not opened.startswith("{") and opened != "mermaid" and line.strip():
            found.append(line)
    return found


def missing(page: Path, built: Path) -> list[str]:
    """Return what the built page lacks."""
    html = built / page.with_suffix(".html")
    if not html.is_file():
        return ["the whole page"]
    reader = _Text()
    reader.feed(html.read_text(encoding="utf-8"))
    text = squeezed("".join(reader.parts))
    return [one for one in expected((DOCS / page).read_text(encoding="utf-8")) if squeezed(one) not in text]


def main(built: Path) -> int:
    """Print what is missing; return the exit code."""
    pages = sources()
    found = [f"{page}: {one!r} is not in the built page" for page in pages for one in missing(page, built)]
    print("\n".join(found) or f"documentation: {len(pages)} pages are built with all their headings and code")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
