"""Opening what travels to a worker in pickled form. It may run user code: imports, for one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.trainable.shared_objects import load, loads_with

__all__ = ["Parcel", "open_config", "open_trainable"]


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


def open_trainable(payload: bytes, find: Callable[[str], Any]) -> Any:
    """Return the user's code; `find` returns the large objects that it leaves out, by name."""
    return loads_with(payload, find)["trainable"]


def open_config(blob: bytes) -> dict[str, Any]:
    """Return a trial's configuration."""
    config: dict[str, Any] = pickle.loads(blob)["config"]
    return config
