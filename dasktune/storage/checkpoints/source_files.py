"""The files of which a checkpoint is made: a local or remote directory, or files in memory."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from dasktune.errors import ConfigError, StorageError, check
from dasktune.storage.checkpoints.checkpoint import INTERNAL_FILES, Checkpoint
from dasktune.storage.checkpoints.manifest import Manifest
from dasktune.storage.fs import filesystem, local_files
from dasktune.storage.fs.storage import is_relative_name

#: A checkpoint, the path of a local directory, or ``{relative name: content}``.
CheckpointSource = Checkpoint | str | os.PathLike[str] | Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a checkpoint before its commit."""

    #: Path below the checkpoint, with ``/``.
    name: str
    open: Callable[[], BinaryIO]
    #: Path of the file, if it is on a disk of this machine.
    path: str | None = None

    def copy_to(self, directory: str) -> None:
        """Copy the file below a local directory, under its name."""
        target = os.path.join(directory, self.name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if self.path is not None:
            # Copied within the kernel, if the system can do that.
            shutil.copyfile(self.path, target)
            return
        with self.open() as source, open(target, "wb") as copy:
            shutil.copyfileobj(source, copy)


def local_copy(source: CheckpointSource) -> Checkpoint:
    """Return a temporary local copy of `source`, which is deleted with the returned object.

    Raises
    ------
    ConfigError
        As for :func:`source_files`.
    OSError
        If a file cannot be copied, for example because the disk is full.
    """
    copy = Checkpoint.temporary()
    for file in source_files(source):
        file.copy_to(copy.path)
    return copy


def is_self_contained(directory: str) -> bool:
    """Whether a local directory has no symbolic or hard links.

    User code may keep writing to a linked file through its other name.
    """
    return all(
        entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink == 1
        for _, entry in local_files.relative_files(directory)
    )


def source_files(source: CheckpointSource) -> list[SourceFile]:
    """Return the files of `source`, sorted by name.

    For a symbolic link to a file, the content of that file is used. Empty directories are left out,
    since an object store has none. Files that dasktune added to a committed checkpoint are left
    out, too, so that a checkpoint can be reported again.

    Raises
    ------
    ConfigError
        If the directory is missing, has a link to a directory (which might lead anywhere, or in a
        circle), a broken link or a pipe, or a file of the reserved name ``.manifest.json``.
    """
    if isinstance(source, Mapping):
        files = [_in_memory(name, content) for name, content in source.items()]
    elif isinstance(source, Checkpoint) and not filesystem.is_local(source.filesystem):
        files = _remote_files(source)
    else:
        path = source.path if isinstance(source, Checkpoint) else os.fspath(source)
        files = _local_files(Checkpoint.from_directory(path).path)
    for file in files:
        # Only names that can be loaded again, on any storage.
        check(is_relative_name(file.name), "checkpoint", "files with relative names", file.name)
    return sorted(_without_internal(files), key=lambda file: file.name)


def chosen_files(source: CheckpointSource, names: Collection[str]) -> list[SourceFile]:
    """Return some files of `source`, sorted by name.

    Parameters
    ----------
    source : Checkpoint, path or mapping of str to bytes
        As for :func:`source_files`, as are the exceptions.
    names : collection of str
        The files.

    Raises
    ------
    StorageError
        If a file of these names is missing.
    """
    files = [file for file in source_files(source) if file.name in names]
    missing = set(names) - {file.name for file in files}
    if missing:
        raise StorageError(
            f"files of a checkpoint must stay until report() returns, got none named {sorted(missing)}"
        )
    return files


def _in_memory(name: str, content: bytes) -> SourceFile:
    return SourceFile(name, lambda: io.BytesIO(content))


def _remote_files(source: Checkpoint) -> list[SourceFile]:
    fs, root = source.filesystem, source.path
    names = filesystem.find(fs, root)
    hint = "It may have been deleted."
    check(names != [], "checkpoint", "a directory with files", root, hint)
    return [SourceFile(name, _opener(fs, f"{root}/{name}")) for name in names]


def _opener(fs: Any, path: str) -> Callable[[], BinaryIO]:
    return lambda: filesystem.open_read(fs, path)


def _local_files(root: str) -> list[SourceFile]:
    files = []
    for name, entry in local_files.relative_files(root):
        if not entry.is_file():
            raise ConfigError(
                f"checkpoint must be plain files and links to files, got {name!r} in {root}. "
                "Copy the directory behind a link; remove pipes and broken links."
            )
        files.append(SourceFile(name, _local_opener(entry.path), entry.path))
    return files


def _local_opener(path: str) -> Callable[[], BinaryIO]:
    return lambda: open(path, "rb", buffering=0)


def _without_internal(files: list[SourceFile]) -> list[SourceFile]:
    kept = []
    for file in files:
        if file.name not in INTERNAL_FILES:
            kept.append(file)
        elif file.name == ".manifest.json":
            with file.open() as stream:
                is_ours = Manifest.is_manifest(stream.read())
            hint = "dasktune writes a file of that name: rename yours."
            check(is_ours, "checkpoint", "free of a file '.manifest.json'", file.name, hint)
    return kept
