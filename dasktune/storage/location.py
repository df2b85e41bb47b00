"""Where an experiment lives: a URL of fsspec, with what is needed to open it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import fsspec
from fsspec.utils import get_protocol

from dasktune.errors import ConfigError, check
from dasktune.storage import filesystem

__all__ = ["Storage", "is_relative_name"]

_LOCAL: Final = ("file", "local")
_LOCAL_PREFIX: Final = re.compile(r"^(file|local):(//)?")
#: What stands between ``://`` and ``@`` of a URL may be a password.
_USER: Final = re.compile(r"://[^/@]*@")
#: fsspec takes names with these for patterns in some calls, which could then hit other files.
_MAGIC: Final = re.compile(r"[*?\[]")


def is_relative_name(name: object) -> bool:
    """Whether `name` stays below the directory that it is joined to.

    Examples
    --------
    >>> is_relative_name("trials/a"), is_relative_name("../a"), is_relative_name("/a")
    (True, False, False)
    """
    if not isinstance(name, str) or "\0" in name:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


@dataclass(frozen=True)
class Storage:
    """A directory on a disk or in an object store.

    A value: it can be compared, pickled and sent to workers; the connection is made where it is
    used. Local paths become absolute, so the working directory may change later.

    Parameters
    ----------
    url : str or path-like
        A local path (``~`` is the home directory) or a URL that fsspec knows, ``s3://bucket/x``.
    storage_options : mapping, optional
        Arguments of the fsspec filesystem, such as credentials. Never written anywhere and never
        shown.

    Raises
    ------
    ConfigError
        If the URL is empty, climbs with ``..``, or has a character that is a pattern to fsspec.

    Examples
    --------
    >>> storage = Storage("memory://runs", {"token": "secret"}).child("exp")
    >>> storage
    Storage('memory://runs/exp', storage_options={'token': '***'})
    >>> storage = Storage("memory://runs/exp")
    >>> storage.create("a.txt", b"1")
    >>> storage.read_bytes("a.txt")
    b'1'
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given: Any = os.fspath(self.url) if isinstance(self.url, os.PathLike) else self.url
        hint = "Give a local path or a URL such as 's3://bucket/folder'."
        filled = isinstance(given, str) and given.strip() != ""
        check(filled, "storage_path", "a non-empty path or URL", self.url, hint)
        options = self.storage_options
        check(isinstance(options, Mapping), "storage_options", "a mapping", type(options))
        object.__setattr__(self, "url", _normalised(given))
        object.__setattr__(self, "storage_options", dict(options))

    @property
    def is_local(self) -> bool:
        """Whether it is a path of a disk; other machines may see another one there."""
        return str(get_protocol(self.url)) in _LOCAL

    @property
    def is_process_private(self) -> bool:
        """Whether no other process can see what is written (``memory://``)."""
        return str(get_protocol(self.url)) == "memory"

    @property
    def fs(self) -> Any:
        """The fsspec filesystem, made on first use in each process.

        Raises
        ------
        ConfigError
            If the URL's protocol is not known, or needs a package that is not installed.
        """
        return self._opened()[0]

    def _opened(self) -> tuple[Any, str]:
        cached = self.__dict__.get("_cache")
        if cached is not None and cached[0] == os.getpid():
            opened: tuple[Any, str] = cached[1]
            return opened
        opened = self._open()
        # Connections of fsspec do not survive a fork, so the process is part of the key.
        self.__dict__["_cache"] = (os.getpid(), opened)
        return opened

    def _open(self) -> tuple[Any, str]:
        options = dict(self.storage_options)
        if not (self.is_local or self.is_process_private or "::" in self.url):
            # A cached listing hides what other machines wrote since.
            options.setdefault("use_listings_cache", False)
        try:
            fs, root = fsspec.core.url_to_fs(self.url, **options)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"storage_path must be a path or URL that fsspec can open here, got {str(self)!r}"
                f". {error}"
            ) from error
        return fs, str(root)

    def child(self, *parts: str) -> Storage:
        """Return the directory at `parts` below this one.

        Parameters
        ----------
        *parts : str
            Names, or relative paths with ``/``.

        Raises
        ------
        ConfigError
            If a part is empty, absolute or has ``..``, or has one of ``*?[`` in a remote URL.
        """
        name = _joined(parts)
        if not self.is_local:
            hint = "Remote stores take these characters for patterns."
            check(not _MAGIC.search(name), "name", "free of '*', '?' and '['", name, hint)
        child = Storage(f"{self.url.rstrip('/')}/{name}", self.storage_options)
        if "_cache" in self.__dict__:
            # Opening costs more than writing a small file, and there is one per checkpoint.
            process, (fs, root) = self.__dict__["_cache"]
            child.__dict__["_cache"] = (process, (fs, f"{root.rstrip('/')}/{name}"))
        return child

    def path(self, *parts: str) -> str:
        """Return the path of a file below, in the notation of :attr:`fs`.

        Raises
        ------
        ConfigError
            If a part is empty, absolute or has ``..``.
        """
        root = self._opened()[1]
        return f"{root.rstrip('/')}/{_joined(parts)}" if parts else root

    def read_bytes(self, *parts: str) -> bytes:
        """Return a whole file; FileNotFoundError if it is not there."""
        return filesystem.read_bytes(self.fs, self.path(*parts))

    def write_bytes(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a whole file, replacing what was there at once.

        Parameters
        ----------
        name : str
            Path below this directory.
        data : bytes
            The content.
        durable : bool, default=False
            Whether it must survive a power cut of a local machine.
        """
        filesystem.write_bytes(self.fs, self.path(name), data, durable=durable)

    def create(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a whole file that must not exist; of many writers exactly one succeeds.

        Parameters
        ----------
        name : str
            Path below this directory.
        data : bytes
            The content; never half visible.
        durable : bool, default=False
            Whether it must survive a power cut of a local machine.

        Raises
        ------
        FileExistsError
            If it is there already.
        """
        filesystem.create(self.fs, self.path(name), data, durable=durable)

    def claim(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Create a file whose content is unique to this writer, so that it may be tried again.

        A remote store can carry a write out and lose the answer; the retry then finds the file,
        and only its content tells whose it is.

        Parameters
        ----------
        name, data, durable
            As for :meth:`create`; `data` must hold something that no other writer would write.

        Raises
        ------
        FileExistsError
            If another writer's is there.
        """
        try:
            self.create(name, data, durable=durable)
        except FileExistsError:
            if self.is_local or self.read_bytes(name) != data:
                raise

    def exists(self, *parts: str) -> bool:
        """Whether a file (no directory) is there, asked of the file itself."""
        return filesystem.is_file(self.fs, self.path(*parts))

    def names(self, *parts: str) -> list[str]:
        """Return the sorted names of files and directories directly below `parts`."""
        return filesystem.names(self.fs, self.path(*parts))

    def find(self, *parts: str) -> list[str]:
        """Return the sorted paths of all files below `parts`, relative to it."""
        return filesystem.find(self.fs, self.path(*parts))

    def open_read(self, *parts: str) -> BinaryIO:
        """Open a file to be read in pieces."""
        return filesystem.open_read(self.fs, self.path(*parts))

    def remove(self, name: str) -> None:
        """Delete a file; it is no error if it is missing."""
        filesystem.remove(self.fs, self.path(name))

    def remove_tree(self, *parts: str) -> None:
        """Delete all that is below `parts`; it is no error if there is nothing."""
        filesystem.remove_tree(self.fs, self.path(*parts))

    def __hash__(self) -> int:
        return hash(self.url)

    def __reduce__(self) -> tuple[type[Storage], tuple[str, Mapping[str, Any]]]:
        return (Storage, (self.url, self.storage_options))

    def __str__(self) -> str:
        return _USER.sub("://***@", self.url)

    def __repr__(self) -> str:
        if not self.storage_options:
            return f"Storage({str(self)!r})"
        hidden = dict.fromkeys(self.storage_options, "***")
        return f"Storage({str(self)!r}, storage_options={hidden})"


def _joined(parts: tuple[str, ...]) -> str:
    for part in parts:
        hint = "Names must stay inside the experiment's directory."
        check(is_relative_name(part), "name", "a relative path without '..'", part, hint)
    return "/".join(parts)


def _normalised(url: str) -> str:
    if get_protocol(url) in _LOCAL:
        path = _LOCAL_PREFIX.sub("", url)
        return os.path.abspath(os.path.expanduser(path))
    head, _, tail = url.rpartition("://")
    tail = tail.rstrip("/")
    shown = _USER.sub("://***@", url)
    climbs = ".." in tail.split("/")
    check(not climbs, "storage_path", "a URL without '..'", shown)
    check(not _MAGIC.search(tail), "storage_path", "a URL without '*', '?' or '['", shown)
    return f"{head}://{tail}"
