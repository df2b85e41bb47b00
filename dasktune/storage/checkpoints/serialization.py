"""Converts a checkpoint to one bytes object and back, for checkpoints in memory."""

from __future__ import annotations

import json
import os
import struct
from typing import Final

from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.source_files import CheckpointSource, SourceFile, source_files

#: Format of the header's length; the header has the names and sizes of the files.
_LENGTH: Final = struct.Struct("<Q")


def to_bytes(source: CheckpointSource, limit: int) -> bytes | None:
    """Return all files of a checkpoint as one bytes object.

    Parameters
    ----------
    source : Checkpoint, path or mapping of str to bytes
        As for :meth:`CheckpointStore.commit`.
    limit : int
        Largest total size of the files in bytes.

    Returns
    -------
    bytes or None
        The input of :func:`from_bytes`; None if the files are larger than `limit`.

    Raises
    ------
    ConfigError
        If there are no files, or something that cannot be copied.
    OSError
        If a file cannot be read.

    Examples
    --------
    >>> packed = to_bytes({"weights": b"abc"}, 100)
    >>> with from_bytes(packed).as_directory() as directory:
    ...     print(open(f"{directory}/weights").read())
    abc
    >>> to_bytes({"weights": b"abc"}, 2) is None
    True
    """
    files = source_files(source)
    # First the sizes, so that files that are too large are not read.
    if sum(_size(file) for file in files) > limit:
        return None
    contents = [_content(file) for file in files]
    if sum(map(len, contents)) > limit:
        return None
    sizes = [[file.name, len(content)] for file, content in zip(files, contents, strict=True)]
    head = json.dumps(sizes).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *contents))


def from_bytes(packed: bytes) -> Checkpoint:
    """Return the checkpoint in a local directory, which is deleted with the returned object.

    Parameters
    ----------
    packed : bytes
        The result of :func:`to_bytes`.

    Raises
    ------
    OSError
        If a file cannot be written, for example because the disk is full.
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
