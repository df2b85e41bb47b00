"""The ports between the runner and its environment: executor, clock, store, observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dasktune.experiment import ExperimentMachine, HandleResult
from dasktune.placement import ClusterShares
from dasktune.trial import actions
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import ExecutorEvent, ExperimentEvent
from dasktune.trial.resources import ElasticPlacement, PlacementGroupFactory


class Clock(Protocol):
    """The source of the runner's time."""

    def now(self) -> float:
        """Return seconds; policies use only differences and order."""


class SystemClock:
    """Epoch seconds that never jump: the epoch is read once, and then the monotonic clock."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._offset + time.monotonic()


class TrialExecutor(Protocol):
    """The port to the execution framework.

    Commands return at once. Their outcomes are events, which :meth:`next_events` returns in order
    for each trial. After a trial's terminal event (ended, stopped, paused, failed, lost, start
    failed, restore failed, returned) no other event of the same incarnation follows, and its
    resources are free.

    A command may reach the executor after its trial's terminal event has happened there, but before
    the runner has received it. The executor ignores such a command.

    `ClusterChanged` reports the workers' resources when they are first known, and whenever they
    change, after the losses that come with the change. A cluster without any worker is not
    reported.

    `CheckpointLost` may come at any time. It comes before the `StartFailed` of a trial that was to
    resume from the checkpoint. `ShareExceeded` may name a trial that has ended meanwhile.
    """

    def has_resources(self, request: PlacementGroupFactory) -> bool:
        """Whether a trial with this request could start now."""

    def has_room_instead(self, requests: Mapping[str, PlacementGroupFactory]) -> bool:
        """Whether all requests would fit if their trials, which run, released their resources."""

    def worker_resources(self) -> Mapping[str, Mapping[str, float]]:
        """Return the resources that each worker reported last; empty if they are not known."""

    def cluster_shares(self) -> ClusterShares | None:
        """Return what each experiment on the cluster holds and waits for; None if it is alone.

        Safe in any thread.
        """

    def note_waiting(self, request: PlacementGroupFactory | None, count: int) -> None:
        """Note how many trials with this request would start now if they had room.

        An adaptive cluster may start workers for them. None and 0 mean that no trial waits.
        """

    def note_growing(self, requests: Mapping[str, ElasticPlacement]) -> None:
        """Note which trials, of those that run, would start again with these larger requests.

        An adaptive cluster may start workers for them, and keeps those that it has.
        """

    def can_prefetch(self, request: PlacementGroupFactory) -> bool:
        """Whether a trial with this request may be started now although there is no room.

        The trial then waits on the worker for another one that is expected to end within
        milliseconds. The worker may return it without having started it (`TrialReturned`).
        """

    def start_trial(self, action: actions.StartTrial) -> None:
        """Run a trial from its beginning."""

    def restore(self, action: actions.RestoreTrial) -> None:
        """Run a trial from a checkpoint."""

    def continue_training(self, action: actions.ContinueTraining) -> None:
        """Let a trial that waits at a milestone continue."""

    def save(self, action: actions.SaveTrial) -> None:
        """Let a trial that waits at a milestone save a checkpoint and continue."""

    def checkpoint_trial(self, action: actions.CheckpointTrial) -> None:
        """Let a trial save a checkpoint at the result where it waits, or else with a later one."""

    def admit_others(self, action: actions.AdmitOthers) -> None:
        """Let other trials run on the worker of a trial that was placed there alone."""

    def grow_trial(self, action: actions.GrowTrial) -> None:
        """Let a trial leave with its next checkpoint; it is then reported as lost, not charged."""

    def pause_trial(self, action: actions.LeaveWorker) -> None:
        """Take a trial off its worker, to continue later."""

    def stop_trial(self, action: actions.EndOnWorker) -> None:
        """End a trial on its worker."""

    def set_share(self, action: actions.SetShare) -> None:
        """Change the experiment's share of the cluster."""

    def withdraw(self) -> None:
        """Let every trial save and leave its worker; each is reported as lost or returned."""

    def store_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Write a checkpoint in memory to the storage; the outcome is an event."""

    def drop_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Delete a checkpoint in memory, which may be lost already."""

    def next_events(self, timeout: float) -> Sequence[ExecutorEvent]:
        """Return the events since the last call; wait at most `timeout` seconds for the first."""

    def wake(self) -> None:
        """End the current or else the next wait of :meth:`next_events`.

        Safe in any thread, and in a signal handler that has interrupted any method of this class.
        """

    def acknowledge(self, trial_id: str, incarnation: int, seq: int) -> None:
        """Acknowledge the messages up to `seq`, which are durable: the worker may forget them."""

    def close(self) -> None:
        """Stop the trials that still run, and release all resources."""


