"""Text that can be shown on a terminal, whoever wrote it."""

from __future__ import annotations

from reprlib import Repr
from typing import Final
from unicodedata import combining, east_asian_width

from dasktune.trial.metrics import number

__all__ = ["columns", "crop", "duration", "pad", "plural", "printable", "short"]

_brief: Final = Repr()
_brief.maxother = _brief.maxstring = 60
_brief.maxlevel = 2


def printable(text: str) -> str:
    r"""Return a text of one line in which nothing controls the terminal.

    Names and messages are the users': an escape sequence in one must not reach the terminal.

    Examples
    --------
    >>> printable("a\x1b[31m")
    'a?[31m'
    """
    return "".join(char if char.isprintable() else "?" for char in text)


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if combining(char):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def crop(text: str, width: int) -> str:
    """Return a text, its end replaced by an ellipsis if it takes more than `width` columns.

    Examples
    --------
    >>> crop("learning_rate", 9)
    'learning…'
    """
    # Nothing of a long text is looked at that cannot be shown.
    text = text[: 4 * width + 1]
    if columns(text) <= width:
        return text
    while columns(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return a text filled up with spaces to `width` columns, at its left if `right`."""
    gap = " " * (width - columns(text))
    return f"{gap}{text}" if right else f"{text}{gap}"


def short(value: object, width: int = 14) -> str:
    """Return a value as a cell of a table; numbers have four digits.

    Examples
    --------
    >>> short(0.1234567), short(True), short(None), short("adam"), short([1, 2])
    ('0.1235', 'True', '', 'adam', '[1, 2]')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return crop(printable(value[: 4 * width + 1]), width)
    real = None if isinstance(value, bool) else number(value)
    if real is None or type(value) is int:
        return crop(printable(_brief.repr(value)), width)
    return f"{real:.4g}"


def plural(noun: str, count: int) -> str:
    """Return a noun as it stands after a count."""
    return noun if count == 1 else f"{noun}s"


def duration(seconds: float) -> str:
    """Return seconds as people read them.

    Examples
    --------
    >>> duration(62.9), duration(3600)
    ('01:02', '1:00:00')
    """
    minutes, second = divmod(int(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"
