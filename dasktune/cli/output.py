"""Text for a terminal or a pipe, in which no name of a user's is more than a text."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import Any, Final
from unicodedata import east_asian_width

from dasktune.dashboard.text import printable, value_text
from dasktune.trial.metrics import number

__all__ = [
    "cell",
    "fields_text",
    "one_line",
    "table_text",
    "terminal_width",
    "write",
    "write_csv",
    "write_json",
]

#: Columns of a cell in a table that has to fit into a terminal.
_WIDEST: Final = 40
#: Characters of a value that are shown where there is room.
_LONGEST: Final = 2_000
_GAP: Final = "  "


def write(text: str) -> None:
    """Write a text that was made safe, and a line feed."""
    sys.stdout.write(f"{text}\n")


def one_line(text: object) -> str:
    r"""Return a text as one line without anything that a terminal would obey.

    Examples
    --------
    >>> one_line("a\x1b[31m\nb")
    'a?[31m b'
    """
    return " ".join(printable(text).split())


def cell(value: object) -> str:
    """Return a value as what stands in a cell; nothing for None.

    Examples
    --------
    >>> cell(0.000123456789), cell(None), cell([1, 2]), cell(True)
    ('0.000123457', '', '[1, 2]', 'True')
    """
    if value is None:
        return ""
    return one_line(value if isinstance(value, str) else value_text(value, _LONGEST))


def terminal_width() -> int | None:
    """Return the columns of the terminal that is written to; None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_text(
    head: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None
) -> str:
    """Return rows as aligned lines under a head, numbers to the right.

    Parameters
    ----------
    head : sequence of str
        Names of columns.
    rows : iterable of sequence
        Values, as many in each row.
    width : int, optional
        Columns that a line may take. Cells are then cut short, the last columns left out, and a
        last line says which.

    Examples
    --------
    >>> print(table_text(["trial", "loss"], [["a", 0.5], ["bcd", 12.25]]))
    trial   loss
    a        0.5
    bcd    12.25
    """
    table = [[*row] for row in rows]
    is_right = [
        any(row[at] is not None for row in table)
        and all(row[at] is None or _is_number(row[at]) for row in table)
        for at in range(len(head))
    ]
    texts = [[one_line(name) for name in head], *([cell(value) for value in row] for row in table)]
    hidden: list[str] = []
    if width is not None:
        texts = [[_clipped(text, _WIDEST) for text in row] for row in texts]
        fitting = _fitting(texts, width)
        hidden = texts[0][fitting:]
        texts = [[_clipped(text, width) for text in row[:fitting]] for row in texts]
    widths = [max(map(_columns, column)) for column in zip(*texts, strict=True)]
    sides = list(zip(widths, is_right[: len(widths)], strict=True))
    lines = [
        _GAP.join(_padded(text, *side) for text, side in zip(row, sides, strict=True)).rstrip()
        for row in texts
    ]
    if hidden:
        lines.append(_clipped(f"(not shown: {', '.join(hidden)})", max(width or 0, 20)))
    return "\n".join(lines)


def fields_text(fields: Mapping[str, object]) -> str:
    """Return names and values, one pair in a line; None is left out.

    Examples
    --------
    >>> print(fields_text({"metric": "loss", "mode": "min"}))
    metric  loss
    mode    min
    """
    shown = {one_line(name): cell(value) for name, value in fields.items() if value is not None}
    width = max(map(_columns, shown), default=0)
    return "\n".join(f"{_padded(name, width)}{_GAP}{text}" for name, text in shown.items())


def write_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows as CSV; what a terminal would obey is only taken out for a terminal."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    to_people = sys.stdout.isatty()
    for row in chain([head], rows):
        texts = [_plain(value) for value in row]
        writer.writerow([one_line(text) for text in texts] if to_people else texts)


def write_json(value: Any) -> None:
    """Write a value as JSON, with null for what is no finite number."""
    text = json.dumps(_finite(value), indent=2, allow_nan=False, default=str)
    # The one control character that JSON lets stand.
    write(text.replace("\x7f", "\\u007f"))


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(_finite(value), default=str)
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _is_number(value: object) -> bool:
    return not isinstance(value, bool | str) and number(value) is not None


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def _clipped(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    while _columns(text) >= width:
        text = text[:-1]
    return f"{text}…"


def _padded(text: str, width: int, right: bool = False) -> str:
    room = " " * (width - _columns(text))
    return room + text if right else text + room


def _fitting(texts: Sequence[Sequence[str]], width: int) -> int:
    """Return how many columns fit, at least one."""
    used = 0
    for at, column in enumerate(zip(*texts, strict=True)):
        used += max(map(_columns, column)) + (len(_GAP) if at else 0)
        if used > width:
            return max(1, at)
    return len(texts[0])
