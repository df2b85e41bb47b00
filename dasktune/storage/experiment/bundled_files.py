"""Bundles files with a submitted driver, because perhaps only the client can read them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dasktune.config import RunConfig
from dasktune.errors import check
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.source_files import source_files
from dasktune.storage.fs import filesystem
from dasktune.storage.fs.storage import Storage

#: Largest checkpoint in bytes that is sent with the driver; Dask's scheduler keeps it in memory.
_LARGEST: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class ExpectedDirectory:
    """A directory that is too large to bundle: workers must see the same files there.

    Parameters
    ----------
    path : str
        The directory.
    sizes : mapping of str to int
        Bytes of each file below it.
    """

    path: str
    sizes: Mapping[str, int]

    def __call__(self) -> bool:
        """Whether this process finds the directory, with the same files."""
        found = {name: Path(self.path, name) for name in self.sizes}
        return all(file.is_file() and file.stat().st_size == self.sizes[name] for name, file in found.items())

    @property
    def mebibytes(self) -> int:
        """Total size of the files in MiB."""
        return sum(self.sizes.values()) >> 20


def bundle_initial_checkpoint(
    checkpoint: Checkpoint | None,
) -> Mapping[str, bytes] | ExpectedDirectory | None:
    """Return the files of the initial checkpoint, unless they are in a store that workers can read.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        The initial checkpoint. None if there is none, or if the experiment already has a copy.

    Returns
    -------
    dict of str to bytes, ExpectedDirectory or None
        The files to send, or the directory that workers must see. None without a checkpoint, or if
        it is in a store that workers can read, too.

    Raises
    ------
    ConfigError
        If it is in the memory of this process and too large to send.

    Examples
    --------
    >>> list(bundle_initial_checkpoint(Checkpoint.from_dict({"epoch": 3})))
    ['_dict_checkpoint.pkl']
    """
    if checkpoint is None:
        return None
    is_local = filesystem.is_local(checkpoint.filesystem)
    if not is_local and getattr(checkpoint.filesystem, "protocol", "") != "memory":
        return None
    files = source_files(checkpoint)
    if is_local:
        sizes = {file.name: os.path.getsize(file.path or "") for file in files}
        if sum(sizes.values()) > _LARGEST:
            return ExpectedDirectory(checkpoint.path, sizes)
    content = {}
    for file in files:
        with file.open() as stream:
            content[file.name] = stream.read()
    size = sum(map(len, content.values()))
    rule = f"at most {_LARGEST >> 20} MiB in memory:// for submit()"
    hint = "Put it where the workers see it: on a shared disk, or in an object store."
    check(size <= _LARGEST, "restore", rule, checkpoint, hint)
    return content


def with_initial_checkpoint(run_config: RunConfig, files: Mapping[str, bytes] | None) -> RunConfig:
    """Return the configuration with the bundled files as its initial checkpoint.

    Parameters
    ----------
    run_config : RunConfig
        The configuration that was sent.
    files : mapping of str to bytes, or None
        The files of :func:`bundle_initial_checkpoint`; None changes nothing.
    """
    if files is None:
        return run_config
    checkpoint = Checkpoint.temporary()
    for name, content in files.items():
        path = Path(checkpoint.path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return replace(run_config, restore=checkpoint)


def with_absolute_path(run_config: RunConfig) -> RunConfig:
    """Return the configuration with an absolute storage path.

    A path that starts with ``~`` stays: on a worker it is the home of the worker's user.

    Parameters
    ----------
    run_config : RunConfig
        The user's configuration.

    Examples
    --------
    >>> with_absolute_path(RunConfig(storage_path="/runs")).storage_path
    '/runs'
    >>> with_absolute_path(RunConfig(storage_path="runs")).storage_path == os.path.abspath("runs")
    True
    """
    given: Any = run_config.storage_path
    if given is None:
        return run_config
    place = Storage(given)
    named = os.fspath(given).removeprefix("file://").removeprefix("local://")
    if not place.is_local or named.startswith("~"):
        return run_config
    return replace(run_config, storage_path=place.url)
