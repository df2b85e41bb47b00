"""What a submitted driver takes along of the files that only the client is sure to see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dasktune.config import RunConfig
from dasktune.errors import check
from dasktune.storage import filesystem
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.location import Storage
from dasktune.storage.source import source_files

__all__ = ["Seen", "packed_beginning", "rooted", "with_beginning"]

#: Bytes of a checkpoint that travel with the driver; Dask's scheduler keeps them until its end.
_LARGEST: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Seen:
    """A directory that is too large to travel: workers must see what the client sees there.

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
        """Whether this process sees it."""
        found = {name: Path(self.path, name) for name in self.sizes}
        return all(
            file.is_file() and file.stat().st_size == self.sizes[name]
            for name, file in found.items()
        )

    @property
    def mebibytes(self) -> int:
        """How large it is."""
        return sum(self.sizes.values()) >> 20


def packed_beginning(checkpoint: Checkpoint | None) -> Mapping[str, bytes] | Seen | None:
    """Return the files of the checkpoint that trials begin from, if a worker may not see them.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        Which exists. None if there is none, or the experiment has its copy already.

    Returns
    -------
    dict of str to bytes, Seen or None
        What travels, or what must be there. None if there is nothing, or it is in a store that
        workers read, too.

    Raises
    ------
    ConfigError
        If it is in the memory of this process and too large to travel.

    Examples
    --------
    >>> list(packed_beginning(Checkpoint.from_dict({"epoch": 3})))
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
            return Seen(checkpoint.path, sizes)
    content = {}
    for file in files:
        with file.open() as stream:
            content[file.name] = stream.read()
    size = sum(map(len, content.values()))
    rule = f"at most {_LARGEST >> 20} MiB in memory:// for submit()"
    hint = "Put it where the workers see it: on a shared disk, or in an object store."
    check(size <= _LARGEST, "restore", rule, checkpoint, hint)
    return content


def with_beginning(run_config: RunConfig, files: Mapping[str, bytes] | None) -> RunConfig:
    """Return the configuration of an experiment that begins from files which have travelled.

    Parameters
    ----------
    run_config : RunConfig
        As it was sent.
    files : mapping of str to bytes, or None
        Of :func:`packed_beginning`; None leaves it as it is.
    """
    if files is None:
        return run_config
    checkpoint = Checkpoint.temporary()
    for name, content in files.items():
        path = Path(checkpoint.path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return replace(run_config, restore=checkpoint)


def rooted(run_config: RunConfig) -> RunConfig:
    """Return the configuration with a place that does not depend on who works in which directory.

    What begins with ``~`` stays: it is the home of whoever runs the workers.

    Parameters
    ----------
    run_config : RunConfig
        As the user gave it.

    Examples
    --------
    >>> rooted(RunConfig(storage_path="/runs")).storage_path
    '/runs'
    >>> rooted(RunConfig(storage_path="runs")).storage_path == os.path.abspath("runs")
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
