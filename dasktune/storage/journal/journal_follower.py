"""Follows a journal while it grows, reading each byte once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal import compression
from dasktune.storage.journal.journal_reader import JournalReader
from dasktune.storage.journal.segments import DIRECTORY, segment_name, segments

logger = logging.getLogger(__name__)


class JournalFollower(JournalReader):
    """Returns the records that were added to a journal since the last poll.

    Each poll continues where the last one stopped. A new driver starts a new epoch. If that epoch
    does not continue at exactly this position, the whole history is read again.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        #: The last segment that was read, and the number of bytes of it that were read.
        self._segment, self._offset = "", 0
        #: Bytes of files read so far, and the journal's size in bytes when reading began.
        self._read, self._total = 0.0, 0

    @property
    def share(self) -> float | None:
        """Share of the journal's initial size that was read, from 0 to 1; None if unknown."""
        return min(1.0, self._read / self._total) if self._total else None

    def poll(self) -> tuple[bool, Iterator[dict[str, Any]]]:
        """Return ``(changed, records)``: the new records, or all if the earlier history changed.

        The records are read during the iteration, which must be complete before the next call.

        Raises
        ------
        StorageError
            As for :class:`JournalReader`, also during the iteration. Records that were returned
            before the error count as read.
        """
        found = segments(self.storage)
        newest, before = max(found, default=0), self.end
        if newest == before.epoch:
            return False, self._read_on(found.get(newest, []))
        continues = before.epoch > 0 and self._header(newest).after == before
        if not continues:
            self._read, self._total = 0.0, self._size_of_all()
        self.start = before.position if continues else 0
        return not continues, iter(self)

    def _lines(
        self, epoch: int, sequences: list[int], *, is_cut: bool = False
    ) -> Iterator[tuple[str, int, bytes]]:
        for name, number, line in super()._lines(epoch, sequences, is_cut=is_cut):
            self._advance(name, line)
            yield name, number, line

    def _advance(self, name: str, line: bytes) -> None:
        if name != self._segment:
            self._segment, self._offset = name, 0
        self._offset += len(line)
        self._read += len(line) * self._file_share

    def _size_of_all(self) -> int:
        """Return the size of all segments in bytes; 0 if the store does not report it."""
        try:
            return int(self.storage.fs.du(self.storage.path(DIRECTORY), total=True))
        except Exception:  # the store's client may raise any exception: the size is for display only
            logger.debug("the size of the journal is unknown", exc_info=True)
            return 0

    def _read_on(self, sequences: list[int]) -> Iterator[dict[str, Any]]:
        names = [segment_name(self._epoch_number, sequence) for sequence in sequences]
        first = names.index(self._segment) if self._segment in names else 0
        for name in names[first:]:
            begin = self._offset if name == self._segment else 0
            for number, line in enumerate(self._rest(name, begin), 1):
                self._advance(name, line)
                yield from self._records_of(f"what follows byte {begin} of {name}", number, line)

    def _rest(self, name: str, begin: int) -> list[bytes]:
        """Return the complete lines of a segment from byte `begin` on.

        A torn line is left for the next poll: its writer may be about to complete it.
        """
        if begin and not self.storage.is_local:
            return []  # objects do not grow
        # The segment may have been compressed since the last poll: `begin` counts bytes of lines.
        with reading(name, self.storage), self.storage.open_read(name) as file:
            if begin:
                stream = compression.open_lines(file)
                stream.seek(begin)
                found: Iterable[bytes] = stream.read().splitlines(keepends=True)
            else:
                found = compression.lines(name, file.read())
            return [line for line in found if line.endswith(b"\n")]