class BackgroundRunner(Protocol):
    """Computes answers of policies one after the other, beside the runner's loop."""

    def submit(self, name: Hashable, question: Callable[[], Any]) -> None:
        """Queue a question; returns at once."""

    def answers(self) -> Sequence[tuple[Any, Any]]:
        """Return the names and answers of the questions that were answered since the last call.

        The answer is the return value of the question. It is None if the question raised; the
        exception was logged.
        """

    def close(self) -> None:
        """Discard the questions that have not begun."""


class StorePort(Protocol):
    """The port to the storage of an experiment."""

    @property
    def epoch(self) -> int:
        """The number of this driver's session, which no other driver of the experiment has."""

    def append(self, record: Mapping[str, Any]) -> int:
        """Add a record to the journal and return its position."""

    def commit(self, force: bool = False) -> int:
        """Make the appended records durable when that is due, and return the durable position."""

    def write_params(self, trial_dir: str, config: Mapping[str, Any], *, pickled: bool = False) -> None:
        """Write a trial's configuration as text for people, and also pickled if requested."""

    def write_policy(self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]) -> None:
        """Write the experiment's exploits, and the indices of the exploits that led to a trial."""

    def save_snapshot(self, capture: Callable[..., dict[str, Any]]) -> None:
        """Write the state after all records so far, once these are durable."""

    @property
    def snapshot_seconds(self) -> float:
        """How long the last snapshot took to be captured and written."""

    def write_error(self, trial_dir: str, text: str) -> None:
        """Write a trial's failure as text for people."""

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint's files once all records so far are durable."""

    def remove_stale_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Fence a trial that has ended, and delete its checkpoints except the `kept` ones."""

    def close(self) -> None:
        """Commit the journal, and finish the background work."""


class Observer(Protocol):
    """Watches an experiment. An observer that raises is logged and not called again."""

    def on_event(self, event: ExperimentEvent, handled: HandleResult, experiment: ExperimentMachine) -> None:
        """Observe an event and its outcome."""

    def on_end(self, experiment: ExperimentMachine) -> None:
        """Observe the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The ports of the place where trials run.

    Parameters
    ----------
    executor : TrialExecutor
        Runs the trials.
    clock : Clock
        The source of the time at that place.
    background : callable
        Makes a background runner, as for `TrialRunner`.
    """

    executor: TrialExecutor
    clock: Clock
    background: Callable[[Callable[[], None]], BackgroundRunner]


def dispatch(  # noqa: C901, PLR0912 - one branch for each kind of action
    action: actions.Action, executor: TrialExecutor, store: StorePort
) -> None:
    """Call the port that carries an action out; returns at once.

    Parameters
    ----------
    action : Action
        The action.
    executor : TrialExecutor
        Carries out actions on trials and on checkpoints in memory.
    store : StorePort
        Carries out actions on checkpoints in the storage.
    """
    match action:
        case actions.ContinueTraining():
            executor.continue_training(action)
        case actions.StartTrial():
            executor.start_trial(action)
        case actions.RestoreTrial():
            executor.restore(action)
        case actions.SaveTrial():
            executor.save(action)
        case actions.CheckpointTrial():
            executor.checkpoint_trial(action)
        case actions.AdmitOthers():
            executor.admit_others(action)
        case actions.GrowTrial():
            executor.grow_trial(action)
        case actions.LeaveWorker():
            executor.pause_trial(action)
        case actions.EndOnWorker():
            executor.stop_trial(action)
        case actions.SetShare():
            executor.set_share(action)
        case actions.DeleteCheckpoint() if action.checkpoint.kind is CheckpointKind.MEMORY:
            executor.drop_checkpoint(action.checkpoint)
        case actions.DeleteCheckpoint():
            store.delete_checkpoint(action.checkpoint)
        case actions.StatusChange() | actions.EndExperiment():
            pass  # Only the experiment's own state has changed.
        case _:
            raise TypeError(f"no port carries out {type(action).__name__}")
