"""A store for simulated experiments that passes each result to a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.testing.memory_store import MemoryStore

__all__ = ["ResultStore"]


class ResultStore(MemoryStore):
    """Passes each result to a function, in the order of arrival, and stores nothing.

    Parameters
    ----------
    on_result : callable
        Called with the virtual time of each result and its metrics.
    """

    def __init__(self, on_result: Callable[[float, Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._on_result = on_result
        self._count = 0

    def append(self, record: Mapping[str, Any]) -> int:
        if record["event"] == "ResultReported":
            self._on_result(record["time"], record["metrics"])
        self._count += 1
        return self._count

    def commit(self, force: bool = False) -> int:
        return self._count

    def save_snapshot(self, capture: Callable[[], dict[str, Any]]) -> None:
        """Save nothing: the experiment is never restored, and snapshots would take time."""
