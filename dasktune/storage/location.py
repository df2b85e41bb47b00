"""Where an experiment lives: a URL of fsspec, with what is needed to open it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar

import fsspec
from fsspec.utils import get_protocol

from dasktune.errors import ConfigError, StorageError, check, without_passwords
from dasktune.storage import filesystem, local_files, retry
from dasktune.storage.masking import mask_errors, masked, secrets_of

__all__ = ["Storage", "is_relative_name"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_LOCAL: Final = ("file", "local")
_LOCAL_PREFIX: Final = re.compile(r"^(file|local):(//)?")
#: fsspec takes names with these for patterns in some calls, which could then hit other files.
_MAGIC: Final = re.compile(r"[*?\[]")


def is_relative_name(name: object) -> bool:
    """Whether `name` stays below the directory that it is joined to.

    Examples
    --------
    >>> is_relative_name("trials/a"), is_relative_name("../a"), is_relative_name("/a")
    (True, False, False)
    """
    # A backslash parts names on other systems, and what is no text has no name in a store.
    if not isinstance(name, str) or "\0" in name or "\\" in name:
        return False
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _confined(method: F) -> F:
    """Let a method that is given names first look where they lead."""

    @functools.wraps(method)
    def call(self: Storage, *args: Any, **kwargs: Any) -> Any:
        if self.is_local:
            self.inside(*[name for name in args if isinstance(name, str)])
        return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


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
    patience : float, default=0.0
        Seconds for which an operation that fails is tried again, unless the storage's answer says
        that it never will succeed. It is no part of the value.
    wanted : callable, optional
        Says, between two attempts, whether the outcome is still of interest. It is no part of the
        value and does not travel.

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
    patience: float = field(default=0.0, compare=False)
    wanted: Callable[[], bool] | None = field(default=None, compare=False)

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

    @mask_errors
    def _open(self) -> tuple[Any, str]:
        # A client may change what it is given, and this is a value.
        options: dict[str, Any] = _copied(self.storage_options)
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

    def patient(self, seconds: float, wanted: Callable[[], bool] | None = None) -> Storage:
        """Return the same directory with another patience.

        Parameters
        ----------
        seconds : float
            How long an operation that fails is tried again.
        wanted : callable, optional
            Says, between two attempts, whether the outcome is still of interest.
        """
        other = Storage(self.url, self.storage_options, seconds, wanted)
        if "_cache" in self.__dict__:
            other.__dict__["_cache"] = self.__dict__["_cache"]
        other.__dict__["_top"] = self.__dict__.get("_top", self.url)
        return other

    def keep_trying(self, attempt: Callable[[], T], what: str) -> T:
        """Call `attempt`, and again for as long as there is patience and hope.

        Parameters
        ----------
        attempt : callable
            Something that uses this storage and may be done twice.
        what : str
            What it does, for the log: "Writing x".

        Raises
        ------
        StorageError
            If it went on failing until the patience was over.
        Exception
            What the last attempt raised, if there was no patience, no hope or no interest.
        """
        what = f"{what} of {self}"
        try:
            return retry.keep_trying(
                attempt, self.patience, what=what, explain=self.explain, wanted=self.wanted
            )
        except Exception as error:  # each store's client has its own exceptions
            unwanted = self.wanted is not None and not self.wanted()
            if not self.patience or unwanted or not retry.is_passing(error):
                raise
            raise StorageError(
                f"{what} failed with {self.explain(error)}, and went on failing for "
                f"{self.patience:g} s. Mend the storage, or be more patient with it by "
                "RunConfig(storage_patience=...)."
            ) from error

    def explain(self, error: Exception) -> str:
        """Return the text of an exception without what may be a secret of `storage_options`."""
        return masked(repr(error), secrets_of(self.storage_options))

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
        url = f"{self.url.rstrip('/')}/{name}"
        child = Storage(url, self.storage_options, self.patience, self.wanted)
        child.__dict__["_top"] = self.__dict__.get("_top", self.url)
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

    def inside(self, *parts: str) -> str:
        """Return :meth:`path` if it cannot lead out of this directory.

        Links on the way to the directory that the user named are the user's own; dasktune makes
        none below it.

        Raises
        ------
        ConfigError
            If a part is empty, absolute or has ``..``.
        StorageError
            If on a disk a link, a pipe or a device stands there or on the way.
        """
        path = self.path(*parts)
        if self.is_local:
            local_files.check_plain(self.__dict__.get("_top", self.url), path)
        return path

    @mask_errors
    @_confined
    def read_bytes(self, *parts: str) -> bytes:
        """Return a whole file; FileNotFoundError if it is not there."""
        return self._retried(filesystem.read_bytes, "Reading", *parts)

    @mask_errors
    @_confined
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
        write = partial(filesystem.write_bytes, data=data, durable=durable)
        self._retried(write, "Writing", name)

    @mask_errors
    @_confined
    def create(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a whole file that must not exist; of many writers exactly one succeeds.

        It is tried once: after a failure it may be there, and nobody can tell whose it is.

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

        def claim(fs: Any, path: str) -> None:
            try:
                self.create(name, data, durable=durable)
            except FileExistsError:
                if self.is_local or filesystem.read_bytes(fs, path) != data:
                    raise

        self._retried(claim, "Writing", name)

    @mask_errors
    @_confined
    def exists(self, *parts: str) -> bool:
        """Whether a file (no directory) is there, asked of the file itself."""
        return self._retried(filesystem.is_file, "Looking for", *parts)

    @mask_errors
    @_confined
    def names(self, *parts: str) -> list[str]:
        """Return the sorted names of files and directories directly below `parts`."""
        return self._retried(filesystem.names, "Listing", *parts)

    @mask_errors
    @_confined
    def find(self, *parts: str) -> list[str]:
        """Return the sorted paths of all files below `parts`, relative to it."""
        return self._retried(filesystem.find, "Listing", *parts)

    @mask_errors
    @_confined
    def open_read(self, *parts: str) -> BinaryIO:
        """Open a file to be read in pieces."""
        again = partial(self.keep_trying, what=f"Reading {'/'.join(parts)}")
        return filesystem.open_read(self.fs, self.path(*parts), again)

    @mask_errors
    @_confined
    def remove(self, name: str) -> None:
        """Delete a file; it is no error if it is missing."""
        self._retried(filesystem.remove, "Deleting", name)

    @mask_errors
    @_confined
    def remove_tree(self, *parts: str) -> None:
        """Delete all that is below `parts`; it is no error if there is nothing."""
        self._retried(filesystem.remove_tree, "Deleting", *parts)

    def _retried(self, operation: Callable[[Any, str], T], verb: str, *parts: str) -> T:
        path = self.path(*parts)
        if not self.patience:
            return operation(self.fs, path)
        return self.keep_trying(lambda: operation(self.fs, path), f"{verb} {'/'.join(parts)}")

    def __hash__(self) -> int:
        return hash(self.url)

    def __reduce__(self) -> tuple[type[Storage], tuple[str, Mapping[str, Any], float]]:
        return (Storage, (self.url, self.storage_options, self.patience))

    def __str__(self) -> str:
        return without_passwords(self.url)

    def __repr__(self) -> str:
        if not self.storage_options:
            return f"Storage({str(self)!r})"
        hidden = dict.fromkeys(self.storage_options, "***")
        return f"Storage({str(self)!r}, storage_options={hidden})"


def _copied(value: Any) -> Any:
    """Return a copy of the dicts and lists in storage options; all else may defy being copied."""
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


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
    shown = without_passwords(url)
    climbs = ".." in tail.split("/")
    check(not climbs, "storage_path", "a URL without '..'", shown)
    check(not _MAGIC.search(tail), "storage_path", "a URL without '*', '?' or '['", shown)
    return f"{head}://{tail}"
