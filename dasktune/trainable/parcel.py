"""Opening what travels to a worker in pickled form. It may run user code: imports, for one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.trainable.shared_objects import load, loads_with

__all__ = ["Code", "Parcel", "open_code", "open_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What an experiment has sent to its workers, opened."""

    trainable: Any
    #: The creators of :func:`dasktune.register_env`, each pickled.
    envs: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What a process of its own needs to run a trial's code."""

    #: The pickled trainable; None if the process has it already.
    payload: bytes | None = field(repr=False)
    #: The pickled configuration.
    config: bytes = field(repr=False)
    #: Files that hold the large objects of the payload, by name.
    shared: Mapping[str, str] = field(default_factory=dict)
    #: What user code gets its Dask client from, pickled; empty if there is none to be had.
    client: bytes = field(default=b"", repr=False)

    def find(self, name: str) -> Any:
        """Return a large object of the payload, mapped from its file."""
        return load(self.shared[name])


def open_code(payload: bytes, find: Callable[[str], Any]) -> Code:
    """Return the user's code; `find` returns the large objects that it leaves out, by name."""
    opened = loads_with(payload, find)
    return Code(trainable=opened["trainable"], envs=opened.get("envs", {}))


def open_config(blob: bytes) -> dict[str, Any]:
    """Return a trial's configuration."""
    config: dict[str, Any] = pickle.loads(blob)["config"]
    return config
