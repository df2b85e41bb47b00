"""The exports of a trial: files in its directory, and a list of their formats."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.checkpoints.source_files import SourceFile, source_files
from dasktune.storage.fs import filesystem
from dasktune.storage.fs.redaction import redact_errors
from dasktune.storage.fs.storage import Storage, is_relative_name

#: Directory of the exports, below a trial's directory.
EXPORT_DIR: Final = "exported"

#: File with the list of formats and paths; written last.
_LIST: Final = ".exported.json"


def write_export_list(directory: str, exported: Mapping[str, str]) -> None:
    """Write the list of exported formats and their paths into the export directory.

    Parameters
    ----------
    directory : str
        The local directory with the exports.
    exported : mapping of str to str
        ``{format: path}``; each path is a file or directory below `directory`.

    Raises
    ------
    ConfigError
        If a path does not exist, or is not below the directory.

    Examples
    --------
    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> _ = Path(directory, "model.bin").write_bytes(b"weights")
    >>> write_export_list(directory, {"model": f"{directory}/model.bin"})
    >>> Path(directory, _LIST).read_text()
    '{"model": "model.bin"}'
    """
    root = os.path.realpath(directory)
    names = {}
    for name, path in exported.items():
        place = os.path.realpath(os.path.join(root, path))
        if not (os.path.exists(place) and place.startswith(root + os.sep)):
            raise ConfigError(
                f"what _export_model() returns must be {{format: path}} with existing paths below "
                f"the directory that it was given, got {path!r} for {name!r}"
            )
        names[str(name)] = os.path.relpath(place, root).replace(os.sep, "/")
    Path(directory, _LIST).write_text(json.dumps(names))


@redact_errors
def write_exports(storage: Storage, trial_dir: str, directory: str) -> None:
    """Copy exports to a trial's directory, replacing the exports of an earlier start.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    trial_dir : str
        Name of the trial's directory.
    directory : str
        The local directory with the exports, after :func:`write_export_list`.
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
        target = filesystem.open_write(place.fs, place.path(file.name), timeout=place.timeout)
        with file.open() as source, target:
            shutil.copyfileobj(source, target)

    place.call_with_retry(once, f"Writing {file.name}")


def read_exports(storage: Storage, trial_dir: str) -> dict[str, str]:
    """Return ``{format: path or URL}`` of a trial's exports; empty without any.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    trial_dir : str
        Name of the trial's directory.

    Raises
    ------
    StorageError
        If the list is damaged.
    """
    place = storage.child("trials", trial_dir, EXPORT_DIR)
    try:
        exported: Any = json.loads(place.read_bytes(_LIST))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StorageError(f"{_LIST} in {place} is damaged: {error}") from error
    if not isinstance(exported, dict) or not all(map(is_relative_name, exported.values())):
        raise StorageError(f"{_LIST} in {place} is damaged: it does not name files")
    return {name: f"{place.url.rstrip('/')}/{path}" for name, path in exported.items()}
