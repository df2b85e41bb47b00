"""Reading the journal: one history, whatever its writers died of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from dasktune.errors import StorageError
from dasktune.storage import filesystem
from dasktune.storage.folding import count_rows, unfold
from dasktune.storage.journal_format import Header, JournalEnd, segment_name, segments
from dasktune.storage.json_lines import decode
from dasktune.storage.location import Storage

__all__ = ["JournalReader", "read_journal"]

T = TypeVar("T")

#: Segments of a remote store that are fetched together.
_BATCH: Final = 64


class JournalReader:
    """Iterates over the records of a journal, in order, and knows where it came to the end.

    It may be read while it is written. A torn last line, which a writer's death leaves, is dropped.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    start : int, default=0
        Position of the first record that is wanted; those before are skipped cheaply.

    Raises
    ------
    StorageError
        While iterating: if the journal is of another format, damaged in its middle, or lacks what
        a later driver had read of it.
    """

    def __init__(self, storage: Storage, *, start: int = 0) -> None:
        self.storage = storage
        self.start = start
        self._epoch_number = self._records = self._size = self._position = 0

    @property
    def end(self) -> JournalEnd:
        """Where the reader is; after the iteration, what the next writer is to be given."""
        return JournalEnd(self._epoch_number, self._records, self._size, self._position)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._epoch_number = self._records = self._size = self._position = 0
        found = segments(self.storage)
        for header, limit in self._chain(found):
            yield from self._epoch(header, found[header.epoch], limit)

    def _chain(self, found: dict[int, list[int]]) -> list[tuple[Header, JournalEnd | None]]:
        """Return the epochs of the history, first to last, each with the length that counts."""
        chain: list[tuple[Header, JournalEnd | None]] = []
        epoch, limit = max(found, default=0), None
        while epoch:
            if epoch not in found:
                raise StorageError(f"the journal of {self.storage} has lost its epoch {epoch}")
            header = self._header(epoch)
            if header.after.epoch >= epoch:
                name = segment_name(epoch, 0)
                raise StorageError(f"line 1 of {name} says that it comes after a later epoch")
            chain.append((header, limit))
            epoch, limit = header.after.epoch, header.after
        return chain[::-1]

    def _header(self, epoch: int) -> Header:
        name = segment_name(epoch, 0)
        try:
            with self.storage.open_read(name) as stream:
                # A header is short, and the segment may be long.
                line = stream.read(4096).partition(b"\n")[0]
        except FileNotFoundError:
            raise StorageError(f"the journal of {self.storage} has lost {name}") from None
        header = Header.decode(line, name)
        if header.epoch != epoch:
            raise StorageError(f"line 1 of {name} says that it is of epoch {header.epoch}")
        return header

    def _epoch(
        self, header: Header, sequences: list[int], limit: JournalEnd | None
    ) -> Iterator[dict[str, Any]]:
        self._epoch_number, self._records, self._size = header.epoch, 0, 0
        lines = self._lines(header.epoch, sequences)
        self._size = len(next(lines)[2])  # the header
        for name, number, line in lines:
            if limit is not None and self._records == limit.records:
                break
            before = self._position
            rows = self._whole(name, number, line, count_rows)
            self._records += rows
            self._size += len(line)
            self._position += rows
            if self._position > self.start:
                yield from self._whole(name, number, line, _decoded)[max(0, self.start - before) :]
        if limit is not None and self.end != limit:
            raise StorageError(
                f"epoch {header.epoch} of the journal of {self.storage} has changed since its "
                f"successor read it: {limit} then, {self.end} now"
            )

    def _whole(self, name: str, number: int, line: bytes, read: Callable[[bytes], T]) -> T:
        """Return what `read` gives, and say where it stands if it cannot be read."""
        try:
            return read(line)
        except StorageError as error:
            raise StorageError(f"line {number} of {name} in {self.storage}: {error}") from error

    def _lines(self, epoch: int, sequences: list[int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield segment, line number from 1, and line, for each whole line of an epoch."""
        if sequences != list(range(len(sequences))):
            raise StorageError(
                f"epoch {epoch} of the journal of {self.storage} lacks a segment: {sequences}"
            )
        for first in range(0, len(sequences), _BATCH):
            names = [segment_name(epoch, number) for number in sequences[first : first + _BATCH]]
            contents = filesystem.run_each(self.storage.fs, self.storage.read_bytes, names)
            for name, content in zip(names, contents, strict=True):
                lines = content.splitlines(keepends=True)
                torn = bool(lines) and not lines[-1].endswith(b"\n")
                if torn and name != segment_name(epoch, sequences[-1]):
                    raise StorageError(f"line {len(lines)} of {name} in {self.storage} is torn")
                whole = lines[:-1] if torn else lines
                for number, line in enumerate(whole, 1):
                    yield name, number, line


def _decoded(line: bytes) -> list[dict[str, Any]]:
    content = decode(line)
    if not isinstance(content, dict):
        raise StorageError("it is no record")
    return unfold(content)


def read_journal(storage: Storage, *, start: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal, in order.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    start : int, default=0
        Position of the first record that is wanted.

    Raises
    ------
    StorageError
        As for :class:`JournalReader`.
    """
    return iter(JournalReader(storage, start=start))
