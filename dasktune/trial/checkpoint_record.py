"""The driver's record of a checkpoint. Its files are handled in `dasktune.storage`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.trial.names import checkpoint_place

#: Longest time of a write that is believed, in seconds.
_MOST_SECONDS: Final = 1e9


class CheckpointKind(str, Enum):
    """Where a checkpoint is kept.

    Examples
    --------
    >>> CheckpointKind("memory")
    <CheckpointKind.MEMORY: 'memory'>
    """

    #: In the experiment's storage.
    PERSISTENT = "persistent"
    #: In the memory of the workers, as Dask data. It is lost with its worker or with the driver.
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A committed checkpoint of a trial.

    Examples
    --------
    >>> record = CheckpointRecord(path="trials/a_00000/checkpoint_000003_i02", index=3, iteration=7)
    >>> CheckpointRecord.from_json(record.to_json()) == record
    True
    """

    #: Relative to the experiment's storage path. It also identifies a checkpoint in memory, which
    #: has no files there.
    path: str
    #: Number of the checkpoint within the trial, from 0.
    index: int
    #: ``training_iteration`` of the result that it belongs to.
    iteration: int
    #: That result's metrics, flattened, for retention by score.
    metrics: dict[str, Any] = field(default_factory=dict, repr=False)
    kind: CheckpointKind = CheckpointKind.PERSISTENT
    #: Seconds that the trial's worker needed to write it; None if unknown, or in memory.
    seconds: float | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {
            "path": self.path,
            "index": self.index,
            "iteration": self.iteration,
            "metrics": self.metrics,
            **({"kind": self.kind.value} if self.kind is CheckpointKind.MEMORY else {}),
            **({} if self.seconds is None else {"seconds": round(self.seconds, 6)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointRecord:
        """Return the record in plain values of :meth:`to_json`, which may be untrusted.

        Raises
        ------
        StorageError
            If the values are not a record, or the path is not a checkpoint's.
        """
        try:
            path, index, iteration = data["path"], data["index"], data["iteration"]
            metrics, kind = data["metrics"], CheckpointKind(data.get("kind", "persistent"))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise StorageError(f"not a record of a checkpoint: {data!r:.80} ({error!r})") from error
        place = checkpoint_place(path)
        if place is None or place[1] != index:
            raise StorageError(
                "the path of a checkpoint must be trials/<trial>/checkpoint_<index>_i<incarnation>"
                f", got {path!r:.80} for index {index!r:.20}"
            )
        counts = type(index) is int and type(iteration) is int and 0 <= iteration < 2**63
        if not counts or not isinstance(metrics, Mapping):
            raise StorageError(
                "a checkpoint must have a count as its iteration and an object of metrics, got "
                f"iteration {iteration!r:.20} and metrics {metrics!r:.80}"
            )
        # Only shown, so an unusable value is no error.
        given: Any = data.get("seconds")
        seconds = float(given) if type(given) in (int, float) and 0 <= given < _MOST_SECONDS else None
        return cls(
            path=path, index=index, iteration=iteration, metrics=dict(metrics), kind=kind, seconds=seconds
        )
