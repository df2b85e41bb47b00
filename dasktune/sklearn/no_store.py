"""A record that is not kept: a search that ends with its process has nothing to go on from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dasktune.trial.checkpoint import CheckpointRecord

__all__ = ["NoStore"]


class NoStore:
    """Counts the records of an experiment and forgets them.

    Examples
    --------
    >>> store = NoStore()
    >>> store.append({"event": "TimePassed"}), store.append({"event": "TimePassed"})
    (1, 2)
    >>> store.commit()
    2
    """

    def __init__(self) -> None:
        self._position = 0

    def append(self, record: Mapping[str, Any]) -> int:
        """Count a record."""
        self._position += 1
        return self._position

    def commit(self, force: bool = False) -> int:
        """Return the number of records: none can be lost."""
        return self._position

    def write_params(
        self, trial_dir: str, config: Mapping[str, Any], *, pickled: bool = False
    ) -> None:
        """Forget a configuration."""

    def write_policy(
        self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]
    ) -> None:
        """Forget who was cloned from whom."""

    def save_snapshot(self, capture: Callable[[], dict[str, Any]]) -> None:
        """Make none."""

    @property
    def snapshot_seconds(self) -> float:
        """How long a snapshot takes: no time."""
        return 0.0

    def write_error(self, trial_dir: str, text: str) -> None:
        """Forget the text of a failure."""

    def settle_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Remove nothing."""

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        """Do nothing: nobody saves."""

    def close(self) -> None:
        """Do nothing."""
