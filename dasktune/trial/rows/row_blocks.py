"""Packs rows of results into few bytes, and unpacks them exactly.

A trial reports the same fields again and again, so a block holds the names once and the values in
columns: a constant column as one value, a counting one as its first value and its step, and numbers
as eight bytes each. Other values are pickled, so that every value comes back with its type.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count, repeat
from typing import Any, Final, Protocol

__all__ = ["IN_MEMORY", "BlockStore", "MemoryBlocks", "pack_rows", "unpack_rows"]

#: The kinds of columns.
_CONSTANT: Final = "constant"
_COUNTING: Final = "counting"
_FLOATS: Final = "d"
_INTEGERS: Final = "q"
_OTHERS: Final = "others"

_Row = Mapping[str, Any]


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
    >>> len(pack_rows(rows)) < 700, list(unpack_rows(pack_rows(rows))) == rows
    (True, True)
    """
    names = tuple(rows[0])
    content: tuple[Any, Any] = None, list(rows)
    if all(tuple(row) == names for row in rows):
        content = names, list(map(_column, zip(*(row.values() for row in rows), strict=True)))
    try:
        # The number of rows, too: rows without any field have no column.
        block = pickle.dumps((len(rows), *content), protocol=5)
        # The rows exist nowhere else, so what cannot be read must be found now. The object of a
        # user's class may be pickled and yet refuse to be made again.
        if not _PLAIN.issuperset(map(type, chain.from_iterable(row.values() for row in rows))):
            pickle.loads(block)
        return block
    except Exception:  # the user's own objects may raise anything
        return None


def unpack_rows(block: bytes) -> list[dict[str, Any]]:
    """Return the rows of a block of :func:`pack_rows`.

    Parameters
    ----------
    block : bytes
        A block that this process has packed: a pickle from elsewhere could run code.
    """
    size, names, content = pickle.loads(block)
    if names is None:
        found: list[dict[str, Any]] = content
        return found
    columns = [_values(kind, value) for kind, value in content]
    if not columns:
        return [{} for _ in range(size)]
    return [dict(zip(names, row, strict=True)) for _, *row in zip(range(size), *columns, strict=False)]


def _column(values: tuple[Any, ...]) -> tuple[str, Any]:
    first, kinds = values[0], set(map(type, values))
    if len(kinds) > 1:
        return _OTHERS, list(values)
    # Equal is not the same: 0.0 == -0.0. Values of other types may define equality as they like.
    is_simple = kinds <= _COMPARABLE and (first or type(first) is not float)
    if is_simple and values.count(first) == len(values):
        return _CONSTANT, first
    if kinds == {float}:
        return _FLOATS, array(_FLOATS, values).tobytes()
    if kinds == {int}:
        # All are not equal, so there are at least two.
        step = values[1] - first
        if step and values == tuple(range(first, first + step * len(values), step)):
            return _COUNTING, (first, step)
        if all(-(2**63) <= value < 2**63 for value in values):
            return _INTEGERS, array(_INTEGERS, values).tobytes()
    return _OTHERS, list(values)


#: Types of which equal values, except for zeros, are the same.
_COMPARABLE: Final = frozenset({int, float, str, bool, type(None)})

#: Types of which every value that was pickled can be unpickled.
_PLAIN: Final = _COMPARABLE | {bytes, complex}


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
