"""Packs consecutive results into one line of the journal, with their values in columns.

A trial that streams reports the same fields again and again, and most of their values never change.
So a line for each result is expensive to write and to read. A packed line has the number of its
records, each common value once, and the other values as lists with one element for each record::

    {"$rows":3,"event":"ResultReported","seq":[2,3,4],"metrics":{"loss":[0.9,0.8,0.6],"pid":71}}

Only records without a list are packed, so a list is always a column. The reader of the journal
unpacks them, so all other code sees single records.

A line ends with the position of its last record in the journal, ``,"$n":12}``. It shows the reader
where lines are missing or repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.storage.journal.json_lines import compact, decode, encode

_KEY: Final = "$rows"
_START: Final = b'{"$rows":'
#: The beginning of a line's number. Keys of the user that start with ``$`` get a second ``$``, and
#: quotes inside of text are escaped, so these bytes stand nowhere else.
_NUMBER: Final = b',"$n":'
#: Digits of the longest number: more records than this fill no disk.
_MOST_DIGITS: Final = 15

#: Smallest number of records in a packed line.
_FEWEST: Final = 3
#: Largest number of records in a packed line, so that editors can show it. A line that claims more
#: is refused.
_MOST: Final = 256

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_MAPPING: Final = frozenset({dict})


class _NoCommonForm(Exception):
    """The records cannot be packed: their names or types differ, or a value is not a scalar."""


def can_pack_columns(record: Mapping[str, Any]) -> bool:
    """Whether a record may be packed with others: it is a result without actions."""
    return record.get("event") == "ResultReported" and "actions" not in record


def lines_of(records: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    r"""Yield as few lines of strict JSON as possible for these records.

    Parameters
    ----------
    records : sequence of mapping
        Records for which :func:`can_pack_columns` is true, in order. Any values.

    Examples
    --------
    >>> reports = [{"event": "ResultReported", "seq": seq, "awaits": False} for seq in (1, 2, 3)]
    >>> list(lines_of(reports))
    [b'{"$rows":3,"event":"ResultReported","seq":[1,2,3],"awaits":false}\n']
    """
    for _, alike in groupby(records, key=_shape):
        run = list(alike)
        for first in range(0, len(run), _MOST):
            yield from _lines(run[first : first + _MOST])


def count_rows(line: bytes) -> int:
    """Return the number of records in a line, without decoding it.

    Raises
    ------
    StorageError
        If the number is 0, or larger than dasktune writes.
    """
    if not line.startswith(_START):
        return 1
    number = line[len(_START) : len(_START) + 20].partition(b",")[0]
    if not number.isdigit() or not 1 <= int(number) <= _MOST:
        raise StorageError(f"not a number of rows: {number!r}")
    return int(number)


def numbered(line: bytes, position: int) -> bytes:
    r"""Return a line with the position of its last record.

    Parameters
    ----------
    line : bytes
        A line of :func:`lines_of` or :func:`~dasktune.storage.journal.json_lines.encode`.
    position : int
        Number of records of the whole journal up to the end of this line.

    Examples
    --------
    >>> numbered(b'{"event":"TimePassed"}\n', 12)
    b'{"event":"TimePassed","$n":12}\n'
    """
    return b"%b%b%d}\n" % (line[:-2], _NUMBER, position) if line != b"{}\n" else line


def split_number(line: bytes) -> tuple[bytes, int]:
    r"""Return a line without its number, and the number; 0 if the line has none.

    Raises
    ------
    StorageError
        If the number is malformed.

    Examples
    --------
    >>> split_number(b'{"event":"TimePassed","$n":12}\n')
    (b'{"event":"TimePassed"}\n', 12)
    """
    at = line.rfind(_NUMBER, -(len(_NUMBER) + _MOST_DIGITS + 2))
    if at < 0:
        return line, 0
    digits = line[at + len(_NUMBER) :].removesuffix(b"\n").removesuffix(b"}")
    if not digits.isdigit() or digits.startswith(b"0"):
        raise StorageError(f"not the number of a line: {digits!r}")
    return line[:at] + b"}\n", int(digits)


def read_rows(line: bytes) -> Iterator[dict[str, Any]]:
    r"""Return the records in a line, as many as :func:`count_rows` returns.

    They are made one at a time, since together they may be far larger than the line.

    Raises
    ------
    StorageError
        Before the iteration, if the line is not strict JSON, not a record, or has a column of
        another length.

    Examples
    --------
    >>> [row["seq"] for row in read_rows(b'{"$rows":2,"seq":[7,8],"awaits":false}\n')]
    [7, 8]
    """
    count_rows(line)
    content = decode(line)
    if not isinstance(content, dict):
        raise StorageError("it is not a record")
    # Only a line that starts with the key is packed: elsewhere the key may come from user data.
    return unpack_columns(content) if line.startswith(_START) else iter((content,))


def unpack_columns(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the records in the decoded content of a line, one at a time.

    Raises
    ------
    StorageError
        Before the iteration, if the line has more records than dasktune writes, or a column of
        another length.

    Examples
    --------
    >>> list(unpack_columns({"$rows": 2, "metrics": {"loss": [0.5, 0.25], "pid": 71}}))
    [{'metrics': {'loss': 0.5, 'pid': 71}}, {'metrics': {'loss': 0.25, 'pid': 71}}]
    """
    if _KEY not in content:
        return iter((content,))
    count = content[_KEY]
    if type(count) is not int or not 1 <= count <= _MOST:
        raise StorageError(f"not a number of rows: {str(count)[:20]!r}")
    return _rows({key: value for key, value in content.items() if key != _KEY}, count)


def _shape(record: Mapping[str, Any]) -> tuple[Any, ...]:
    metrics = record.get("metrics")
    names = tuple(metrics) if type(metrics) is dict else None
    # A checkpoint, or its absence, is part of the shape, too.
    return len(record), names, type(record.get("checkpoint"))


def _lines(records: list[Mapping[str, Any]]) -> Iterator[bytes]:
    if len(records) >= _FEWEST and (line := _packed_line(records)):
        yield line
    else:
        yield from map(encode, records)


def _packed_line(records: list[Mapping[str, Any]]) -> bytes:
    """Return one packed line; empty if the records must be encoded one by one."""
    try:
        text = compact(_columns(records))
    except (_NoCommonForm, ValueError, TypeError, RecursionError):
        return b""
    if '"$' in text:
        return b""
    return b"%s%d,%s\n" % (_START, len(records), text[1:].encode("ascii"))


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = tuple(records[0])
    if not {str}.issuperset(map(type, names)) or any(tuple(one) != names for one in records):
        raise _NoCommonForm
    columns = zip(*(one.values() for one in records), strict=True)
    return {name: _column(values) for name, values in zip(names, columns, strict=True)}


def _column(values: tuple[Any, ...]) -> Any:
    kinds = set(map(type, values))
    if kinds == _MAPPING:
        return _columns(values)
    if not kinds <= _SCALARS:
        raise _NoCommonForm
    first = values[0]
    # Equal is not enough: 1 == True, and 0.0 == -0.0.
    may_be_common = len(kinds) == 1 and (first or type(first) is not float)
    return first if may_be_common and values.count(first) == len(values) else values


def _rows(columns: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    lists = [_values(value, count) for value in columns.values()]
    if not lists:
        return ({} for _ in range(count))
    return (dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True))


def _values(value: Any, count: int) -> Iterable[Any]:
    if isinstance(value, dict):
        return _rows(value, count)
    if not isinstance(value, list):
        return repeat(value, count)
    if len(value) != count:
        raise StorageError(f"a column of {len(value)} values in a line of {count} rows")
    return value
