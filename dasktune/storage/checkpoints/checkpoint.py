"""The class `Checkpoint`, a directory of files on any filesystem of fsspec."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final

import cloudpickle
import fsspec

from dasktune.errors import ConfigError, StorageError, check, without_passwords
from dasktune.storage.fs import filesystem, temp_dirs
from dasktune.storage.fs.redaction import redact_errors
from dasktune.storage.fs.storage import Storage
from dasktune.storage.fs.unpickling import loads

#: File with the metadata of :meth:`Checkpoint.set_metadata`.
METADATA_FILE: Final = ".metadata.json"
#: File with the dict of :meth:`Checkpoint.from_dict`.
DICT_FILE: Final = "_dict_checkpoint.pkl"
#: Files that dasktune adds to a committed checkpoint; they are not part of its content.
INTERNAL_FILES: Final = frozenset({".manifest.json", ".dasktune-writer"})


def dict_files(data: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a checkpoint with `data`, without writing them."""
    return {DICT_FILE: cloudpickle.dumps(dict(data))}


class Checkpoint:
    """A directory of files from which a trial can resume.

    Parameters
    ----------
    path : str or path-like
        The directory: a local path, or a URL of fsspec.
    filesystem : fsspec filesystem, optional
        The filesystem of `path`, if `path` is in the filesystem's own notation.

    Examples
    --------
    >>> checkpoint = Checkpoint.from_dict({"epoch": 3})
    >>> checkpoint.to_dict()
    {'epoch': 3}
    >>> with checkpoint.as_directory() as directory:
    ...     os.listdir(directory)
    ['_dict_checkpoint.pkl']
    """

    #: The directory, in the notation of `filesystem`.
    path: str
    #: A filesystem of fsspec.
    filesystem: Any

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        given: object = path
        named = isinstance(given, str | os.PathLike) and str(given) != ""
        check(named, "path", "a non-empty path", path, "Give the checkpoint's directory.")
        if filesystem is None:
            storage = Storage(os.fspath(path))
            filesystem, self.path = storage.fs, storage.path()
        else:
            self.path = os.fspath(path).rstrip("/") or "/"
        self.filesystem = filesystem

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return the checkpoint in a local directory; nothing is copied.

        Parameters
        ----------
        path : str or path-like
            The directory. It must stay until the checkpoint has been reported.

        Raises
        ------
        ConfigError
            If there is no such directory.
        """
        checkpoint = cls(path)
        local = filesystem.is_local(checkpoint.filesystem)
        check(local, "path", "a local directory", path, "Use Checkpoint(url) for a remote one.")
        _check_directory(checkpoint.path)
        return checkpoint

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint with `data`, pickled into one file.

        The file is in a temporary directory, which is deleted with the checkpoint object.

        Parameters
        ----------
        data : mapping
            Any values that cloudpickle can pickle.
        """
        checkpoint = cls.temporary()
        for name, content in dict_files(data).items():
            filesystem.write_bytes(checkpoint.filesystem, f"{checkpoint.path}/{name}", content)
        return checkpoint

    @classmethod
    def temporary(cls) -> Checkpoint:
        """Return an empty checkpoint in a local directory, which is deleted with the object."""
        checkpoint = cls(temp_dirs.make_directory())
        weakref.finalize(checkpoint, temp_dirs.remove_own, os.getpid(), checkpoint.path)
        return checkpoint

    @redact_errors
    def to_dict(self) -> dict[str, Any]:
        """Return the dict that was given to :meth:`from_dict`.

        Raises
        ------
        ConfigError
            If the checkpoint was not made from a dict.
        """
        try:
            with filesystem.open_read(self.filesystem, f"{self.path}/{DICT_FILE}") as stream:
                content = stream.read()
        except FileNotFoundError:
            raise ConfigError(
                f"checkpoint must be made by Checkpoint.from_dict, got {self!r} without "
                f"{DICT_FILE}. Read its files with as_directory()."
            ) from None
        data: dict[str, Any] = loads(content)
        return data

    @redact_errors
    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to a local directory and return its path.

        Parameters
        ----------
        path : str or path-like, optional
            The target. By default a new temporary directory, which the caller deletes.

        Raises
        ------
        ConfigError
            If the checkpoint's directory is missing.
        """
        names = [name for name in self._files() if name not in INTERNAL_FILES]
        if path is None:
            target = tempfile.mkdtemp(prefix="checkpoint-")
        else:
            target = os.path.abspath(os.path.expanduser(os.fspath(path)))
        os.makedirs(target, exist_ok=True)
        filesystem.run_each(self.filesystem, lambda name: self._copy(name, target), names)
        return target

    def _files(self) -> list[str]:
        if filesystem.is_local(self.filesystem):
            _check_directory(self.path)
            return filesystem.find(self.filesystem, self.path)
        names = filesystem.find(self.filesystem, self.path)
        # An object store has no empty directories: without files there is no checkpoint.
        hint = "It may have been deleted by num_to_keep."
        check(names != [], "checkpoint", "a directory with files", self.path, hint)
        return names

    def _copy(self, name: str, target: str) -> None:
        local = fsspec.filesystem("file")
        source = filesystem.open_read(self.filesystem, f"{self.path}/{name}")
        with source, filesystem.open_write(local, os.path.join(target, name)) as copy:
            shutil.copyfileobj(source, copy)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Provide the files as a local directory inside the ``with`` block.

        A local checkpoint is not copied: do not change its files. A remote one is copied, and the
        copy is deleted at the end of the block.

        Raises
        ------
        ConfigError
            If the checkpoint's directory is missing.
        """
        if filesystem.is_local(self.filesystem):
            _check_directory(self.path)
            yield self.path
            return
        process, directory = os.getpid(), self.to_directory()
        try:
            yield directory
        finally:
            temp_dirs.remove_own(process, directory)

    @redact_errors
    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata, an empty dict if none was set.

        Raises
        ------
        StorageError
            If its file is damaged.
        """
        try:
            content = filesystem.read_bytes(self.filesystem, f"{self.path}/{METADATA_FILE}")
        except FileNotFoundError:
            return {}
        try:
            metadata: object = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise StorageError(f"{METADATA_FILE} of {self!r} is damaged: {error}") from error
        if not isinstance(metadata, dict):
            raise StorageError(f"{METADATA_FILE} of {self!r} is damaged: it is not a JSON object")
        return metadata

    @redact_errors
    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata.

        Parameters
        ----------
        metadata : mapping
            Values that JSON can represent.

        Raises
        ------
        ConfigError
            If a value cannot be written as JSON.
        """
        try:
            content = json.dumps(dict(metadata)).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"metadata must be values of JSON, got {metadata!r}") from error
        filesystem.write_bytes(self.filesystem, f"{self.path}/{METADATA_FILE}", content)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to the metadata; equal keys are replaced.

        Parameters
        ----------
        metadata : mapping
            Values that JSON can represent.
        """
        self.set_metadata({**self.get_metadata(), **metadata})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return (self.path, self.filesystem) == (other.path, other.filesystem)

    def __hash__(self) -> int:
        return hash(self.path)

    def __reduce__(self) -> tuple[type[Checkpoint], tuple[str, Any]]:
        return (Checkpoint, (self.path, self.filesystem))

    def __repr__(self) -> str:
        kind = type(self.filesystem).__name__
        # In some notations the path starts with the host of the URL, and so with its password.
        path = without_passwords(f"://{self.path}").removeprefix("://")
        return f"Checkpoint(path={path!r}, filesystem={kind})"


def _check_directory(path: str) -> None:
    hint = "Write the files first, and keep the directory until report() has returned."
    check(os.path.isdir(path), "checkpoint", "an existing directory", path, hint)
