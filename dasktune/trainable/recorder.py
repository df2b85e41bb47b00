"""Sends results and checkpoints to the driver, and obeys what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dasktune.errors import ConfigError
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.trainable.gate import Gate
from dasktune.trainable.messages import Committed, PauseNow, Reported, SaveAndGoOn, StopNow
from dasktune.trainable.outbox import Outbox
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.metrics import lookup

__all__ = ["Done", "Ending", "Recorder"]


@dataclass(frozen=True, slots=True)
class Done:
    """The trial's own result said ``done``."""


#: Why no further result of this run is recorded.
Ending = Done | PauseNow | StopNow


class Recorder:
    """The way of results and checkpoints from user code to the driver.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    outbox : Outbox
        Where messages go.
    gate : Gate
        Where user code waits.
    store : CheckpointStore
        Where checkpoints go.
    fence : callable
        Called right before a checkpoint comes into being; raises if this worker may not commit.
    """

    def __init__(
        self,
        spec: TrialSpec,
        *,
        outbox: Outbox,
        gate: Gate,
        store: CheckpointStore,
        fence: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._outbox = outbox
        self._gate = gate
        self._store = store
        self._fence = fence
        self._next_index = spec.next_checkpoint
        #: Newest committed checkpoint, at first the one that the trial goes on from.
        self.newest: CheckpointRecord | None = spec.checkpoint
        #: Set once, with the last result.
        self.ending: Ending | None = None

    def check(self, result: Mapping[str, Any]) -> None:
        """Refuse a result that lacks what somebody decides by.

        Raises
        ------
        ConfigError
            If a required metric is missing.
        """
        for name in self._spec.required_metrics:
            if lookup(result, name) is None:
                raise ConfigError(
                    f"metrics must hold {name!r} in every result, because the experiment is "
                    f"decided by it, got {sorted(result)}. Report it, or name another metric."
                )

    def commit(self, checkpoint: Checkpoint, result: Mapping[str, Any]) -> CheckpointRecord:
        """Copy a checkpoint that belongs to `result` to storage.

        Raises
        ------
        Exception
            Whatever the fence raises, or the storage: then there is no checkpoint.
        """
        self.newest = self._store.commit(
            checkpoint,
            trial_dir=self._spec.trial_dir,
            index=self._next_index,
            incarnation=self._spec.incarnation,
            iteration=result["training_iteration"],
            metrics=result,
            fence=self._fence,
        )
        self._next_index += 1
        return self.newest

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint as user code sees it."""
        return None if self.newest is None else self._store.load(self.newest)

    def publish(self, result: Mapping[str, Any], checkpoint: CheckpointRecord | None) -> bool:
        """Send a result, wait if it is a milestone, and set `ending` if it was the last one.

        Returns
        -------
        bool
            Whether the driver wants a checkpoint of this moment before user code goes on.
        """
        metrics = dict(result)
        if checkpoint is not None:
            metrics["checkpoint_dir_name"] = checkpoint.path.rpartition("/")[2]
            metrics["should_checkpoint"] = True
        done = bool(metrics["done"])
        # With an order to end there is nothing left to decide.
        awaits = not done and self._gate.order is None and self._gate.is_milestone(metrics)
        make = partial(self._reported, metrics=metrics, checkpoint=checkpoint, awaits=awaits)
        self._outbox.put(make, bounded=True, urgent=awaits)
        if done:
            self.ending = Done()
            return False
        answer = self._gate.wait() if awaits else self._gate.order
        if isinstance(answer, PauseNow | StopNow):
            self.ending = answer
        return isinstance(answer, SaveAndGoOn)

    def announce(self, checkpoint: CheckpointRecord) -> None:
        """Tell of a checkpoint that was committed after its result had been sent."""
        self._outbox.put(lambda seq: Committed(seq=seq, checkpoint=checkpoint))

    def _reported(
        self,
        seq: int,
        *,
        metrics: dict[str, Any],
        checkpoint: CheckpointRecord | None,
        awaits: bool,
    ) -> Reported:
        if awaits:
            self._gate.expect(seq)
        return Reported(seq=seq, metrics=metrics, checkpoint=checkpoint, awaits=awaits)
