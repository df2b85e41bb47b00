"""Snapshots of an experiment: its state at a position of the journal, to replay less.

The journal has everything, a snapshot only saves time. A snapshot that is damaged, or was written
by a superseded driver, is skipped. It has a first line for the experiment and a line for each
trial, so that each trial is encoded alone and other threads can run in between.
"""

# A snapshot is written when the journal is durable up to its position. Both files may be in caches
# of the operating system, so a power cut can keep the snapshot and lose the last records: a reader
# must compare its position with the end of the journal. A snapshot of a superseded driver may come
# late, and may be the newest file: `newest_first` checks that its position is in the history. It
# also checks that the snapshot is of this journal, and not of one that stood there before.

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.storage.fs.format import FORMAT, check_format
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import JournalReader
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.storage.journal.segments import Header, JournalEnd

logger = logging.getLogger(__name__)

#: Directory of the snapshots, below the experiment's.
DIRECTORY: Final = "snapshots"
#: Number of snapshots that are kept, since the newest one may be damaged.
_KEPT: Final = 2

_NAME: Final = re.compile(r"([0-9]{6,9})-([0-9]{9,15})\.jsonl")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an experiment at a position of the journal.

    Parameters
    ----------
    epoch : int
        Epoch of the driver that wrote it.
    position : int
        Number of records of the journal that it includes.
    state : dict
        The experiment's state after these records, with a list of ``trials``.
    journal : str, default=""
        The identity of the journal.
    """

    epoch: int
    position: int
    state: dict[str, Any]
    journal: str = ""


class Snapshots:
    """Writes and reads the snapshots of one experiment.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Examples
    --------
    >>> snapshots = Snapshots(Storage("memory://doctest-snapshots"))
    >>> snapshots.write(Snapshot(1, 0, {"trials": []}))
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot, and delete all but the newest ones.

        Parameters
        ----------
        snapshot : Snapshot
            The snapshot; its state may have any values. The journal must be durable up to its
            position.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        rest = {name: value for name, value in snapshot.state.items() if name != "trials"}
        trials = snapshot.state["trials"]
        head = {
            "format": FORMAT,
            "epoch": snapshot.epoch,
            "position": snapshot.position,
            "journal": snapshot.journal,
            "trials": len(trials),
            "state": rest,
        }
        content = b"".join(map(encode, (head, *trials)))
        self._storage.write_bytes(_path(snapshot.epoch, snapshot.position), content)
        for epoch, position in self._names()[_KEPT:]:
            self._storage.remove(_path(epoch, position))

    def newest_first(self) -> Iterator[Snapshot]:
        """Yield the snapshots that are part of the history, the newest first.

        A snapshot that cannot be read is skipped with a warning.
        """
        names = self._names()
        chain = JournalReader(self._storage).chain() if names else []
        for epoch, position in names:
            if not _is_in(chain, epoch, position):
                continue
            try:
                snapshot = self._read(epoch, position)
                _check_identity(snapshot, chain[0][0])
            except (StorageError, OSError) as error:
                logger.warning("skipping a snapshot of %s: %s", self._storage, error)
            else:
                yield snapshot

    def _names(self) -> list[tuple[int, int]]:
        matches = map(_NAME.fullmatch, self._storage.names(DIRECTORY))
        return sorted(((int(m[1]), int(m[2])) for m in matches if m), reverse=True)

    def _read(self, epoch: int, position: int) -> Snapshot:
        name = _path(epoch, position)
        lines = self._storage.read_bytes(name).splitlines()
        try:
            head, *trials = map(decode, lines)
            check_format(name, head["format"])
            if (head["epoch"], head["position"], head["trials"]) != (epoch, position, len(trials)):
                raise StorageError(f"{name} is incomplete, or belongs to another position")
            return Snapshot(epoch, position, {**head["state"], "trials": trials}, head["journal"])
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{name} is not a snapshot: {error!r}") from error


def _is_in(chain: Sequence[tuple[Header, JournalEnd | None]], epoch: int, position: int) -> bool:
    """Whether a position in a driver's epoch is part of the history, as that driver counted it."""
    for header, limit in chain:
        if header.epoch == epoch:
            return header.after.position <= position and (limit is None or position <= limit.position)
    return False


def _check_identity(snapshot: Snapshot, first: Header) -> None:
    """Refuse a snapshot of another journal than the one that begins with `first`."""
    if snapshot.journal != first.journal:
        path = _path(snapshot.epoch, snapshot.position)
        raise StorageError(f"{path} belongs to another journal than the one in this directory")


def _path(epoch: int, position: int) -> str:
    return f"{DIRECTORY}/{epoch:06d}-{position:09d}.jsonl"
