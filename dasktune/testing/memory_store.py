"""A store of an experiment that keeps everything in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dasktune.storage.journal.json_lines import encode
from dasktune.trial.checkpoint_record import CheckpointRecord


class MemoryStore:
    r"""Store of a simulated experiment, with the journal as the bytes that a file would hold.

    Examples
    --------
    >>> store = MemoryStore()
    >>> store.append({"event": "TimePassed", "time": 1.0})
    1
    >>> store.journal
    b'{"event":"TimePassed","time":1.0}\n'
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        #: Deleted checkpoints, oldest first.
        self.deleted: list[CheckpointRecord] = []
        #: ``{trial: paths of its kept checkpoints}``, for trials whose other ones were removed.
        self.settled: dict[str, frozenset[str]] = {}
        #: Texts of the failures of each trial.
        self.errors: dict[str, list[str]] = {}
        #: Configurations with values that JSON cannot represent, by trial.
        self.configs: dict[str, dict[str, Any]] = {}
        #: Exploits of population based training, and the row numbers of each trial's ancestry.
        self.policies: list[list[Any]] = []
        self.ancestries: dict[str, tuple[int, ...]] = {}
        #: The experiment's states, by position in the journal.
        self.snapshots: dict[int, bytes] = {}

    @property
    def epoch(self) -> int:
        """The number of the session: 1."""
        return 1

    @property
    def journal(self) -> bytes:
        """The whole journal."""
        return b"".join(self._lines)

    def append(self, record: Mapping[str, Any]) -> int:
        """Add a record and return its position."""
        self._lines.append(encode(record))
        return len(self._lines)

    def commit(self, force: bool = False) -> int:
        """Return the position of the last record; nothing has to be flushed."""
        return len(self._lines)

    def write_params(self, trial_dir: str, config: Mapping[str, Any], *, pickled: bool = False) -> None:
        """Keep a configuration if it has values that JSON cannot represent."""
        if pickled:
            self.configs[trial_dir] = dict(config)

    def write_policy(self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]) -> None:
        """Keep the exploits of population based training."""
        self.policies = [list(row) for row in rows]
        self.ancestries[trial_dir] = tuple(ancestry)

    def save_snapshot(self, capture: Callable[..., dict[str, Any]]) -> None:
        """Keep the experiment's state as the text that a file would hold."""
        self.snapshots[len(self._lines)] = encode(capture())

    @property
    def snapshot_seconds(self) -> float:
        """The duration of a snapshot: 0."""
        return 0.0

    def write_error(self, trial_dir: str, text: str) -> None:
        """Keep the text of a failure."""
        self.errors.setdefault(trial_dir, []).append(text)

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        """Record that a checkpoint was deleted."""
        self.deleted.append(record)

    def remove_stale_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Record which checkpoints were kept."""
        self.settled[trial_dir] = frozenset(kept)

    def close(self) -> None:
        """Do nothing."""
