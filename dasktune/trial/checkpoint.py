"""What the driver knows of a checkpoint; its files are the storage's affair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckpointRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A committed checkpoint of a trial.

    Examples
    --------
    >>> record = CheckpointRecord(path="trials/a_00000/checkpoint_000003_i02", index=3, iteration=7)
    >>> CheckpointRecord.from_json(record.to_json()) == record
    True
    """

    #: Relative to the experiment's storage path.
    path: str
    #: Number of the checkpoint within the trial, from 0.
    index: int
    #: ``training_iteration`` of the result that it belongs to.
    iteration: int
    #: That result's metrics, flattened, for retention by score.
    metrics: dict[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "path": self.path,
            "index": self.index,
            "iteration": self.iteration,
            "metrics": self.metrics,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointRecord:
        """Make it from what :meth:`to_json` gave."""
        return cls(
            path=data["path"],
            index=data["index"],
            iteration=data["iteration"],
            metrics=dict(data["metrics"]),
        )
