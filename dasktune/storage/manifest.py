"""The manifest of a checkpoint: what belongs to it, and with it, that it exists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.storage.location import is_relative_name

__all__ = ["FORMAT", "FileEntry", "Manifest"]

#: Version of the manifest's format.
FORMAT: Final = 1

#: Tells our manifests from a user's file of that name.
_KIND: Final = "dasktune checkpoint"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and crc32 of one file; guards against accidents, not against attackers."""

    size: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a committed checkpoint consists of.

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
    #: ``training_iteration`` that it belongs to.
    iteration: int
    #: Which start of the trial wrote it.
    incarnation: int
    #: Unique to the commit, so that a writer knows its own manifest.
    writer: str
    #: ``{path below the checkpoint: entry}``
    files: Mapping[str, FileEntry]

    def encode(self) -> bytes:
        """Return it as JSON."""
        files = {
            name: {"size": entry.size, "crc32": f"{entry.crc32:08x}"}
            for name, entry in self.files.items()
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
        """Make it from what :meth:`encode` gave.

        Parameters
        ----------
        data : bytes
            Content of the manifest's file.
        place : str
            Where it lies, for the message.

        Raises
        ------
        StorageError
            If it is no manifest, is of another version, or names a file outside the checkpoint.
        """
        try:
            content = json.loads(data)
            version = content["format"]
            if version != FORMAT:
                raise StorageError(
                    f"the checkpoint {place} has format {version!r}, and this dasktune reads "
                    f"format {FORMAT}. Use the version of dasktune that wrote it."
                )
            return cls(
                index=int(content["index"]),
                iteration=int(content["iteration"]),
                incarnation=int(content["incarnation"]),
                writer=str(content["writer"]),
                files={name: _entry(name, item) for name, item in content["files"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"the manifest of checkpoint {place} is damaged: {error!r}"
            ) from error

    @staticmethod
    def looks_ours(data: bytes) -> bool:
        """Whether `data` is a manifest of dasktune, of any version."""
        try:
            return bool(json.loads(data)["kind"] == _KIND)
        except (ValueError, KeyError, TypeError):
            return False


def _entry(name: str, item: Mapping[str, Any]) -> FileEntry:
    if not is_relative_name(name):
        raise ValueError(f"{name!r} leads out of the checkpoint")
    return FileEntry(int(item["size"]), int(item["crc32"], 16))
