"""Snapshots of an experiment: its state at a place in the journal, so that less is replayed.

A snapshot is a shortcut and never the record: one that is missing, damaged or written by a driver
that had been given up costs only time. It is a head and a line for each trial, so that one of
thousands of trials does not hold up a driver that is busy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.storage.journal_reader import JournalReader
from dasktune.storage.json_lines import decode, encode
from dasktune.storage.location import Storage

__all__ = ["DIRECTORY", "Snapshot", "Snapshots"]

logger = logging.getLogger(__name__)

#: Version of the format.
FORMAT: Final = 1
#: Directory below the experiment's.
DIRECTORY: Final = "snapshots"
#: How many are kept: the newest may turn out to be damaged.
_KEPT: Final = 2

_NAME: Final = re.compile(r"([0-9]{6,9})-([0-9]{9,15})\.jsonl")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an experiment.

    Parameters
    ----------
    epoch : int
        Of the driver that wrote it.
    position : int
        Records of the journal that it stands for.
    state : dict
        What the experiment knew then, with a list of ``trials``.
    """

    epoch: int
    position: int
    state: dict[str, Any]


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
        """Write a snapshot, and delete those that are no longer needed.

        Parameters
        ----------
        snapshot : Snapshot
            Any values; the journal must be durable up to its position.

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
            "trials": len(trials),
            "state": rest,
        }
        content = b"".join(map(encode, (head, *trials)))
        self._storage.write_bytes(_path(snapshot.epoch, snapshot.position), content)
        for epoch, position in self._names()[_KEPT:]:
            self._storage.remove(_path(epoch, position))

    def newest_first(self) -> Iterator[Snapshot]:
        """Yield the snapshots that are part of the history, the newest first.

        What cannot be read is left out with a warning.
        """
        journal = JournalReader(self._storage)
        for epoch, position in self._names():
            if not journal.holds(epoch, position):
                continue
            try:
                yield self._read(epoch, position)
            except (StorageError, OSError) as error:
                logger.warning("a snapshot of %s cannot be read: %s", self._storage, error)

    def _names(self) -> list[tuple[int, int]]:
        matches = map(_NAME.fullmatch, self._storage.names(DIRECTORY))
        return sorted(((int(m[1]), int(m[2])) for m in matches if m), reverse=True)

    def _read(self, epoch: int, position: int) -> Snapshot:
        name = _path(epoch, position)
        lines = self._storage.read_bytes(name).splitlines()
        try:
            head, *trials = map(decode, lines)
            if head["format"] is True or head["format"] != FORMAT:
                raise StorageError(
                    f"{name} has format {head['format']!r}, and this dasktune reads {FORMAT}"
                )
            if (head["epoch"], head["position"], head["trials"]) != (epoch, position, len(trials)):
                raise StorageError(f"{name} is torn, or was written for another place")
            return Snapshot(epoch, position, {**head["state"], "trials": trials})
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{name} is no snapshot: {error!r}") from error


def _path(epoch: int, position: int) -> str:
    return f"{DIRECTORY}/{epoch:06d}-{position:09d}.jsonl"
