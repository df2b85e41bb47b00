"""An experiment store that keeps nothing, for searches that cannot be resumed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dasktune.trial.checkpoint_record import CheckpointRecord


class NullStore:
    """Counts the records of an experiment and discards them.

    Examples
    --------
    >>> store = NullStore()
    >>> store.append({"event": "TimePassed"}), store.append({"event": "TimePassed"})
    (1, 2)
    >>> store.commit()
    2
    """

    def __init__(self) -> None:
        self._position = 0

    @property
    def epoch(self) -> int:
        """The number of the session: 1."""
        return 1

    def append(self, record: Mapping[str, Any]) -> int:
        """Count a record."""
        self._position += 1
        return self._position

    def commit(self, force: bool = False) -> int:
        """Return the number of records; all of them count as durable."""
        return self._position

    def write_params(self, trial_dir: str, config: Mapping[str, Any], *, pickled: bool = False) -> None:
        """Discard a configuration."""

    def write_policy(self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]) -> None:
        """Discard the exploits of a trial."""

    def save_snapshot(self, capture: Callable[..., dict[str, Any]]) -> None:
        """Do nothing: there is no snapshot."""

    @property
    def snapshot_seconds(self) -> float:
        """Seconds that a snapshot takes: 0."""
        return 0.0

    def write_error(self, trial_dir: str, text: str) -> None:
        """Discard the text of a failure."""

    def remove_stale_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Do nothing: trials save no checkpoints."""

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        """Do nothing: trials save no checkpoints."""

    def close(self) -> None:
        """Do nothing."""
