"""``tuner.json``: the user's arguments, with which a later driver can resume the experiment.

Plain values are stored as JSON, and each object of the user in its own pickle. So one object that
cannot be unpickled does not affect the others, and reading the file unpickles nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import cloudpickle

from dasktune.errors import StorageError
from dasktune.storage.fs.format import FORMAT, check_format
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.fs.unpickling import loads
from dasktune.storage.journal.json_lines import decode, encode, round_trips

SETUP_FILE: Final = "tuner.json"

_storing: ContextVar[bool] = ContextVar("dasktune_storing", default=False)


def is_being_stored() -> bool:
    """Whether the current pickling is for a file, which must not contain credentials.

    Objects that are sent to another process are pickled as well, with their credentials.
    """
    return _storing.get()


def entries_of(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the entries of ``tuner.json`` for these values.

    Parameters
    ----------
    values : mapping
        Any values, by name.

    Returns
    -------
    dict
        For each name ``{"value": ...}``, ``{"type": ..., "pickle": ...}``, or ``{"type": ...,
        "lost": why}``. A caller may add ``"text"``, with which people are shown the object, and
        ``"limits"``, the class of the searcher in a `ConcurrencyLimiter`.

    Examples
    --------
    >>> entries_of({"num_samples": 4})
    {'num_samples': {'value': 4}}
    """
    return {name: _packed(value) for name, value in values.items()}


def _packed(value: Any) -> dict[str, Any]:
    if round_trips({"value": value}):
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


class TunerFile:
    """The user's arguments of an experiment, as stored in ``tuner.json``.

    Parameters
    ----------
    entries : mapping
        The result of :func:`entries_of`.

    Examples
    --------
    >>> storage = Storage("memory://doctest-setup")
    >>> TunerFile(entries_of({"num_samples": 4, "layers": (64, 64)})).write(storage)
    >>> setup = TunerFile.read(storage)
    >>> setup.load("num_samples"), setup.load("layers")
    (4, (64, 64))
    """

    def __init__(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        self.entries = entries

    def write(self, storage: Storage) -> None:
        """Write the file; an old one is replaced atomically.

        Parameters
        ----------
        storage : Storage
            The experiment's directory.
        """
        # Indented for people, with the marks for values that JSON cannot represent.
        content = json.loads(encode({"format": FORMAT, "entries": self.entries}))
        text = json.dumps(content, indent=1, allow_nan=False)
        storage.write_bytes(SETUP_FILE, text.encode("ascii") + b"\n", durable=True)

    @classmethod
    def read(cls, storage: Storage) -> TunerFile:
        """Read the file; nothing is unpickled.

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
                    "experiment's own directory, which has the file experiment.json."
                )
            data = storage.read_bytes(SETUP_FILE)
            try:
                content = decode(data)
            except StorageError as error:
                raise StorageError(f"{SETUP_FILE} in {storage} is {error}") from error
        what, content = f"{SETUP_FILE} of {storage}", content if isinstance(content, dict) else {}
        check_format(what, content.get("format"))
        entries = content.get("entries")
        if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
            raise StorageError(f"{what} is damaged")
        return cls(entries)

    @property
    def lost(self) -> Iterator[tuple[str, str]]:
        """Yield names and reasons of the values that could not be pickled."""
        for name, entry in self.entries.items():
            if "lost" in entry:
                yield name, str(entry["lost"])

    def load(self, name: str) -> Any:
        """Return a value. Unpickling it may run user code.

        Parameters
        ----------
        name : str
            The name of the value.

        Raises
        ------
        StorageError
            If it is missing or cannot be unpickled.
        """
        entry = self.entries.get(name, {"lost": "it is missing"})
        try:
            if "value" in entry:
                return entry["value"]
            if "pickle" in entry:
                return loads(base64.b64decode(entry["pickle"]))
            reason = entry["lost"]
        except Exception as error:  # whatever the user's classes raise
            reason = repr(error)
        raise StorageError(f"{name} of {SETUP_FILE} cannot be loaded: {reason}")
