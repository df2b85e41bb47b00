"""Values as the cells of a table, in text and in HTML."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from numbers import Integral
from reprlib import Repr

from dasktune.trial.metrics import number

__all__ = ["cell", "clip", "html_row"]

_brief = Repr()
_brief.maxstring = _brief.maxother = 40
_brief.maxdict = _brief.maxlist = _brief.maxtuple = 4
_brief.maxlevel = 2


def cell(value: object) -> str:
    """Return a value in brief; numbers have six digits, integers all of theirs.

    Examples
    --------
    >>> cell(0.1234567), cell(12345678), cell(None), cell("a")
    ('0.123457', '12345678', '', "'a'")
    """
    if value is None:
        return ""
    if not isinstance(value, bool) and isinstance(value, Integral):
        return str(int(value))
    real = None if isinstance(value, bool) else number(value)
    return _brief.repr(value) if real is None else f"{real:.6g}"


def clip(text: str, width: int = 60) -> str:
    """Return a text, without its end if it is longer than `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def html_row(cells: Iterable[str], tag: str = "td") -> str:
    """Return a row of a table; what is in the cells is escaped.

    Examples
    --------
    >>> html_row(["<b>"])
    '<tr><td>&lt;b&gt;</td></tr>'
    """
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in cells)}</tr>"
