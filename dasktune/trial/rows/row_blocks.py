"""Packs rows of results into few bytes, and unpacks them exactly.

A trial reports the same fields again and again, so a block holds the names once and the values in
columns: a constant column as one value, a counting one as its first value and its step, and numbers
as eight bytes each. Other values are pickled, so that every value comes back with its type. Objects
of other classes are pickled one by one, so that one that cannot be unpickled costs no other value.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count, repeat
from typing import Any, Final, Protocol

import numpy as np

#: The kinds of columns.
_CONSTANT: Final = "constant"
_COUNTING: Final = "counting"
_FLOATS: Final = "d"
_INTEGERS: Final = "q"
_OTHERS: Final = "others"

_Row = Mapping[str, Any]
#: The row, the name and the pickle of a value whose class may refuse to be unpickled.
_Object = tuple[int, str, bytes]


class BlockStore(Protocol):
    """Keeps packed blocks, in memory or elsewhere."""

    def write(self, block: bytes) -> object:
        """Keep a block, and return a handle for :meth:`read`."""

    def read(self, handle: Any) -> bytes:
        """Return a block. Safe in any thread."""


class MemoryBlocks:
    """Keeps blocks in memory: the handle of a block is the block.

    Examples
    --------
    >>> IN_MEMORY.read(IN_MEMORY.write(b"block"))
    b'block'
    """

    def write(self, block: bytes) -> object:
        """Return the block."""
        return block

    def read(self, handle: Any) -> bytes:
        """Return the block."""
        found: bytes = handle
        return found


#: The default store of blocks.
IN_MEMORY: Final = MemoryBlocks()


def pack_rows(rows: Sequence[_Row]) -> bytes | None:
    """Return rows as bytes; None if a value cannot be pickled, or not be unpickled then.

    Parameters
    ----------
    rows : sequence of mapping
        At least one row.

    Examples
    --------
    >>> rows = [{"step": step, "loss": 1 / step, "host": "a"} for step in range(1, 65)]
    >>> len(pack_rows(rows)) < 700, unpack_rows(pack_rows(rows))[0] == rows
    (True, True)
    """
    names = tuple(rows[0])
    objects: list[_Object] = []
    try:
        content: tuple[Any, Any]
        if all(tuple(row) == names for row in rows):
            columns = zip(*(row.values() for row in rows), strict=True)
            content = (
                names,
                [_column(name, values, objects) for name, values in zip(names, columns, strict=True)],
            )
        else:
            content = None, [_without_objects(at, row, objects) for at, row in enumerate(rows)]
        # The number of rows, too: rows without any field have no column.
        return pickle.dumps((len(rows), *content, objects), protocol=5)
    except Exception:  # the user's own objects may raise anything
        return None


class UnreadableValue:
    """Stands in a row of :func:`unpack_rows` for a value that can no longer be unpickled.

    Parameters
    ----------
    error : str
        The error.
    """

    def __init__(self, error: str) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"UnreadableValue({self.error!r})"


def unpack_rows(block: bytes) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows of a block of :func:`pack_rows`, and which of them have unreadable values.

    Parameters
    ----------
    block : bytes
        A block that this process has packed: a pickle from elsewhere could run code.

    Returns
    -------
    rows : list of dict
        The rows. A value that cannot be unpickled is an :class:`UnreadableValue`.
    unreadable : list of int
        The indices of the rows with such values; mostly empty.
    """
    size, names, content, objects = pickle.loads(block)
    if names is None:
        rows: list[dict[str, Any]] = content
    elif content:
        columns = [_values(kind, value) for kind, value in content]
        rows = [dict(zip(names, row, strict=True)) for _, *row in zip(range(size), *columns, strict=False)]
    else:
        rows = [{} for _ in range(size)]
    unreadable = []
    for at, name, pickled in objects:
        try:
            value = pickle.loads(pickled)
        except Exception as error:  # the user's own objects may raise anything
            value = UnreadableValue(f"{type(error).__name__}: {error}")
        rows[at][name] = value
        if isinstance(value, UnreadableValue):
            unreadable.append(at)
    return rows, unreadable


def _pickled(value: object) -> bytes:
    """Return the pickle of an object; raise if it cannot be unpickled."""
    # The rows exist nowhere else, so what cannot be read must be found now. The object of a user's
    # class may be pickled and yet refuse to be made again.
    pickled = pickle.dumps(value, protocol=5)
    pickle.loads(pickled)
    return pickled


def _without_objects(at: int, row: _Row, objects: list[_Object]) -> dict[str, Any]:
    plain = dict(row)
    for name, value in row.items():
        if type(value) not in _PLAIN:
            objects.append((at, name, _pickled(value)))
            plain[name] = None
    return plain


def _column(name: str, values: tuple[Any, ...], objects: list[_Object]) -> tuple[str, Any]:
    first, kinds = values[0], set(map(type, values))
    if len(kinds) == 1 and type(first) in _COMPARABLE:
        return _column_of_one_type(first, values)
    if not kinds <= _PLAIN:
        objects += [(at, name, _pickled(one)) for at, one in enumerate(values) if type(one) not in _PLAIN]
        values = tuple(one if type(one) in _PLAIN else None for one in values)
    return _OTHERS, list(values)


def _column_of_one_type(first: Any, values: tuple[Any, ...]) -> tuple[str, Any]:
    kind = type(first)
    # Equal is not the same: 0.0 == -0.0.
    if (first or kind is not float) and values.count(first) == len(values):
        return _CONSTANT, first
    if kind is float:
        return _FLOATS, array(_FLOATS, values).tobytes()
    if kind is int:
        # All are not equal, so there are at least two.
        step, size = values[1] - first, len(values)
        counts = step and values[-1] == first + step * (size - 1)
        if counts and values == tuple(range(first, first + step * size, step)):
            return _COUNTING, (first, step)
        with suppress(OverflowError):
            return _INTEGERS, array(_INTEGERS, values).tobytes()
    return _OTHERS, list(values)


#: Types of which equal values, except for zeros, are the same.
_COMPARABLE: Final = frozenset({int, float, str, bool, type(None)})

#: Types of which every value that was pickled can be unpickled.
_PLAIN: Final = (
    _COMPARABLE
    | {bytes, complex}
    | {np.bool_, np.int32, np.int64, np.uint8, np.float16, np.float32, np.float64}
)


def _values(kind: str, value: Any) -> Iterable[Any]:
    if kind == _CONSTANT:
        return repeat(value)
    if kind == _OTHERS:
        found: Iterable[Any] = value
        return found
    if kind == _COUNTING:
        return count(*value)
    numbers: array[Any] = array(kind)
    numbers.frombytes(value)
    return numbers
