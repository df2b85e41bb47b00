"""What a trial has exported: files in its directory, and a list of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from dasktune.errors import ConfigError, StorageError
from dasktune.storage import filesystem
from dasktune.storage.location import Storage, is_relative_name
from dasktune.storage.masking import mask_errors
from dasktune.storage.source import SourceFile, source_files

__all__ = ["EXPORT_DIR", "note_exports", "read_exports", "write_exports"]

#: Below a trial's directory.
EXPORT_DIR: Final = "exported"

#: Says which format lies where; written last.
_LIST: Final = ".exported.json"


def note_exports(directory: str, told: Mapping[str, str]) -> None:
    """Write down, in a local directory with what was exported, which format lies where.

    Parameters
    ----------
    directory : str
        The directory.
    told : mapping of str to str
        ``{format: path}``, each a file or directory below it.

    Raises
    ------
    ConfigError
        If a path is not there, or elsewhere.

    Examples
    --------
    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> _ = Path(directory, "model.bin").write_bytes(b"weights")
    >>> note_exports(directory, {"model": f"{directory}/model.bin"})
    >>> Path(directory, _LIST).read_text()
    '{"model": "model.bin"}'
    """
    root = os.path.realpath(directory)
    names = {}
    for name, path in told.items():
        place = os.path.realpath(os.path.join(root, path))
        if not (os.path.exists(place) and place.startswith(root + os.sep)):
            raise ConfigError(
                f"what _export_model() returns must be {{format: path}} with paths of what it has "
                f"written below the directory that it was given, got {path!r} for {name!r}"
            )
        names[str(name)] = os.path.relpath(place, root).replace(os.sep, "/")
    Path(directory, _LIST).write_text(json.dumps(names))


@mask_errors
def write_exports(storage: Storage, trial_dir: str, directory: str) -> None:
    """Copy what was exported to a trial's directory, in the place of what an earlier start did.

    Parameters
    ----------
    storage : Storage
        The experiment's.
    trial_dir : str
        Name of the trial's directory.
    directory : str
        A local directory with the files, after :func:`note_exports`.
    """
    place = storage.child("trials", trial_dir, EXPORT_DIR)
    place.remove_tree()
    files = source_files(directory)
    copy = partial(_copy, place)
    filesystem.run_each(place.fs, copy, [file for file in files if file.name != _LIST])
    for file in files:
        if file.name == _LIST:
            copy(file)


def _copy(place: Storage, file: SourceFile) -> None:
    def once() -> None:
        target = filesystem.open_write(place.fs, place.path(file.name))
        with file.open() as source, target:
            shutil.copyfileobj(source, target)

    place.keep_trying(once, f"Writing {file.name}")


def read_exports(storage: Storage, trial_dir: str) -> dict[str, str]:
    """Return ``{format: path or URL}`` of what a trial has exported; empty if it has not.

    Parameters
    ----------
    storage : Storage
        The experiment's.
    trial_dir : str
        Name of the trial's directory.

    Raises
    ------
    StorageError
        If the list is damaged.
    """
    place = storage.child("trials", trial_dir, EXPORT_DIR)
    try:
        told: Any = json.loads(place.read_bytes(_LIST))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StorageError(f"{_LIST} in {place} is damaged: {error}") from error
    if not isinstance(told, dict) or not all(map(is_relative_name, told.values())):
        raise StorageError(f"{_LIST} in {place} is damaged: it does not name files")
    return {name: f"{place.url.rstrip('/')}/{path}" for name, path in told.items()}
