"""Reads the journal as one history, across all its epochs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from dasktune.errors import StorageError
from dasktune.storage.fs import filesystem
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.retry import is_transient
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal import compression
from dasktune.storage.journal.columnar import count_rows, read_rows, split_number
from dasktune.storage.journal.segments import DIRECTORY, Header, JournalEnd, segment_name, segments
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.names import is_one_name

S = TypeVar("S")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: Number of remote segments that are fetched together, and their bytes: a journal that was copied
#: from a disk has large ones. On a disk, segments are read one at a time.
_BATCH: Final = 64
_BATCH_BYTES: Final = 64 * 1024**2
#: The way out of a damaged journal, for messages.
HOW_TO_REPAIR: Final = "`dasktune repair DIRECTORY` restores the last good state"
#: Directories that only a driver with a journal fills.
_TRACES: Final = ("snapshots", "trials")
#: Bytes that are read to get an epoch's header, which has about 200 bytes.
_HEADER: Final = 4096


class _ReadAhead(Generic[K]):
    """Reads pieces of a remote journal in batches, before they are needed.

    Each driver starts an epoch, which may have a few lines only. If each of them were waited for, a
    journal of a hundred drivers would take hundreds of round trips to the store.

    Parameters
    ----------
    storage : Storage
        The experiment's directory. On a disk nothing is read ahead.
    read : callable
        Returns the content of a piece.
    keys : sequence
        All pieces, in the order in which they will mostly be needed.
    sizes : mapping, optional
        Their sizes in bytes, as far as they are known. Pieces of more than `batch_bytes` together
        are not read ahead.
    batch_bytes : int, default=64 MiB
        Bytes of the pieces that are read together.
    """

    def __init__(
        self,
        storage: Storage,
        read: Callable[[K], bytes],
        keys: Sequence[K],
        sizes: Mapping[K, int] | None = None,
        *,
        batch_bytes: int = _BATCH_BYTES,
    ) -> None:
        self._storage, self._read, self._keys = storage, read, keys
        self._sizes = sizes or {}
        self._batch_bytes = batch_bytes
        self._places = {} if storage.is_local else {key: place for place, key in enumerate(keys)}
        self._contents: dict[K, bytes] = {}

    def batches(self, keys: Sequence[K]) -> Iterator[Sequence[K]]:
        """Yield pieces that may be read together, in order."""
        most = 1 if self._storage.is_local else _BATCH
        while keys:
            # A piece that is larger than the limit is read alone.
            count = len(self._fitting(keys, most, self._batch_bytes)) or 1
            yield keys[:count]
            keys = keys[count:]

    def _fitting(self, keys: Sequence[K], most: int, room: int) -> list[K]:
        """Return the first pieces, at most so many and of so many bytes."""
        fitting: list[K] = []
        for key in keys[:most]:
            room -= self._sizes.get(key, 0)
            if room < 0:
                break
            fitting.append(key)
        return fitting

    def read(self, keys: Sequence[K]) -> list[bytes]:
        """Return the contents of some pieces, each of which is requested once.

        Raises
        ------
        Exception
            The error of the storage.
        """
        found = {key: self._contents.pop(key) for key in keys if key in self._contents}
        missing = [key for key in keys if key not in found]
        if missing:
            wanted = dict.fromkeys(missing)
            begin = self._places.get(missing[-1], len(self._keys)) + 1
            room = self._batch_bytes - sum(self._sizes.get(key, 0) for key in keys)
            ahead = self._fitting(self._keys[begin : begin + _BATCH], _BATCH - len(wanted), room)
            ahead = [key for key in ahead if key not in wanted]
            found |= self._fetch(missing, ahead)
        return [found[key] for key in keys]

    def _fetch(self, missing: list[K], ahead: list[K]) -> dict[K, bytes]:
        """Return the missing pieces, and keep the others."""
        # What was skipped, because it is not part of the history, is dropped here.
        self._contents = {}
        try:
            contents = filesystem.run_each(self._storage.fs, self._read, [*missing, *ahead])
        except Exception as error:  # each store's client has its own exceptions
            if not ahead or is_transient(error):
                raise
            # It may be a piece that is not part of the history.
            contents, ahead = filesystem.run_each(self._storage.fs, self._read, missing), []
        self._contents = dict(zip(ahead, contents[len(missing) :], strict=True))
        return dict(zip(missing, contents, strict=False))


class JournalReader:
    """Iterates over the records of a journal, in order, and keeps the position of the end.

    The journal may be read while it is written. A torn last line, left by the death of a writer, is
    dropped. The journal may be damaged or forged: names of trials and checkpoints in it are checked
    to stay inside the experiment, and nothing in it is executed.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    start : int, default=0
        Position of the first record to return; earlier ones are only counted.
    batch_bytes : int, default=64 MiB
        Bytes of a remote store's segments that are fetched together; a larger one is fetched alone.

    Raises
    ------
    StorageError
        While iterating: if the journal has another format, is damaged in its middle, lacks or
        repeats a line, or lacks records that a later driver has read; if it cannot be read, or has
        a name outside of the experiment.
    """

    # Reading while a driver writes: a segment grows at its end only, so a reader sees a prefix of
    # it, perhaps with a torn line. In the last epoch, the complete lines are the history
    # so far. A driver starts the next segment when the last one is complete, so a torn line in an
    # earlier segment is damage. A superseded driver may append to its epoch at any time: the header
    # of the next epoch bounds the records that are read.

    def __init__(self, storage: Storage, *, start: int = 0, batch_bytes: int = _BATCH_BYTES) -> None:
        self.storage = storage
        self._batch_bytes = batch_bytes
        self.start = start
        self._epoch_number = self._records = self._size = self._position = 0
        self._identity = ""
        #: Bytes of the current segment's file relative to those of its lines.
        self._file_share = 1.0
        #: Ids of trials that were checked.
        self._trials: set[str] = set()
        #: Reads the segments, those of the next epochs ahead.
        self._ahead = _ReadAhead[str](storage, storage.read_bytes, [])

    @property
    def end(self) -> JournalEnd:
        """The current position; after the iteration, the argument for the next writer."""
        return JournalEnd(self._epoch_number, self._records, self._size, self._position, self._identity)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._epoch_number = self._records = self._size = self._position = 0
        found = self._segments()
        chain = self._chain(found)
        self._ahead = _ReadAhead(
            self.storage,
            self.storage.read_bytes,
            [segment_name(one.epoch, number) for one, _ in chain for number in found[one.epoch]],
            {} if self.storage.is_local else self._sizes(),
            batch_bytes=self._batch_bytes,
        )
        for header, limit in chain:
            yield from self._epoch(header, found[header.epoch], limit)

    def ends_at(self, end: JournalEnd) -> bool:
        """Whether the journal ends at a position that an earlier reader has reached.

        Reads the last epoch only.

        Parameters
        ----------
        end : JournalEnd
            ``end`` of the earlier reader.

        Raises
        ------
        StorageError
            If the last epoch is damaged or cannot be read.
        """
        found = self._segments()
        newest = max(found, default=0)
        if newest != end.epoch or not newest:
            return newest == end.epoch
        header = self._header(newest)
        # The earlier reader has read, or skipped, what precedes its end: that is only counted.
        self._position, self.start, self._identity = header.after.position, end.position, end.journal
        for _ in self._epoch(header, found[newest], None):
            pass
        return self.end == end

    def chain(self) -> list[tuple[Header, JournalEnd | None]]:
        """Return the epochs of the history in order, each with the position at its end.

        The header of the next epoch states that position; for the last epoch it is None.

        Raises
        ------
        StorageError
            If a header is missing or damaged, or belongs to another journal.
        """
        return self._chain(self._segments())

    def _segments(self) -> dict[int, list[int]]:
        return segments(self.storage)

    def _sizes(self) -> dict[str, int]:
        with reading(DIRECTORY, self.storage):
            return {f"{DIRECTORY}/{name}": size for name, size in self.storage.sizes(DIRECTORY).items()}

    def _chain(self, found: dict[int, list[int]]) -> list[tuple[Header, JournalEnd | None]]:
        chain: list[tuple[Header, JournalEnd | None]] = []
        epoch, limit = max(found, default=0), None
        # The newest epoch first. A header names an earlier one, mostly the one before it.
        first_lines = _ReadAhead(
            self.storage, self._first_line, sorted(found, reverse=True), batch_bytes=self._batch_bytes
        )
        while epoch:
            if epoch not in found:
                raise StorageError(f"the journal of {self.storage} lacks its epoch {epoch}")
            header = self._header(epoch, first_lines)
            if header.after.epoch >= epoch:
                name = segment_name(epoch, 0)
                raise StorageError(f"line 1 of {name} says that it comes after a later epoch")
            chain.append((header, limit))
            epoch, limit = header.after.epoch, header.after
        chain.reverse()
        self._identity = chain[0][0].journal if chain else ""
        for header, _ in chain:
            if header.journal != self._identity:
                raise StorageError(
                    f"{segment_name(header.epoch, 0)} in {self.storage} belongs to another journal than "
                    f"{segment_name(chain[0][0].epoch, 0)}: files of two experiments are mixed. Put the "
                    "files of each experiment into a directory of its own."
                )
        return chain

    def _header(self, epoch: int, first_lines: _ReadAhead[int] | None = None) -> Header:
        name = segment_name(epoch, 0)
        with reading(name, self.storage):
            try:
                line = self._first_line(epoch) if first_lines is None else first_lines.read([epoch])[0]
            except FileNotFoundError:
                raise StorageError(f"the journal of {self.storage} lacks {name}") from None
        header = Header.decode(line, name)
        if header.epoch != epoch:
            raise StorageError(f"line 1 of {name} says that it is of epoch {header.epoch}")
        return header

    def _first_line(self, epoch: int) -> bytes:
        with self.storage.open_read(segment_name(epoch, 0)) as stream:
            # A header is short, and the segment may be long.
            return compression.beginning(stream.read(_HEADER)).partition(b"\n")[0]

    def _epoch(
        self, header: Header, sequences: list[int], limit: JournalEnd | None
    ) -> Iterator[dict[str, Any]]:
        self._epoch_number, self._records, self._size = header.epoch, 0, 0
        lines = self._lines(header.epoch, sequences, is_cut=limit is not None)
        first = next(lines, None)
        if first is None:
            name = segment_name(header.epoch, 0)
            raise StorageError(f"line 1 of {name} in {self.storage} is torn")
        self._size = len(first[2])  # the header
        # Nothing behind the limit is read: it may be damaged, and then the limit is a repair.
        while limit is None or self._records < limit.records:
            entry = next(lines, None)
            if entry is None:
                break
            yield from self._records_of(*entry)
        if limit is not None and self.end != limit:
            raise StorageError(
                f"epoch {header.epoch} of the journal of {self.storage} has changed since its "
                f"successor read it: {limit} then, {self.end} now. {HOW_TO_REPAIR}"
            )

    def _records_of(self, name: str, number: int, line: bytes) -> Iterator[dict[str, Any]]:
        """Count the next line, and yield its records from position `start` on."""
        before, size = self._position, len(line)
        line, last = self._whole(name, number, line, split_number)
        rows = self._whole(name, number, line, count_rows)
        is_skipped = before + rows <= self.start
        records = iter(()) if is_skipped else self._whole(name, number, line, read_rows)
        # A snapshot includes what is skipped, which may even be broken.
        if (last or not is_skipped) and last != before + rows:
            self._refuse_order(name, number, before, last - rows)
        self._records += rows
        self._size += size
        self._position += rows
        if before < self.start:
            records = islice(records, self.start - before, None)
        for record in records:
            if not self._is_harmless(record):
                self._whole(name, number, record, self._check)
            yield record

    def _refuse_order(self, name: str, number: int, before: int, found: int) -> None:
        """Raise the error of a line whose records do not follow those of the line before."""
        if found > before:
            what = f"{found - before} records are missing before it"
        elif found >= 0:
            what = f"it repeats record {found + 1}, which stands before it"
        else:
            what = "it lacks the number at its end"
        place = f"line {number} of {name} in {self.storage}"
        raise StorageError(f"{place} is out of order: {what}. {HOW_TO_REPAIR}")

    def _is_harmless(self, record: dict[str, Any]) -> bool:
        """Whether a record needs no check: it names no checkpoint and at most a known trial."""
        return (
            "actions" not in record
            and record.get("checkpoint") is None
            and self._is_known(record.get("trial_id"))
        )

    def _is_known(self, trial_id: object) -> bool:
        return trial_id is None or (type(trial_id) is str and trial_id in self._trials)

    def _check(self, record: dict[str, Any]) -> None:
        """Refuse a record with a name that leads out of the experiment's directories."""
        self._check_names(record)
        actions = record.get("actions", [])
        if not isinstance(actions, list):
            raise StorageError(f"actions must be a list, got {actions!r:.80}")
        for action in actions:
            if not isinstance(action, dict):
                raise StorageError(f"an action must be an object, got {action!r:.80}")
            self._check_names(action)

    def _check_names(self, entry: Mapping[str, Any]) -> None:
        trial_id, checkpoint = entry.get("trial_id"), entry.get("checkpoint")
        if not self._is_known(trial_id):
            if not is_one_name(trial_id):
                raise StorageError(f"trial_id must be one name, got {trial_id!r:.80}")
            self._trials.add(trial_id)
        if checkpoint is not None:
            CheckpointRecord.from_json(checkpoint)

    def _whole(self, name: str, number: int, content: S, read: Callable[[S], T]) -> T:
        """Return the result of `read` for a line; add the line's place to an error."""
        try:
            return read(content)
        except StorageError as error:
            raise StorageError(f"line {number} of {name} in {self.storage}: {error}") from error

    def _lines(
        self, epoch: int, sequences: list[int], *, is_cut: bool = False
    ) -> Iterator[tuple[str, int, bytes]]:
        """Yield segment, line number from 1, and line, for each whole line of an epoch.

        If a later epoch says where this one ends (`is_cut`), a segment may be missing behind that.
        """
        whole = next((at for at, one in enumerate(sequences) if at != one), len(sequences))
        last = segment_name(epoch, sequences[-1])
        if whole < len(sequences):
            if not is_cut:
                raise StorageError(
                    f"epoch {epoch} of the journal of {self.storage} lacks a segment: {sequences[:9]}. "
                    f"{HOW_TO_REPAIR}"
                )
            sequences = sequences[:whole]
        for names in self._ahead.batches([segment_name(epoch, number) for number in sequences]):
            with reading(f"{names[0]} and what follows", self.storage):
                contents = self._ahead.read(names)
            for name, content in zip(names, contents, strict=True):
                self._file_share = compression.share_of_lines(content)
                for number, line in enumerate(compression.lines(name, content), 1):
                    if line.endswith(b"\n"):
                        yield name, number, line
                    elif name != last:
                        raise StorageError(
                            f"line {number} of {name} in {self.storage} is torn. {HOW_TO_REPAIR}"
                        )


def check_journal_exists(storage: Storage, *, may_be_new: bool = False) -> None:
    """Refuse an experiment whose journal is gone.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    may_be_new : bool, default=False
        Accept an experiment without any trace of a trial: its driver may be about to begin.

    Raises
    ------
    StorageError
        If there is no segment of a journal.
    """
    if segments(storage):
        return
    traces = [name for name in _TRACES if storage.names(name)]
    if may_be_new and not traces:
        return
    rest = f", though it has {' and '.join(f'{name}/' for name in traces)}" if traces else ""
    raise StorageError(
        f"the experiment at {storage} has lost its journal: no file {DIRECTORY}/<epoch>-<number>.jsonl is "
        f"there{rest}. The results stand only in the journal. Put the directory {DIRECTORY}/ back from a "
        "copy. Without one, start a new experiment under another name; checkpoints below trials/ can still "
        "be loaded with Checkpoint(path)."
    )


def read_journal(storage: Storage, *, start: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal, in order.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    start : int, default=0
        Position of the first record to return.

    Raises
    ------
    StorageError
        As for :class:`JournalReader`.
    """
    return iter(JournalReader(storage, start=start))
