"""``tuner.json``: what the user gave, so that a later driver can go on with it.

Plain values stand there as they are, and each of the user's own objects as a pickle of its own: one
that can no longer be unpickled costs only itself, and whoever merely looks unpickles nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import cloudpickle

from dasktune.errors import StorageError
from dasktune.storage.json_lines import decode, encode, is_exact
from dasktune.storage.location import Storage
from dasktune.storage.masking import reading

__all__ = ["SETUP_FILE", "SetupFile", "is_being_stored", "packed"]

SETUP_FILE: Final = "tuner.json"
#: Version of the format.
FORMAT: Final = 1

_storing: ContextVar[bool] = ContextVar("dasktune_storing", default=False)


def is_being_stored() -> bool:
    """Whether what is being pickled here will stand in a file: credentials do not belong there.

    Objects that travel to another process are pickled as well, and need theirs.
    """
    return _storing.get()


def packed(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return values as what stands in the file.

    Parameters
    ----------
    values : mapping
        Any, by name.

    Returns
    -------
    dict
        For each name ``{"value": ...}``, ``{"type": ..., "pickle": ...}``, or ``{"type": ...,
        "lost": why}``.

    Examples
    --------
    >>> packed({"num_samples": 4})
    {'num_samples': {'value': 4}}
    """
    return {name: _packed(value) for name, value in values.items()}


def _packed(value: Any) -> dict[str, Any]:
    if is_exact({"value": value}):
        return {"value": value}
    kind = type(value).__qualname__
    token = _storing.set(True)
    try:
        blob: bytes = cloudpickle.dumps(value)
    except Exception as error:  # whatever the user's objects raise
        return {"type": kind, "lost": f"{type(error).__name__}: {error}"}
    finally:
        _storing.reset(token)
    return {"type": kind, "pickle": base64.b64encode(blob).decode("ascii")}


class SetupFile:
    """What an experiment was set up with.

    Parameters
    ----------
    entries : mapping
        What :func:`packed` gave.

    Examples
    --------
    >>> storage = Storage("memory://doctest-setup")
    >>> SetupFile(packed({"num_samples": 4, "layers": (64, 64)})).write(storage)
    >>> setup = SetupFile.read(storage)
    >>> setup.load("num_samples"), setup.load("layers")
    (4, (64, 64))
    """

    def __init__(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        self.entries = entries

    def write(self, storage: Storage) -> None:
        """Write it, replacing what is there at once.

        Parameters
        ----------
        storage : Storage
            The experiment's directory.
        """
        # For people, but what JSON has no word for must come back.
        content = json.loads(encode({"format": FORMAT, "entries": self.entries}))
        text = json.dumps(content, indent=1, allow_nan=False)
        storage.write_bytes(SETUP_FILE, text.encode("ascii") + b"\n", durable=True)

    @classmethod
    def read(cls, storage: Storage) -> SetupFile:
        """Read what :meth:`write` wrote; nothing is unpickled.

        Parameters
        ----------
        storage : Storage
            The experiment's directory.

        Raises
        ------
        StorageError
            If it is missing or malformed, or has another format.
        """
        with reading(SETUP_FILE, storage):
            if not storage.exists(SETUP_FILE):
                raise StorageError(
                    f"no experiment that can be restored is stored at {storage}. Give the "
                    "directory of the experiment itself, in which experiment.json lies."
                )
            content = decode(storage.read_bytes(SETUP_FILE))
        version = content.get("format") if isinstance(content, dict) else None
        entries = content.get("entries") if version == FORMAT else None
        if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
            raise StorageError(
                f"{SETUP_FILE} of {storage} has format {version!r} or is damaged; this dasktune "
                f"reads format {FORMAT}"
            )
        return cls(entries)

    @property
    def lost(self) -> Iterator[tuple[str, str]]:
        """Yield names and reasons of what could not be pickled when it was written."""
        for name, entry in self.entries.items():
            if "lost" in entry:
                yield name, str(entry["lost"])

    def load(self, name: str) -> Any:
        """Return a value. It may be unpickled: user code may run.

        Parameters
        ----------
        name : str
            Its name.

        Raises
        ------
        StorageError
            If it is not there or no longer loads.
        """
        entry = self.entries.get(name, {"lost": "it is not there"})
        try:
            if "value" in entry:
                return entry["value"]
            if "pickle" in entry:
                return cloudpickle.loads(base64.b64decode(entry["pickle"]))
            reason = entry["lost"]
        except Exception as error:  # whatever the user's classes raise
            reason = repr(error)
        raise StorageError(f"{name} of {SETUP_FILE} cannot be loaded: {reason}")
