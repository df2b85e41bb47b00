"""Names and headers of the journal's segments.

The journal is a row of epochs, one for each driver that ever led the experiment, and an epoch is a
row of segments, ``<epoch>-<sequence>.jsonl``. The first line of each epoch is a header that states
how much of the preceding epoch its driver had read. Whatever stands beyond that was written by a
driver that had been given up, and is no part of the history.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from dasktune.errors import StorageError
from dasktune.storage.location import Storage

__all__ = ["DIRECTORY", "FORMAT", "Header", "JournalEnd", "next_epoch", "segment_name", "segments"]

#: Version of the journal's format.
FORMAT: Final = 1
#: Directory of the segments, below the experiment's.
DIRECTORY: Final = "journal"

_SEGMENT: Final = re.compile(r"(\d{6,})-(\d{6,})\.jsonl")
_KEY: Final = "$journal"


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """Where a reader of the journal came to its end.

    Parameters
    ----------
    epoch : int
        The last epoch of the history; 0 if there is none.
    records : int
        Records of that epoch, without its header.
    size : int
        Bytes of that epoch, with its header.
    position : int
        Records of the whole journal.
    """

    epoch: int = 0
    records: int = 0
    size: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of an epoch."""

    epoch: int
    #: How much of the history before this epoch counts.
    after: JournalEnd

    def encode(self) -> bytes:
        """Return it as a line; no two calls give the same, so that a writer knows its own."""
        head = {"format": FORMAT, "epoch": self.epoch, "writer": uuid4().hex}
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
        """Make it from what :meth:`encode` gave.

        Raises
        ------
        StorageError
            If it is no header, or one of another format.
        """
        try:
            content: dict[str, Any] = json.loads(line)[_KEY]
            version = content["format"]
            if version != FORMAT:
                raise StorageError(
                    f"the journal {segment} has format {version!r}, and this dasktune reads format "
                    f"{FORMAT}. Use the version of dasktune that wrote it."
                )
            after = content["after"]
            end = JournalEnd(after["epoch"], after["records"], after["bytes"], after["position"])
            return cls(epoch=content["epoch"], after=end)
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"line 1 of {segment} is no header of a journal: {error!r}"
            ) from error


def segment_name(epoch: int, sequence: int) -> str:
    """Return the path of a segment below the experiment.

    Examples
    --------
    >>> segment_name(2, 15)
    'journal/000002-000015.jsonl'
    """
    return f"{DIRECTORY}/{epoch:06d}-{sequence:06d}.jsonl"


def segments(storage: Storage) -> dict[int, list[int]]:
    """Return ``{epoch: sequence numbers}``, both ascending."""
    found: dict[int, list[int]] = {}
    for name in storage.names(DIRECTORY):
        match = _SEGMENT.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append(int(match[2]))
    return {epoch: sorted(found[epoch]) for epoch in sorted(found)}


def next_epoch(storage: Storage) -> int:
    """Return the number that the next driver's epoch gets, from 1."""
    return max(segments(storage), default=0) + 1
