"""Names and headers of the journal's segments.

The journal is a sequence of epochs, one for each driver that has led the experiment. An epoch is a
sequence of segments, ``<epoch>-<sequence>.jsonl``. The first line of an epoch is its header, which
states how much of an earlier epoch its driver had read. Records beyond that were written by a
superseded driver and are not part of the history.

A journal has an identity: a random id in the header of its first epoch, which later headers and the
snapshots repeat. So files of another journal are recognised, whatever their numbers are.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from dasktune.errors import StorageError
from dasktune.storage.fs.format import FORMAT, check_format
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.json_lines import decode
from dasktune.storage.journal.strict_json import as_count

#: Directory of the segments, below the experiment's.
DIRECTORY: Final = "journal"

#: Highest number of an epoch or a segment: enough for one a second for thirty years.
_MOST: Final = 999_999_999
#: A number as :func:`segment_name` writes it. With other digits or more zeros, two names could mean
#: the same segment.
_NUMBER: Final = r"([0-9]{6}|[1-9][0-9]{6,8})"
_SEGMENT: Final = re.compile(rf"{_NUMBER}-{_NUMBER}\.jsonl")
_KEY: Final = "$journal"


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """The position up to which the journal was read.

    Parameters
    ----------
    epoch : int
        The last epoch of the history; 0 if there is none.
    records : int
        Number of records of that epoch, without its header.
    size : int
        Bytes of that epoch, with its header.
    position : int
        Number of records of the whole history.
    journal : str
        The identity of the journal; empty if there is no epoch yet.
    """

    epoch: int = 0
    records: int = 0
    size: int = 0
    position: int = 0
    #: Not compared: the end that a header states has none.
    journal: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of an epoch."""

    epoch: int
    #: The end of the history before this epoch.
    after: JournalEnd
    #: The identity of the journal.
    journal: str = ""

    def encode(self) -> bytes:
        """Return the header as a line, unique to this call: a writer recognises its own header."""
        head = {"format": FORMAT, "epoch": self.epoch, "writer": uuid4().hex, "journal": self.journal}
        after = {
            "epoch": self.after.epoch,
            "records": self.after.records,
            "bytes": self.after.size,
            "position": self.after.position,
        }
        line = json.dumps({_KEY: {**head, "after": after}}, separators=(",", ":"))
        return line.encode("ascii") + b"\n"

    @classmethod
    def decode(cls, line: bytes, segment: str) -> Header:
        """Return the header in a line.

        Raises
        ------
        StorageError
            If it is not a header, or has another format.
        """
        try:
            content = decode(line)[_KEY]
            version, after = content["format"], content["after"]
        except _DAMAGE as error:
            raise _damaged(segment, error) from error
        check_format(f"the journal {segment}", version)
        try:
            epoch, records, size, position = (as_count(after[key]) for key in _AFTER)
            end = JournalEnd(epoch, records, size, position)
            return cls(epoch=as_count(content["epoch"]), after=end, journal=_as_id(content["journal"]))
        except _DAMAGE as error:
            raise _damaged(segment, error) from error


def _as_id(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_ID:
        raise ValueError(f"{value!r:.40} is not the id of a journal")
    return value


#: Number of characters of the longest id that is read; dasktune writes 32.
_LONGEST_ID: Final = 64

#: Keys of the end of the earlier history, in the order of :class:`JournalEnd`.
_AFTER: Final = ("epoch", "records", "bytes", "position")


#: Exceptions raised by content that :meth:`Header.encode` has not written.
_DAMAGE: Final = (StorageError, ValueError, KeyError, TypeError)


def _damaged(segment: str, error: Exception) -> StorageError:
    return StorageError(f"line 1 of {segment} is not a header of a journal: {error!r}")


def segment_name(epoch: int, sequence: int) -> str:
    """Return the path of a segment below the experiment.

    Examples
    --------
    >>> segment_name(2, 15)
    'journal/000002-000015.jsonl'
    """
    return f"{DIRECTORY}/{epoch:06d}-{sequence:06d}.jsonl"


def segments(storage: Storage) -> dict[int, list[int]]:
    """Return ``{epoch: sequence numbers}``, both ascending.

    Raises
    ------
    StorageError
        If the journal's directory cannot be listed.
    """
    found: dict[int, list[int]] = {}
    with reading(DIRECTORY, storage):
        names = storage.names(DIRECTORY)
    for name in names:
        match = _SEGMENT.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append(int(match[2]))
    return {epoch: sorted(found[epoch]) for epoch in sorted(found)}


def next_epoch(storage: Storage) -> int:
    """Return the number of the next epoch, from 1.

    Raises
    ------
    StorageError
        If the journal's directory cannot be listed, or there is no higher number.
    """
    epoch = max(segments(storage), default=0) + 1
    if epoch > _MOST:
        raise StorageError(
            f"the journal of {storage} has a segment of epoch {_MOST}, which no driver has "
            f"started. Remove it: {segment_name(_MOST, 0)}"
        )
    return epoch
