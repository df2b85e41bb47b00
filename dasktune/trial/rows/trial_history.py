"""The results of one trial, of which only the newest ones take memory as Python objects.

A trial may report millions of results. The newest ones are kept as they came. Older ones are packed
into blocks of equal length, which a store keeps: in memory, in a file, or wherever it likes. A
history that was restored begins with rows that stand in the journal and are read when they are
needed.
"""

# The driver's thread changes a history, and any thread may read it. So everything that a reader
# needs is in one tuple, `_parts`, which is replaced as a whole. Of its members only the newest rows
# change: the list grows and shrinks at its end, and rows in it are replaced, each in one step. The
# list of blocks only grows, and a reader knows how many of them precede its rows. So a reader sees
# the history as it was at one moment.

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, overload

from dasktune.errors import StorageError
from dasktune.trial.result_keys import TRAINING_ITERATION
from dasktune.trial.rows.row_blocks import (
    IN_MEMORY,
    BlockStore,
    UnreadableValue,
    pack_rows,
    unpack_rows,
)

logger = logging.getLogger(__name__)

Row = dict[str, Any]

#: Number of rows in a block. Up to twice as many rows of a trial are not packed.
BLOCK_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows that are elsewhere, and are read when they are needed.

    Parameters
    ----------
    count : int
        The number of rows.
    read : callable
        Returns a history that begins with these rows. Safe in any thread.
    """

    count: int
    read: Callable[[], History]


class _Parts(NamedTuple):
    """All rows of a history, oldest first."""

    stored: StoredRows
    #: Handles of the blocks, or the rows of a block that cannot be packed. Only the first
    #: `num_blocks` belong to the history.
    blocks: list[Any]
    num_blocks: int
    #: The newest rows, as they came. Empty only if there is no row at all.
    newest: list[Row]
    #: Rows that replace older ones with the same iteration. These are older than `newest`.
    recomputed: History | None


class History(Sequence[Row]):
    """The results of one trial, oldest first: a sequence that behaves as a list of its rows.

    It equals such a list, and so does its ``repr``; slices, sums and copies are lists. It has no
    methods of a list that change it. A pickle of it has all rows.

    Parameters
    ----------
    rows : iterable of dict, default=()
        The first rows.
    store : BlockStore, default=IN_MEMORY
        Keeps the blocks of older rows.
    stored : StoredRows, optional
        Rows before `rows`, which must not be empty then.
    owner : str, default=""
        The ID of the trial, for messages.

    Examples
    --------
    >>> history = History()
    >>> [history.record({"training_iteration": number}) for number in (1, 2, 2)]
    [True, True, False]
    >>> history.cut_back(1)
    >>> history == [{"training_iteration": 1}]
    True
    """

    __slots__ = ("_newest", "_parts", "_unpacked", "owner", "store")

    def __init__(
        self,
        rows: Iterable[Row] = (),
        *,
        store: BlockStore = IN_MEMORY,
        stored: StoredRows | None = None,
        owner: str = "",
    ) -> None:
        self.store = store
        self.owner = owner
        #: The last member of `_parts`, where most calls find all that they need.
        self._newest: list[Row] = []
        self._parts = _Parts(stored or StoredRows(0, History), [], 0, self._newest, None)
        #: The last block that was unpacked to read a single row: its list, its number, its rows.
        self._unpacked: tuple[list[Any], int, list[Row]] = ([], -1, [])
        self.extend(rows)

    # Changes, only in the driver's thread

    def append(self, row: Row) -> None:
        """Add a row; it is kept, not copied, until it is packed."""
        newest = self._newest
        newest.append(row)
        if len(newest) >= 2 * BLOCK_ROWS:
            self._pack()

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows."""
        for row in rows:
            self.append(row)

    def record(self, row: Row) -> bool:
        """Add a result, and return whether it is new.

        Parameters
        ----------
        row : dict
            A result with its ``training_iteration``.

        Returns
        -------
        bool
            False for an iteration that the trial had reported before. The result then replaces that
            row, if the history has it.
        """
        newest, iteration = self._newest, int(row[TRAINING_ITERATION])
        if not newest or iteration > int(newest[-1][TRAINING_ITERATION]):
            self.append(row)
            return True
        if iteration < int(newest[0][TRAINING_ITERATION]):
            if len(self) > len(newest):
                again = self._parts.recomputed
                if again is None:
                    again = self._like()
                    self._set(self._parts._replace(recomputed=again))
                again.append(row)
            return False
        for at, other in enumerate(newest):
            if int(other[TRAINING_ITERATION]) == iteration:
                newest[at] = row
        return False

    def cut_back(self, iteration: int) -> None:
        """Remove the rows after an iteration.

        Parameters
        ----------
        iteration : int
            The last ``training_iteration`` that stays.
        """
        # Other threads may read the history meanwhile: it changes only at the end, in one step, and
        # not at all if reading an older row raises an unexpected error.
        parts = self._parts
        rows = _up_to(parts.newest, iteration)
        if not rows and len(self) > len(parts.newest):
            try:
                self._set(self._cut_older(parts, iteration))
            except StorageError as error:
                # The trial does not need these rows to continue, so its experiment continues, too.
                logger.warning(
                    "%s goes back to iteration %d and loses its older results, which cannot be read: %s",
                    self._name,
                    iteration,
                    error,
                )
                self._set(self._like()._parts)
            return
        self._set(parts._replace(newest=rows, recomputed=parts.recomputed if rows else None))

    def _cut_older(self, parts: _Parts, iteration: int) -> _Parts:
        """Return the rows up to an iteration that precedes the newest rows."""
        stored, blocks, number, _, _ = parts
        again = self._recomputed_rows()
        rows: list[Row] = []
        while not rows and number:
            number -= 1
            rows = _up_to(self._current(self._block(blocks[number])[0], again), iteration)
        if not rows and stored.count:
            return self._cut_stored(stored, iteration, again)
        # A new list: a reader may still use the old one, which must only grow.
        recomputed = self._recomputed_before(rows)
        return _Parts(stored, blocks[:number], number, rows, recomputed if rows else None)

    def _cut_stored(self, stored: StoredRows, iteration: int, again: Mapping[int, Row]) -> _Parts:
        """Return the stored rows up to an iteration, packed."""
        # A trial seldom goes back so far.
        loaded = self._like()
        for row in islice(stored.read(), stored.count):
            loaded.append(again.get(int(row[TRAINING_ITERATION]), row) if again else row)
        loaded.cut_back(iteration)
        return loaded._parts

    def emptied(self) -> History:
        """Return a history of the same trial and kind without rows."""
        return self._like()

    def _like(self, rows: Iterable[Row] = ()) -> History:
        """Return a history of the same trial with other rows."""
        return type(self)(rows, store=self.store, owner=self.owner)

    def _recomputed_before(self, rows: list[Row]) -> History | None:
        """Return the recomputed rows that are older than the first of these rows."""
        before = self._parts.recomputed
        if before is None or not rows:
            return None
        first = int(rows[0][TRAINING_ITERATION])
        older = (row for row in before if int(row[TRAINING_ITERATION]) < first)
        return self._like(older)

    def _pack(self) -> None:
        stored, blocks, number, newest, recomputed = self._parts
        rows, rest = newest[:BLOCK_ROWS], newest[BLOCK_ROWS:]
        packed = pack_rows(rows)
        blocks.append(rows if packed is None else self.store.write(packed))
        self._set(_Parts(stored, blocks, number + 1, rest, recomputed))

    def _set(self, parts: _Parts) -> None:
        self._parts, self._newest = parts, parts.newest

    # Queries, in any thread

    @property
    def is_at_hand(self) -> bool:
        """Whether no row has to be read from where :class:`StoredRows` are."""
        return not self._parts.stored.count

    def read_stored(self) -> None:
        """Read the rows that are elsewhere, so that a later use finds them in memory.

        Raises
        ------
        StorageError
            If they cannot be read.
        """
        stored = self._parts.stored
        if stored.count:
            stored.read()

    @property
    def newest(self) -> list[Row]:
        """The rows that are in memory as they came: the last one, if there is any, and more."""
        return self._newest.copy()

    @property
    def _name(self) -> str:
        return f"trial {self.owner}" if self.owner else "a trial"

    def __len__(self) -> int:
        stored, _, number, newest, _ = self._parts
        return stored.count + number * BLOCK_ROWS + len(newest)

    def __bool__(self) -> bool:
        return bool(self._newest)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if index == -1:
            return self._newest[-1]
        parts = self._parts
        newest = parts.newest.copy()
        older = parts.stored.count + parts.num_blocks * BLOCK_ROWS
        if isinstance(index, slice):
            start, stop, step = index.indices(older + len(newest))
            if step < 0:
                return list(self)[index]
            if start >= older:
                return newest[start - older : max(stop - older, 0) : step]
            return list(islice(self._rows(parts, newest, start), 0, max(stop - start, 0), step))
        at = range(older + len(newest))[index]
        if at >= older:
            return newest[at - older]
        stored = parts.stored
        row = stored.read()[at] if at < stored.count else self._row(parts.blocks, at - stored.count, at)
        return self._current([row])[0]

    def __iter__(self) -> Iterator[Row]:
        return self.rows_from(0)

    def __reversed__(self) -> Iterator[Row]:
        parts = self._parts
        return self._rows_backwards(parts, parts.newest.copy())

    def rows_from(self, start: int) -> Iterator[Row]:
        """Return an iterator over the rows from an index on, which unpacks a block at a time.

        Parameters
        ----------
        start : int
            Index of the first row, at least 0.
        """
        parts = self._parts
        return self._rows(parts, parts.newest.copy(), start)

    def _rows(self, parts: _Parts, newest: list[Row], start: int) -> Iterator[Row]:
        """Yield the rows from an index on, a block at a time."""
        stored, blocks, number, _, _ = parts
        if start < stored.count:
            recomputed = self._recomputed_rows()
            for row in islice(stored.read().rows_from(start), stored.count - start):
                yield recomputed.get(int(row[TRAINING_ITERATION]), row) if recomputed else row
        at, skip = divmod(max(start - stored.count, 0), BLOCK_ROWS)
        if at < number:
            recomputed = self._recomputed_rows()
            for one in range(at, number):
                rows, unreadable = self._block(blocks[one])
                if unreadable:
                    yield from self._checked(rows, skip, stored.count + one * BLOCK_ROWS, recomputed)
                else:
                    rows = rows[skip:]
                    yield from self._current(rows, recomputed) if recomputed else rows
                skip = 0
            at, skip = number, 0
        yield from newest[(at - number) * BLOCK_ROWS + skip :]

    def _rows_backwards(self, parts: _Parts, newest: list[Row]) -> Iterator[Row]:
        """Yield the rows, newest first, a block at a time; stored rows only when they come."""
        stored, blocks, number, _, _ = parts
        yield from reversed(newest)
        recomputed = self._recomputed_rows() if number or stored.count else {}
        for one in reversed(range(number)):
            rows, unreadable = self._block(blocks[one])
            for at in reversed(range(len(rows))) if unreadable else ():
                self._check(rows[at], stored.count + one * BLOCK_ROWS + at, recomputed)
            yield from reversed(self._current(rows, recomputed))
        if stored.count:
            found = stored.read()
            for row in islice(reversed(found), len(found) - stored.count, None):
                yield recomputed.get(int(row[TRAINING_ITERATION]), row) if recomputed else row

    def _row(self, blocks: list[Any], at: int, index: int) -> Row:
        """Return a row of the blocks; the block stays unpacked for the next call."""
        number, place = divmod(at, BLOCK_ROWS)
        whose, which, rows = self._unpacked
        if whose is not blocks or which != number:
            rows, _ = self._block(blocks[number])
            self._unpacked = blocks, number, rows
        self._check(rows[place], index, self._recomputed_rows())
        return rows[place]

    def _block(self, block: Any) -> tuple[list[Row], list[int]]:
        """Return the rows of a block, and the indices of those with values that are unreadable."""
        if isinstance(block, list):
            return block, []
        try:
            return unpack_rows(self.store.read(block))
        except OSError as error:
            raise StorageError(
                f"older results of {self._name} cannot be read from the driver's temporary file: {error}. "
                "The experiment's journal has all of them: Result.from_path(...) reads them from there"
            ) from error

    def _checked(
        self, rows: list[Row], skip: int, first: int, recomputed: Mapping[int, Row]
    ) -> Iterator[Row]:
        for at, row in enumerate(rows[skip:], skip):
            self._check(row, first + at, recomputed)
            yield recomputed.get(int(row[TRAINING_ITERATION]), row)

    def _check(self, row: Row, index: int, recomputed: Mapping[int, Row]) -> None:
        """Refuse a row with a value that cannot be unpickled, unless the row was recomputed."""
        for name, value in row.items():
            if isinstance(value, UnreadableValue) and int(row[TRAINING_ITERATION]) not in recomputed:
                raise StorageError(
                    f"metric {name!r} of result {index} (training_iteration {row[TRAINING_ITERATION]}) of "
                    f"{self._name} can no longer be unpickled: {value.error}. All other results can be read: "
                    f"history[:{index}] and history[{index + 1}:]"
                )

    def _recomputed_rows(self) -> Mapping[int, Row]:
        again = self._parts.recomputed
        return {} if again is None else {int(row[TRAINING_ITERATION]): row for row in again}

    def _current(self, rows: list[Row], recomputed: Mapping[int, Row] | None = None) -> list[Row]:
        """Return rows, or what has replaced them."""
        again = self._recomputed_rows() if recomputed is None else recomputed
        return [again.get(int(row[TRAINING_ITERATION]), row) for row in rows] if again else rows

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History | list):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[Row]) -> list[Row]:
        if not isinstance(other, History | list):
            return NotImplemented
        return [*self, *other]

    def __radd__(self, other: list[Row]) -> list[Row]:
        other_rows: object = other
        return [*other, *self] if isinstance(other_rows, list) else NotImplemented

    def copy(self) -> list[Row]:
        """Return all rows as a new list."""
        return list(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _history_of, (list(self), self.owner)

    def __repr__(self) -> str:
        return repr(list(self))


def _history_of(rows: list[Row], owner: str) -> History:
    return History(rows, owner=owner)


def _up_to(rows: list[Row], iteration: int) -> list[Row]:
    """Return a new list of the rows without the last ones that are after an iteration."""
    kept = rows.copy()
    while kept and int(kept[-1].get(TRAINING_ITERATION, 0)) > iteration:
        kept.pop()
    return kept


class LastRow(History):
    """A history of the newest row alone, for readers that need no other; a clone begins without."""

    __slots__ = ()

    def record(self, row: Row) -> bool:
        """Replace the row, unless it is newer; return whether this one is newer."""
        newest, iteration = self._newest, int(row[TRAINING_ITERATION])
        if not newest:
            newest.append(row)
            return True
        last = int(newest[0][TRAINING_ITERATION])
        if iteration >= last:
            newest[0] = row
        return iteration > last
