"""The manifest of a checkpoint: the list of its files, whose existence commits the checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dasktune.errors import CheckpointDamaged, StorageError
from dasktune.storage.fs.format import FORMAT, check_format
from dasktune.storage.fs.storage import is_relative_name
from dasktune.storage.journal.strict_json import as_count, parse

#: Distinguishes a manifest from a user's file of that name.
_KIND: Final = "dasktune checkpoint"

_CRC32: Final = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and crc32 of one file; detects damage, not forgery."""

    size: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of a committed checkpoint, with their sizes and checksums.

    Examples
    --------
    >>> manifest = Manifest(
    ...     index=3, iteration=7, incarnation=2, writer="f00", files={"a": FileEntry(1, 99)}
    ... )
    >>> Manifest.decode(manifest.encode(), "here") == manifest
    True
    """

    #: Number of the checkpoint within the trial.
    index: int
    #: ``training_iteration`` of the result that the checkpoint belongs to.
    iteration: int
    #: Number of the trial's start that wrote it.
    incarnation: int
    #: Unique to the commit, so that a writer recognises its own manifest.
    writer: str
    #: ``{path below the checkpoint: entry}``
    files: Mapping[str, FileEntry]

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        files = {
            name: {"size": entry.size, "crc32": f"{entry.crc32:08x}"} for name, entry in self.files.items()
        }
        head = {
            "kind": _KIND,
            "format": FORMAT,
            "index": self.index,
            "iteration": self.iteration,
            "incarnation": self.incarnation,
            "writer": self.writer,
        }
        return json.dumps({**head, "files": files}).encode("ascii")

    @classmethod
    def decode(cls, data: bytes, place: str) -> Manifest:
        """Return the manifest in the content of a file.

        Parameters
        ----------
        data : bytes
            Content of the manifest's file.
        place : str
            The checkpoint, for the message.

        Raises
        ------
        CheckpointDamaged
            If it is not a manifest, or names a file outside the checkpoint.
        StorageError
            If it has another version.
        """
        try:
            content = parse(data)
            if content["kind"] != _KIND:
                raise ValueError("it is not a manifest of dasktune")
            version = content["format"]
        except _DAMAGE as error:
            raise _damaged(place, error) from error
        check_format(f"the checkpoint {place}", version)
        try:
            return cls(
                index=as_count(content["index"]),
                iteration=as_count(content["iteration"]),
                incarnation=as_count(content["incarnation"]),
                writer=_text(content["writer"]),
                files={name: _entry(name, item) for name, item in content["files"].items()},
            )
        except _DAMAGE as error:
            raise _damaged(place, error) from error

    @staticmethod
    def is_manifest(data: bytes) -> bool:
        """Whether `data` is a manifest of dasktune, of any version."""
        try:
            return bool(parse(data)["kind"] == _KIND)
        except (StorageError, KeyError, TypeError):
            return False


#: Exceptions raised by content that :meth:`Manifest.encode` has not written.
_DAMAGE: Final = (StorageError, ValueError, KeyError, TypeError, AttributeError)


def _damaged(place: str, error: Exception) -> CheckpointDamaged:
    return CheckpointDamaged(f"the manifest of checkpoint {place} is damaged: {error!r}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a string")
    return value


def _entry(name: str, item: Mapping[str, Any]) -> FileEntry:
    if not is_relative_name(name):
        raise ValueError(f"{name!r} is outside the checkpoint")
    if _CRC32.fullmatch(_text(item["crc32"])) is None:
        raise ValueError(f"{item['crc32']!r:.40} is not a crc32")
    return FileEntry(as_count(item["size"]), int(item["crc32"], 16))
