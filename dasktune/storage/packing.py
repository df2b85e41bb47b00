"""A checkpoint as one piece of memory."""

from __future__ import annotations

import json
import os
import struct
from typing import Final

from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.source import CheckpointSource, SourceFile, source_files

__all__ = ["pack", "unpack"]

#: Length of the names and sizes of the files, which come first.
_LENGTH: Final = struct.Struct("<Q")


def pack(source: CheckpointSource, limit: int) -> bytes | None:
    """Return all files of a checkpoint in one piece.

    Parameters
    ----------
    source : Checkpoint, path or mapping of str to bytes
        As for :meth:`CheckpointStore.commit`.
    limit : int
        Bytes that the files may have.

    Returns
    -------
    bytes or None
        What :func:`unpack` opens; None if they have more.

    Raises
    ------
    ConfigError
        If there is nothing to pack or it has what cannot be copied.
    OSError
        If it cannot be read.

    Examples
    --------
    >>> packed = pack({"weights": b"abc"}, 100)
    >>> with unpack(packed).as_directory() as directory:
    ...     print(open(f"{directory}/weights").read())
    abc
    >>> pack({"weights": b"abc"}, 2) is None
    True
    """
    files = source_files(source)
    # First: what is too large is not read in vain.
    if sum(_size(file) for file in files) > limit:
        return None
    contents = [_content(file) for file in files]
    if sum(map(len, contents)) > limit:
        return None
    sizes = [[file.name, len(content)] for file, content in zip(files, contents, strict=True)]
    head = json.dumps(sizes).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *contents))


def unpack(packed: bytes) -> Checkpoint:
    """Return the checkpoint in a local directory, which goes away with the returned object.

    Parameters
    ----------
    packed : bytes
        What :func:`pack` returned.

    Raises
    ------
    OSError
        If it cannot be written, for one because the disk is full.
    """
    checkpoint = Checkpoint.temporary()
    view = memoryview(packed)
    (length,) = _LENGTH.unpack_from(view)
    start = _LENGTH.size + length
    for name, size in json.loads(bytes(view[_LENGTH.size : start])):
        path = os.path.join(checkpoint.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(view[start : start + size])
        start += size
    return checkpoint


def _size(file: SourceFile) -> int:
    return 0 if file.path is None else os.path.getsize(file.path)


def _content(file: SourceFile) -> bytes:
    with file.open() as stream:
        return stream.read()
