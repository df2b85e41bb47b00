"""Results that follow each other, as one line of the journal with their values in columns.

A trial that streams reports the same fields again and again, and most of what is in them never
changes, so a line for each result is dear to write and long to read. A folded line says how many
records it stands for, each common value once, and the others as a list with one for each record::

    {"$rows":3,"event":"ResultReported","seq":[2,3,4],"metrics":{"loss":[0.9,0.8,0.6],"pid":71}}

Only records without a list are folded, so that a list is always a column. Nobody but the reader of
the journal sees that they ever were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.storage.json_lines import compact, decode, encode

__all__ = ["count_rows", "is_foldable", "lines_of", "read_rows", "unfold"]

_KEY: Final = "$rows"
_START: Final = b'{"$rows":'

#: Fewer are not worth it.
_FEWEST: Final = 3
#: More make a line that no editor shows. No line is believed that it stands for more.
_MOST: Final = 256

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_MAPPING: Final = frozenset({dict})


class _Unlike(Exception):
    """The values have no common form."""


def is_foldable(record: Mapping[str, Any]) -> bool:
    """Whether a record is a result that nothing was decided about."""
    return record.get("event") == "ResultReported" and "actions" not in record


def lines_of(records: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    r"""Yield lines of strict JSON, as few as these records can be told in.

    Parameters
    ----------
    records : sequence of mapping
        Of which :func:`is_foldable` is true, in order. Any values.

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
    """Return how many records a line stands for, without reading all of it.

    Raises
    ------
    StorageError
        If it says that it stands for none, or for more than dasktune puts into a line.
    """
    if not line.startswith(_START):
        return 1
    number = line[len(_START) : len(_START) + 20].partition(b",")[0]
    if not number.isdigit() or not 1 <= int(number) <= _MOST:
        raise StorageError(f"not a number of rows: {number!r}")
    return int(number)


def read_rows(line: bytes) -> Iterator[dict[str, Any]]:
    r"""Return the records that a line stands for, as many as :func:`count_rows` says.

    They are made one after the other, as together they may take far more room than the line.

    Raises
    ------
    StorageError
        At once, if it is no line of strict JSON, no record, or its columns are not as long as it
        says.

    Examples
    --------
    >>> [row["seq"] for row in read_rows(b'{"$rows":2,"seq":[7,8],"awaits":false}\n')]
    [7, 8]
    """
    count_rows(line)
    content = decode(line)
    if not isinstance(content, dict):
        raise StorageError("it is no record")
    # The key may also be a user's, who is not to be believed.
    return unfold(content) if line.startswith(_START) else iter((content,))


def unfold(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the records that the content of a line stands for, one after the other.

    Raises
    ------
    StorageError
        At once, if it stands for more than dasktune puts into a line, or its columns are not as
        long as it says.

    Examples
    --------
    >>> list(unfold({"$rows": 2, "metrics": {"loss": [0.5, 0.25], "pid": 71}}))
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
    # With a checkpoint or without makes a difference too.
    return len(record), names, type(record.get("checkpoint"))


def _lines(records: list[Mapping[str, Any]]) -> Iterator[bytes]:
    if len(records) >= _FEWEST and (line := _folded(records)):
        yield line
    else:
        yield from map(encode, records)


def _folded(records: list[Mapping[str, Any]]) -> bytes:
    """Return one line, empty if there can be none: `encode` finds a form for whatever it is."""
    try:
        text = compact(_columns(records))
    except (_Unlike, ValueError, TypeError, RecursionError):
        return b""
    if '"$' in text:
        return b""
    return b"%s%d,%s\n" % (_START, len(records), text[1:].encode("ascii"))


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = tuple(records[0])
    if not {str}.issuperset(map(type, names)) or any(tuple(one) != names for one in records):
        raise _Unlike
    columns = zip(*(one.values() for one in records), strict=True)
    return {name: _column(values) for name, values in zip(names, columns, strict=True)}


def _column(values: tuple[Any, ...]) -> Any:
    kinds = set(map(type, values))
    if kinds == _MAPPING:
        return _columns(values)
    if not kinds <= _SCALARS:
        raise _Unlike
    first = values[0]
    # 1 == True, and 0.0 == -0.0.
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
