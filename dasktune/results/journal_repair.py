"""Find what is damaged in a journal, and restore the last good state.

The journal is read line by line, without running any of the user's code. A line that repeats the
line before it is left out. At any other damage, such as a missing line, the good history ends.

A repair changes no existing file. It begins a new epoch of the journal, whose header says where the
good history ends, and copies into it what follows a repeated line. So the damaged original stays in
its place, and readers skip it as they skip the records of a superseded driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dasktune.errors import StorageError, check
from dasktune.results.journal_trials import apply_records
from dasktune.storage.checkpoints.checkpoint_store import MANIFEST_FILE
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal import compression
from dasktune.storage.journal.columnar import count_rows
from dasktune.storage.journal.journal_reader import (
    HOW_TO_REPAIR,
    JournalReader,
    check_journal_exists,
)
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.journal.segments import JournalEnd, next_epoch, segment_name, segments
from dasktune.storage.journal.snapshots import Snapshots
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.trial.status import PUBLIC
from dasktune.trial.trial import Trial


@dataclass(slots=True)
class JournalDiagnosis:
    """What :func:`diagnose_journal` has found.

    Attributes
    ----------
    damages : list of str
        Each damage with its place; empty if the journal is in order.
    end : JournalEnd
        The position up to which the journal is good as it stands.
    saved : list of dict
        Good records behind the first repeated line, to be copied.
    total : int
        Number of records in the files, good or not.
    trials : dict of str to Trial
        The trials in the good state.
    lost_checkpoints : list of str
        Unfinished trials of the good state whose checkpoint was deleted later.
    snapshot : int
        Number of records in the newest snapshot of the journal as it stands; 0 if there is none.
    """

    damages: list[str] = field(default_factory=list)
    end: JournalEnd = field(default_factory=JournalEnd)
    saved: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    trials: dict[str, Trial] = field(default_factory=dict)
    lost_checkpoints: list[str] = field(default_factory=list)
    snapshot: int = 0

    @property
    def kept(self) -> int:
        """Number of records of the good state."""
        return self.end.position + len(self.saved)


def diagnose_journal(storage: Storage, *, keep: int | None = None) -> JournalDiagnosis:
    """Read the whole journal of an experiment, and find its damages.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    keep : int, optional
        Treat what follows this number of records as damaged. Records that share a line with the
        next one are dropped, too.

    Raises
    ------
    ConfigError
        If `keep` is negative.
    StorageError
        If there is no journal, or nothing of it can be read.
    """
    check(keep is None or keep >= 0, "keep", "a number of records, at least 0", keep)
    check_journal_exists(storage)
    found = JournalDiagnosis()
    reader = _readable(storage, found.damages)
    found.total = reader.count_all()
    try:
        for number, record in enumerate(reader, 1):
            if keep is not None and number > keep:
                found.damages.append(f"{reader.place}: you want no record behind {keep}")
                break
            try:
                _apply(found.trials, record)
            except StorageError as error:
                found.damages.append(f"{reader.place}: {error}")
                break
            if reader.first_repeat is not None:
                found.saved.append(record)
    except StorageError as error:
        found.damages.append(_without_advice(error))
    found.damages += reader.repeats
    found.end = reader.good if reader.first_repeat is None else reader.first_repeat
    found.lost_checkpoints = [
        one.trial_id
        for one in found.trials.values()
        if one.checkpoint is not None
        and not one.status.is_final
        and not storage.exists(one.checkpoint.path, MANIFEST_FILE)
    ]
    with suppress(StorageError):  # the newest header is damaged, so no snapshot can be used
        found.snapshot = max((one.position for one in Snapshots(storage).newest_first()), default=0)
    return found


def repair_journal(storage: Storage, *, keep: int | None = None) -> JournalDiagnosis:
    """Restore the last good state of a damaged journal; the damaged files stay as they are.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    keep : int, optional
        As for :func:`diagnose_journal`.

    Returns
    -------
    JournalDiagnosis
        What was damaged. Nothing was written if nothing was.

    Raises
    ------
    StorageError
        If a driver leads the experiment, or nothing can be restored.
    """
    with LeaderLock(storage):
        found = diagnose_journal(storage, keep=keep)
        if found.damages:
            writer = JournalWriter(storage, next_epoch(storage), after=found.end, cuts=True)
            for record in found.saved:
                writer.append(record)
            writer.close()
    return found


def _readable(storage: Storage, damages: list[str]) -> _TolerantReader:
    """Return a reader of the newest epochs whose headers can be read; note the damaged headers."""
    ignored: set[int] = set()
    while left := segments(storage).keys() - ignored:
        reader = _TolerantReader(storage, ignored)
        try:
            reader.chain()
        except StorageError as error:
            damages.append(_without_advice(error))
            ignored.add(max(left))
        else:
            return reader
    raise StorageError(
        f"nothing of the journal of {storage} can be restored: {'; '.join(damages)}. "
        "Put the directory journal/ back from a copy."
    )


def _without_advice(error: StorageError) -> str:
    return str(error).removesuffix(f". {HOW_TO_REPAIR}")


def _apply(trials: dict[str, Trial], record: Mapping[str, Any]) -> None:
    """Apply a record, and refuse one that the records before it cannot have led to.

    Each record of a trial states the public status that the trial had afterwards.
    """
    key, event = record.get("trial_id"), record.get("event")
    is_new = event in ("Suggested", "TrialAddRequested")
    if is_new and key in trials:
        raise StorageError(f"a second trial {key} is added: a line is repeated")
    for action in record.get("actions", ()):
        named = action.get("trial_id", key)
        if named not in trials and not (is_new and named == key):
            raise StorageError(f"trial {named!r:.40} was never added: a line is missing")
    apply_records(trials, [record])
    status = record.get("status")
    if status is None:
        return
    trial = trials.get(key) if isinstance(key, str) else None
    if trial is None:
        raise StorageError(f"trial {key!r:.40} was never added: a line is missing")
    if PUBLIC[trial.status].value != status:
        raise StorageError(
            f"after {event} trial {key} is {PUBLIC[trial.status].value}, and the record says {status}: "
            "a line is missing or repeated"
        )


class _TolerantReader(JournalReader):
    """Leaves out repeated lines, and knows where the last good line ends."""

    def __init__(self, storage: Storage, ignored: set[int]) -> None:
        super().__init__(storage)
        self._ignored = ignored
        #: The place of the current line.
        self.place = ""
        #: The end of the last line whose records were all accepted.
        self.good = JournalEnd()
        #: The end of the history before the first repeated line.
        self.first_repeat: JournalEnd | None = None
        self.repeats: list[str] = []

    def _segments(self) -> dict[int, list[int]]:
        found = super()._segments()
        return {epoch: numbers for epoch, numbers in found.items() if epoch not in self._ignored}

    def count_all(self) -> int:
        """Return the number of records in the files of the history's epochs, damaged or not."""
        found, count = self._segments(), 0
        for epoch in (header.epoch for header, _ in self.chain()):
            for name in (segment_name(epoch, number) for number in found[epoch]):
                with reading(name, self.storage):
                    content = self.storage.read_bytes(name)
                # Lines behind damage in a compressed segment cannot be read, and are not counted.
                with suppress(StorageError):
                    for line in compression.lines(name, content):
                        count += _rows_in(line)
            count -= 1  # the header
        return count

    def _lines(
        self, epoch: int, sequences: list[int], *, is_cut: bool = False
    ) -> Iterator[tuple[str, int, bytes]]:
        before = b""
        for name, number, line in super()._lines(epoch, sequences, is_cut=is_cut):
            if line != before:
                yield name, number, line
            else:
                self.repeats.append(f"line {number} of {name} repeats the line before it")
                if self.first_repeat is None:
                    self.first_repeat = self.end
            before = line

    def _records_of(self, name: str, number: int, line: bytes) -> Iterator[dict[str, Any]]:
        self.good, self.place = self.end, f"line {number} of {name}"
        yield from super()._records_of(name, number, line)
        self.good = self.end


def _rows_in(line: bytes) -> int:
    try:
        return count_rows(line)
    except StorageError:
        return 1
