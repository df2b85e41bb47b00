"""What the runner needs of the world: an executor, a clock, a store, and who watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Protocol

from dasktune.experiment import Experiment
from dasktune.trial.actions import (
    Action,
    AdmitOthers,
    ContinueTraining,
    FailTrial,
    PauseTrial,
    RecallTrial,
    ResizeTrial,
    RestoreTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
)
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import ExecutorEvent, ExperimentEvent
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Clock", "ExperimentStore", "Observer", "SystemClock", "Thinker", "TrialExecutor"]


class Clock(Protocol):
    """Where the runner's time comes from."""

    def now(self) -> float:
        """Return seconds; only differences and order have a meaning to policies."""


class SystemClock:
    """Epoch seconds that never jump: the epoch is read once, and time goes on monotonically."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._offset + time.monotonic()


class TrialExecutor(Protocol):
    """The port to the execution framework.

    Commands return at once; what comes of them is told by :meth:`next_events`, in order for each
    trial. After a trial's terminal event (ended, stopped, paused, failed, lost, start failed) no
    other comes from the same incarnation, and its resources are free.

    What the workers have is told when it is known first, and whenever it has changed, after the
    losses that come with it; but not that there is no worker at all.

    That a checkpoint in memory is lost may be told at any time. It is told before a trial that was
    to go on from it is told not to have started.
    """

    def has_resources(self, request: PlacementGroupFactory) -> bool:
        """Whether a trial that needs this could be started now."""

    def offers(self) -> Mapping[str, Mapping[str, float]]:
        """Return what the workers were last told to have; empty where nobody knows."""

    def note_waiting(self, request: PlacementGroupFactory | None, count: int) -> None:
        """Hear how many trials like this would start now if there was room; None and 0 for none.

        A cluster that can grow may make room.
        """

    def takes_ahead(self, request: PlacementGroupFactory) -> bool:
        """Whether a trial that needs this may be started now although there is no room.

        It then follows, without another word, one that is expected to end within milliseconds. It
        may be given back unbegun (`TrialReturned`).
        """

    def start_trial(self, action: StartTrial) -> None:
        """Run a trial from its beginning."""

    def restore(self, action: RestoreTrial) -> None:
        """Run a trial on from a checkpoint."""

    def continue_training(self, action: ContinueTraining) -> None:
        """Let a trial that waits at a milestone go on."""

    def save(self, action: SaveTrial) -> None:
        """Let a trial that waits at a milestone save a checkpoint and go on."""

    def admit_others(self, action: AdmitOthers) -> None:
        """Let others run on the worker of a trial that was placed there to be alone."""

    def pause_trial(self, action: PauseTrial | ResizeTrial | RecallTrial) -> None:
        """Take a trial off its worker, to go on later, or at once with other resources."""

    def stop_trial(self, action: StopTrial | FailTrial) -> None:
        """End a trial on its worker."""

    def withdraw(self) -> None:
        """Have every trial save what it can and leave: each is told to be lost or returned."""

    def store_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Write a checkpoint in memory to the storage; it is told to be stored or lost."""

    def drop_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Let go of a checkpoint in memory, which may be lost already."""

    def next_events(self, timeout: float) -> Sequence[ExecutorEvent]:
        """Return what has happened, waiting at most `timeout` seconds for the first event."""

    def wake(self) -> None:
        """Let :meth:`next_events` wait no longer, now or when it is called next; for any thread."""

    def acknowledge(self, trial_id: str, incarnation: int, seq: int) -> None:
        """Say that everything up to `seq` stands in the journal and need not be kept."""

    def close(self) -> None:
        """Stop what still runs and give everything back."""


class Thinker(Protocol):
    """Who thinks about questions, one after the other, while the runner goes on."""

    def ask(self, name: Hashable, question: Callable[[], Any]) -> None:
        """Take a question; returns at once."""

    def answers(self) -> Sequence[tuple[Any, Any]]:
        """Return the names of those that were thought about since, with what came of them.

        That is what a question has returned, or None if it has raised, which was logged.
        """

    def close(self) -> None:
        """Think about none of the others any more."""


class ExperimentStore(Protocol):
    """Where the record of an experiment goes."""

    def append(self, record: Mapping[str, Any]) -> int:
        """Add a record to the journal and return its position."""

    def commit(self, force: bool = False) -> int:
        """Make what was appended safe as soon as it is due, and return the safe position."""

    def write_params(
        self, trial_dir: str, config: Mapping[str, Any], *, pickled: bool = False
    ) -> None:
        """Write a trial's configuration where a person can read it, and pickled if asked to."""

    def write_policy(
        self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]
    ) -> None:
        """Write who was cloned from whom, and which of these rows have led to a trial."""

    def save_snapshot(self, capture: Callable[[], dict[str, Any]]) -> None:
        """Keep the state that the records so far have led to, as soon as they are safe."""

    @property
    def snapshot_seconds(self) -> float:
        """How long the last snapshot took to be made and written."""

    def write_error(self, trial_dir: str, text: str) -> None:
        """Write a trial's failure where a person can read it."""

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        """Remove a checkpoint's files once all records so far are safe."""

    def settle_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Remove all checkpoints of a trial that has ended but these, and what comes later."""

    def close(self) -> None:
        """Commit, and finish what runs in the background."""


class Observer(Protocol):
    """Watches an experiment. One that raises is logged and not called again."""

    def on_event(
        self, event: ExperimentEvent, actions: Sequence[Action], experiment: Experiment
    ) -> None:
        """See an event after it was handled, and what was decided."""

    def on_end(self, experiment: Experiment) -> None:
        """See the end of the experiment."""
