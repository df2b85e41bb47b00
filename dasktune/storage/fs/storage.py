"""The class `Storage`: a directory on a disk or in an object store, with its credentials."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar

import fsspec

from dasktune.errors import ConfigError, StorageError, check, without_passwords
from dasktune.storage.fs import filesystem, local_files, retry
from dasktune.storage.fs.redaction import redact, redact_errors, secrets_of
from dasktune.storage.fs.streams import Timeout, deadline

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_LOCAL: Final = ("file", "local")
_LOCAL_PREFIX: Final = re.compile(r"^(file|local):(//)?")
#: The protocol of a URL, and before it those of filesystems that fsspec puts in front of it.
_PROTOCOL: Final = re.compile(r"[^/]*?://")
#: A path of which fsspec reads the beginning as a protocol.
_CHAINED_PATH: Final = re.compile(r"[^/]*?::")
#: Some calls of fsspec take names with these characters for patterns, which match other files, and
#: read what follows "::" as another URL.
_MAGIC: Final = re.compile(r"[*?\[]|::|://")


def is_relative_name(name: object) -> bool:
    """Whether `name` stays below the directory to which it is joined.

    Examples
    --------
    >>> is_relative_name("trials/a"), is_relative_name("../a"), is_relative_name("/a")
    (True, False, False)
    """
    # A backslash separates names on other systems. Surrogates cannot be encoded for a store. In
    # s3fs, "?versionId=" ends the name of an object.
    if not isinstance(name, str) or "\0" in name or "\\" in name or "?versionId=" in name:
        return False
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def protocol_of(url: str) -> str:
    """Return the protocol of a path or URL: the first one, if there are several.

    Examples
    --------
    >>> protocol_of("s3://bucket/a"), protocol_of("simplecache::s3://b"), protocol_of("/a::b")
    ('s3', 'simplecache', 'file')
    """
    match = _PROTOCOL.match(url)
    return "file" if match is None else re.split("::|://", match[0], maxsplit=1)[0]


def _confined(method: F) -> F:
    """Decorate a method: refuse names with links that lead out of the directory."""

    @functools.wraps(method)
    def call(self: Storage, *args: Any, **kwargs: Any) -> Any:
        if self.is_local:
            self.inside(*[name for name in args if isinstance(name, str)])
        return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


@dataclass(frozen=True)
class Storage:
    """A directory on a disk or in an object store.

    A value: it can be compared, pickled and sent to workers. Each process opens its own connection
    at the first use. Local paths become absolute, so the working directory may change later.

    Parameters
    ----------
    url : str or path-like
        A local path (``~`` is the home directory) or a URL of fsspec, such as ``s3://bucket/x``.
    storage_options : mapping, optional
        Arguments of the fsspec filesystem, such as credentials. They are never written or shown.
    retry_seconds : float, default=0.0
        Seconds for which a failing operation is retried, unless its error is permanent. Not part of
        the value.
    still_needed : callable, optional
        Called between two attempts; returns whether the result is still needed. Not part of the
        value, and not pickled.
    timeout : callable, default=deadline
        Called with a number of bytes; returns the seconds within which a remote store must have
        transferred them. Not part of the value, and not pickled.

    Raises
    ------
    ConfigError
        If the URL is empty, has ``..``, or has characters to which fsspec gives a meaning.

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
    retry_seconds: float = field(default=0.0, compare=False)
    still_needed: Callable[[], bool] | None = field(default=None, compare=False)
    timeout: Timeout = field(default=deadline, compare=False)

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
        """Whether it is a path on a disk; on another machine it may be another directory."""
        return protocol_of(self.url) in _LOCAL

    @property
    def is_process_private(self) -> bool:
        """Whether no other process can see what is written (``memory://``)."""
        return protocol_of(self.url) == "memory"

    @property
    def fs(self) -> Any:
        """The fsspec filesystem, made on first use in each process.

        Raises
        ------
        ConfigError
            If the URL's protocol is unknown, or needs a package that is not installed.
        """
        return self._opened()[0]

    def _opened(self) -> tuple[Any, str]:
        cached = self.__dict__.get("_cache")
        if cached is not None and cached[0] == os.getpid():
            opened: tuple[Any, str] = cached[1]
            return opened
        opened = self._open()
        # Connections of fsspec do not survive a fork, so the process id is part of the key. Two
        # threads may both open the storage; either result is valid, and the last one is kept.
        self.__dict__["_cache"] = (os.getpid(), opened)
        return opened

    @redact_errors
    def _open(self) -> tuple[Any, str]:
        # A copy, since a client may change its options.
        options: dict[str, Any] = _copied(self.storage_options)
        if self.is_local:
            # Not by its URL, in which "::" would have a meaning.
            return fsspec.filesystem("file", **options), self.url
        if not (self.is_process_private or "::" in self.url):
            # A cached listing hides files that other machines wrote since.
            options.setdefault("use_listings_cache", False)
        try:
            fs, root = fsspec.core.url_to_fs(self.url, **options)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"storage_path must be a path or URL that fsspec can open here, got {str(self)!r}. {error}"
            ) from error
        return fs, str(root)

    def with_retry(self, seconds: float, still_needed: Callable[[], bool] | None = None) -> Storage:
        """Return the same directory with another retry time.

        Parameters
        ----------
        seconds : float
            Seconds for which a failing operation is retried.
        still_needed : callable, optional
            Called between two attempts; returns whether the result is still needed.
        """
        other = Storage(self.url, self.storage_options, seconds, still_needed, self.timeout)
        if "_cache" in self.__dict__:
            other.__dict__["_cache"] = self.__dict__["_cache"]
        other.__dict__["_top"] = self.__dict__.get("_top", self.url)
        return other

    def call_with_retry(self, attempt: Callable[[], T], what: str) -> T:
        """Call `attempt`, and retry it after transient errors.

        Parameters
        ----------
        attempt : callable
            An operation on this storage that may be repeated.
        what : str
            The operation, for the log: "Writing x".

        Raises
        ------
        StorageError
            If it failed until the retry time was over.
        Exception
            The error of the last attempt, if there is no retry time, the error is permanent, or the
            result is no longer needed.
        """
        what = f"{what} of {self}"
        try:
            return retry.retry(
                attempt, self.retry_seconds, what=what, explain=self.explain, still_needed=self.still_needed
            )
        except Exception as error:  # each store's client has its own exceptions
            unwanted = self.still_needed is not None and not self.still_needed()
            if not self.retry_seconds or unwanted or not retry.is_transient(error):
                raise
            raise StorageError(
                f"{what} failed with {self.explain(error)}, and so did all retries for "
                f"{self.retry_seconds:g} s. Repair the storage, or set a longer "
                "RunConfig(storage_patience=...)."
            ) from error

    def explain(self, error: Exception) -> str:
        """Return the text of an exception without the values of `storage_options`."""
        return redact(repr(error), secrets_of(self.storage_options))

    def child(self, *parts: str) -> Storage:
        """Return the directory at `parts` below this one.

        Parameters
        ----------
        *parts : str
            Names, or relative paths with ``/``.

        Raises
        ------
        ConfigError
            If a part is empty, absolute or has ``..``, or has one of ``*?[`` or ``::`` in a remote
            URL.
        """
        name = _joined(parts)
        if not self.is_local:
            hint = "For remote stores these characters are patterns, or separate URLs."
            check(not _MAGIC.search(name), "name", "free of '*', '?', '[' and '::'", name, hint)
        url = f"{self.url.rstrip('/')}/{name}"
        child = Storage(url, self.storage_options, self.retry_seconds, self.still_needed, self.timeout)
        child.__dict__["_top"] = self.__dict__.get("_top", self.url)
        if "_cache" in self.__dict__:
            # Opening costs more than writing a small file, and there is one per checkpoint.
            process, (fs, root) = self.__dict__["_cache"]
            child.__dict__["_cache"] = (process, (fs, f"{root.rstrip('/')}/{name}"))
        return child

    def path(self, *parts: str) -> str:
        """Return the path of a file below this directory, in the notation of :attr:`fs`.

        Raises
        ------
        ConfigError
            If a part is empty, absolute or has ``..``.
        """
        root = self._opened()[1]
        return f"{root.rstrip('/')}/{_joined(parts)}" if parts else root

    def inside(self, *parts: str) -> str:
        """Return :meth:`path` after checking that no link leads out of this directory.

        Links in the path that the user has given are allowed. dasktune creates none below it.

        Raises
        ------
        ConfigError
            If a part is empty, absolute or has ``..``.
        StorageError
            If the path, on a disk, is or passes a link, a pipe or a device.
        """
        path = self.path(*parts)
        if self.is_local:
            local_files.check_plain(self.__dict__.get("_top", self.url), path)
        return path

    @redact_errors
    @_confined
    def read_bytes(self, *parts: str) -> bytes:
        """Return a whole file; FileNotFoundError if it does not exist."""
        return self._retried(filesystem.read_bytes, "Reading", *parts)

    @redact_errors
    @_confined
    def write_bytes(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a whole file, replacing an old one atomically.

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

    @redact_errors
    @_confined
    def create(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a whole file that must not exist; of several writers exactly one succeeds.

        There is no retry: after a failure the file may exist, and its writer would be unknown. The
        client of a remote store may retry by itself, and then raise FileExistsError for the file
        that this call has written: use :meth:`claim` for content that only this call writes.

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
            If it exists already.
        """
        filesystem.create(self.fs, self.path(name), data, durable=durable, timeout=self.timeout)

    def claim(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Create a file whose content is unique to this writer, with retries.

        A remote store may carry out a write although its answer is lost. The retry then finds the
        file, and recognises by its content that this writer has created it. A write that arrives
        after its own retry fails, since the file exists.

        Parameters
        ----------
        name, data, durable
            As for :meth:`create`; `data` must have a part that no other writer writes.

        Raises
        ------
        FileExistsError
            If another writer has created it.
        """

        def claim(fs: Any, path: str, timeout: Timeout) -> None:
            try:
                self.create(name, data, durable=durable)
            except FileExistsError:
                if self.is_local or filesystem.read_bytes(fs, path, timeout=timeout) != data:
                    raise

        self._retried(claim, "Writing", name)

    @redact_errors
    @_confined
    def exists(self, *parts: str) -> bool:
        """Whether a file (not a directory) exists; no listing is used."""
        return self._retried(filesystem.is_file, "Looking for", *parts)

    @redact_errors
    @_confined
    def names(self, *parts: str) -> list[str]:
        """Return the sorted names of files and directories directly below `parts`."""
        return self._retried(filesystem.names, "Listing", *parts)

    @redact_errors
    @_confined
    def sizes(self, *parts: str) -> dict[str, int]:
        """Return the sizes in bytes of the files directly below `parts`, in a remote store."""
        return self._retried(filesystem.sizes, "Listing", *parts)

    @redact_errors
    @_confined
    def find(self, *parts: str) -> list[str]:
        """Return the sorted paths of all files below `parts`, relative to it."""
        return self._retried(filesystem.find, "Listing", *parts)

    @redact_errors
    @_confined
    def open_read(self, *parts: str) -> BinaryIO:
        """Open a file for reading in pieces."""
        again = partial(self.call_with_retry, what=f"Reading {'/'.join(parts)}")
        return filesystem.open_read(self.fs, self.path(*parts), again, timeout=self.timeout)

    @redact_errors
    @_confined
    def remove(self, name: str) -> None:
        """Delete a file; it may be missing."""
        self._retried(filesystem.remove, "Deleting", name)

    @redact_errors
    @_confined
    def remove_tree(self, *parts: str, aside: str | None = None) -> None:
        """Delete all files below `parts`; there may be none.

        Parameters
        ----------
        *parts : str
            Names, or relative paths with ``/``.
        aside : str, optional
            Path below this directory, on a disk: the directory to which the files are moved before
            they are deleted, so that the deletion does not hold up others in the directory above.
        """
        place = None if aside is None else self.path(aside)
        self._retried(partial(filesystem.remove_tree, aside=place), "Deleting", *parts)

    def _retried(self, operation: Callable[..., T], verb: str, *parts: str) -> T:
        path = self.path(*parts)
        if not self.retry_seconds:
            return operation(self.fs, path, timeout=self.timeout)
        return self.call_with_retry(
            lambda: operation(self.fs, path, timeout=self.timeout), f"{verb} {'/'.join(parts)}"
        )

    def __hash__(self) -> int:
        return hash(self.url)

    def __reduce__(self) -> tuple[type[Storage], tuple[str, Mapping[str, Any], float]]:
        return (Storage, (self.url, self.storage_options, self.retry_seconds))

    def __str__(self) -> str:
        return without_passwords(self.url)

    def __repr__(self) -> str:
        if not self.storage_options:
            return f"Storage({str(self)!r})"
        hidden = dict.fromkeys(self.storage_options, "***")
        return f"Storage({str(self)!r}, storage_options={hidden})"


def _copied(value: Any) -> Any:
    """Return a copy of the dicts and lists in storage options; other objects are not copied."""
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _joined(parts: tuple[str, ...]) -> str:
    for part in parts:
        hint = "Names must stay inside the experiment's directory."
        check(is_relative_name(part), "name", "a relative path without '..'", part, hint)
    return "/".join(parts)


def _normalised(url: str) -> str:
    match = _PROTOCOL.match(url)
    shown = without_passwords(url)
    if match is None or protocol_of(url) in _LOCAL:
        hint = "Write './' before a local path that begins like this."
        check(not _CHAINED_PATH.match(url), "storage_path", "a path or a URL", shown, hint)
        path = _LOCAL_PREFIX.sub("", url)
        return os.path.abspath(os.path.expanduser(path))
    head, tail = match[0], url[match.end() :].rstrip("/")
    climbs = ".." in tail.split("/")
    check(not climbs, "storage_path", "a URL without '..'", shown)
    hint = "fsspec takes these characters for patterns, or for the beginning of another URL."
    check(not _MAGIC.search(tail), "storage_path", "a URL without '*', '?', '[' or '::'", shown, hint)
    return f"{head}{tail}"
