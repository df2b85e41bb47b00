"""What the driver knows of a checkpoint; its files are the storage's affair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dasktune.errors import StorageError
from dasktune.trial.names import checkpoint_place

__all__ = ["CheckpointKind", "CheckpointRecord"]


class CheckpointKind(str, Enum):
    """Where a checkpoint is, and so what it survives.

    Examples
    --------
    >>> CheckpointKind("memory")
    <CheckpointKind.MEMORY: 'memory'>
    """

    #: In the experiment's storage.
    PERSISTENT = "persistent"
    #: In the memory of the workers, as Dask's data: it is gone with its worker, or its driver.
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

    #: Relative to the experiment's storage path. One in memory is not there, but no other ever is.
    path: str
    #: Number of the checkpoint within the trial, from 0.
    index: int
    #: ``training_iteration`` of the result that it belongs to.
    iteration: int
    #: That result's metrics, flattened, for retention by score.
    metrics: dict[str, Any] = field(default_factory=dict, repr=False)
    kind: CheckpointKind = CheckpointKind.PERSISTENT

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "path": self.path,
            "index": self.index,
            "iteration": self.iteration,
            "metrics": self.metrics,
            **({"kind": self.kind.value} if self.kind is CheckpointKind.MEMORY else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointRecord:
        """Make it from what :meth:`to_json` gave, or from what somebody wrote in its stead.

        Raises
        ------
        StorageError
            If it is no such record, or its path is none that dasktune gives to a checkpoint.
        """
        try:
            path, index, iteration = data["path"], data["index"], data["iteration"]
            metrics, kind = data["metrics"], CheckpointKind(data.get("kind", "persistent"))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise StorageError(f"no record of a checkpoint: {data!r:.80} ({error!r})") from error
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
        return cls(path=path, index=index, iteration=iteration, metrics=dict(metrics), kind=kind)
