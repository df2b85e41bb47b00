"""Lay out tables as aligned lines of text, as wide as a terminal allows, and as HTML."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from dasktune.text.formatting import column_width, format_cell, one_line, pad, truncate
from dasktune.text.html_template import html_part, render_html
from dasktune.trial.metrics import number

#: Cells as text, in rows of equal length; the first row is the head.
Table = Sequence[Sequence[str]]

_GAP: Final = "  "

#: Maximum width of a cell in a table of limited width, in terminal columns.
_WIDEST_CELL: Final = 40
#: Width to which :func:`narrow` truncates a long text, in terminal columns.
_NARROW_CELL: Final = 8

_HTML_TABLE: Final = """
<table><thead><tr>{% for cell in table[0] %}<th>{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table>
"""


def table_lines(table: Table, right: Collection[int] = ()) -> list[str]:
    """Return a table as lines of text with aligned columns.

    Parameters
    ----------
    table : sequence of sequence of str
        Rows of equal length.
    right : collection of int, default=()
        Columns that are aligned to the right.

    Examples
    --------
    >>> table_lines([["trial", "n"], ["a", "10"]], right=[1])
    ['trial   n', 'a      10']
    """
    widths = _widths(table)
    return [
        _GAP.join(
            pad(cell, width, right=place in right)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _widths(table: Table) -> list[int]:
    return [max(map(column_width, column)) for column in zip(*table, strict=True)]


def table_width(table: Table) -> int:
    """Return how many columns of a terminal a table takes."""
    widths = _widths(table)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def drop_columns(table: Table, width: int | None) -> list[list[str]]:
    """Drop the last columns of a table until it fits into a width. The first column stays.

    Parameters
    ----------
    table : sequence of sequence of str
        Rows of equal length.
    width : int or None
        Columns of the terminal; no limit if None.

    Examples
    --------
    >>> drop_columns([["trial", "iter", "lr"], ["a_00001", "12", "0.001"]], 15)
    [['trial', 'iter'], ['a_00001', '12']]
    """
    used = kept = 0
    for column in _widths(table):
        used += column + (len(_GAP) if kept else 0)
        if kept and width is not None and used > width:
            break
        kept += 1
    return [[*row[:kept]] for row in table]


def narrow(table: Table, width: int | None, spare: Sequence[int]) -> list[list[str]]:
    """Return a table that fits: long texts are truncated first, then columns are left out.

    The first column and numbers are never truncated: the first one identifies the row, and a
    truncated number is a different number.

    Parameters
    ----------
    table : sequence of sequence of str
        Rows of equal length; the first is the head.
    width : int or None
        Columns of the terminal; no limit if None.
    spare : sequence of int
        Columns that are dropped first, in this order, before the last columns.

    Examples
    --------
    >>> narrow([["trial", "a_long_name", "loss"], ["a_00001", "relu", "0.5"]], 23, [1])
    [['trial', 'a_long_…', 'loss'], ['a_00001', 'relu', '0.5']]
    >>> narrow([["trial", "a_long_name", "loss"], ["a_00001", "relu", "0.5"]], 15, [1])
    [['trial', 'loss'], ['a_00001', '0.5']]
    """
    if width is None or table_width(table) <= width:
        return [[*row] for row in table]
    table = [
        [
            cell if not place or _is_number_text(cell) else truncate(cell, _NARROW_CELL)
            for place, cell in enumerate(row)
        ]
        for row in table
    ]
    kept = list(range(len(table[0])))
    for column in spare:
        if table_width([[row[place] for place in kept] for row in table]) > width:
            kept.remove(column)
    return drop_columns([[row[place] for place in kept] for row in table], width)


def _is_number_text(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def table_text(head: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> str:
    """Return values as a table of text, with columns of numbers aligned to the right.

    Parameters
    ----------
    head : sequence of str
        Names of columns.
    rows : iterable of sequence
        The rows, each with a value for every column.
    width : int, optional
        Columns of the terminal. Cells are then truncated and the last columns left out; a last
        line names the columns that were left out.

    Examples
    --------
    >>> print(table_text(["trial", "loss"], [["a", 0.5], ["bcd", 12.25]]))
    trial   loss
    a        0.5
    bcd    12.25
    """
    values = [[*row] for row in rows]
    right = [place for place in range(len(head)) if _is_numeric([row[place] for row in values])]
    table = [[one_line(name) for name in head], *(list(map(format_cell, row)) for row in values)]
    if width is None:
        return "\n".join(table_lines(table, right))
    table = [[truncate(cell, _WIDEST_CELL) for cell in row] for row in table]
    fitting = drop_columns(table, width)
    hidden = table[0][len(fitting[0]) :]
    fitting = [[truncate(cell, width) for cell in row] for row in fitting]
    lines = table_lines(fitting, right)
    if hidden:
        lines.append(truncate(f"(not shown: {', '.join(hidden)})", max(width, 20)))
    return "\n".join(lines)


def _is_numeric(column: Sequence[object]) -> bool:
    """Whether a column has numbers, and no other values but None."""
    values = [value for value in column if value is not None]
    return bool(values) and all(
        not isinstance(value, bool | str) and number(value) is not None for value in values
    )


def fields_text(fields: Mapping[str, object]) -> str:
    """Return names and values, one pair in a line; fields that are None are left out.

    Examples
    --------
    >>> print(fields_text({"metric": "loss", "mode": "min"}))
    metric  loss
    mode    min
    """
    table = [[one_line(name), format_cell(value)] for name, value in fields.items() if value is not None]
    return "\n".join(table_lines(table)) if table else ""


def html_table(table: Table) -> str:
    """Return a table as HTML with all text escaped; an empty text for a table without a head."""
    return html_part(_HTML_TABLE, table=table) if table else ""


def html_summary(headline: str, table: Table, texts: Iterable[str] = ()) -> str:
    """Return a headline, a table and texts as HTML with all text escaped; no table without rows."""
    page = "<div><p>{{ head }}</p>{{ table }}{% for text in texts %}<p>{{ text }}</p>{% endfor %}</div>"
    rows = html_table(table) if len(table) > 1 else ""
    return render_html(page, head=headline, table=rows, texts=texts)
