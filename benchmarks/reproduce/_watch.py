"""Looks on while an experiment is simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.testing.memory_store import MemoryStore

__all__ = ["Watch"]


class Watch(MemoryStore):
    """A store that shows each result, in the order of arrival, and forgets everything.

    Parameters
    ----------
    look : callable
        Is given the virtual time of each result, and its metrics.
    """

    def __init__(self, look: Callable[[float, Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._look = look
        self._count = 0

    def append(self, record: Mapping[str, Any]) -> int:
        if record["event"] == "ResultReported":
            self._look(record["time"], record["metrics"])
        self._count += 1
        return self._count

    def commit(self, force: bool = False) -> int:
        return self._count

    def save_snapshot(self, capture: Callable[[], dict[str, Any]]) -> None:
        """Save none: nobody restores it, and hours of virtual time would be full of them."""
