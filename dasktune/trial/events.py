"""Events: what happened, in the past tense, reported to the experiment by executor and runner.

Every event carries `time`, in seconds of the runner's clock (epoch seconds on a real cluster,
virtual seconds in a simulation). An event of a worker also carries the `incarnation` that it
belongs to: the experiment ignores events of earlier incarnations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.user_error import ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEvent:
    """An event about one incarnation of one trial."""

    trial_id: str
    #: Counts the starts of the trial: from 1, and in a later session from its first number; see
    #: :meth:`dasktune.experiment.experiment_state.ExperimentState.next_incarnation`.
    incarnation: int
    #: Seconds on the runner's clock.
    time: float
    #: Position in the worker's stream of messages of this incarnation, from 1. 0 for an event that
    #: the driver reports about the worker.
    seq: int = 0


class OtherEvent:
    """An event about the experiment, or about a trial whatever its incarnation."""

    __slots__ = ()

    #: Seconds on the runner's clock.
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted(TrialEvent):
    """The worker has accepted the trial; user code is about to run."""

    #: Where it runs: the worker's address, or a slot of the simulator.
    worker: str
    #: The worker and the GPUs of each rank of a distributed trial, in the order of the ranks.
    ranks: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultReported(TrialEvent):
    """The trial reported metrics.

    If `awaits`, the worker is at a milestone and waits for an action: ``ContinueTraining``,
    ``SaveTrial``, ``PauseTrial``, ``ResizeTrial``, ``StopTrial`` or ``FailTrial``.
    """

    #: Flat metrics with the auto-filled fields. The dict must not be changed any more.
    metrics: dict[str, Any]
    #: The checkpoint that was committed with this result, if any.
    checkpoint: CheckpointRecord | None = None
    awaits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted(TrialEvent):
    """A checkpoint was committed without a result: it was saved on demand or at the end."""

    checkpoint: CheckpointRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded(TrialEvent):
    """User code returned, or its own result said ``done``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPaused(TrialEvent):
    """The trial has left its worker to be paused or resized; its resources are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStopped(TrialEvent):
    """The worker has carried out ``StopTrial`` or ``FailTrial``; the resources are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailed(TrialEvent):
    """User code raised."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLost(TrialEvent):
    """The worker died, hung or was disconnected; user code did not raise."""

    #: What the driver observed, for the user: "worker tcp://... left the cluster".
    reason: str
    #: Whether user code may have caused it. The loss of a retiring worker is not charged.
    charged: bool = True
    #: Whether other trials were lost with it. Any of them may have caused the loss, so it counts
    #: against none of them. After the second such loss each has to run alone.
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFailed(TrialEvent):
    """The trial's checkpoint in the storage is missing or damaged; the trial has left its worker.

    The driver has looked at the checkpoint, too. Neither user code nor the worker is to blame.
    """

    #: The path in the checkpoint's record. It may be the checkpoint of another trial.
    path: str
    #: What was found, for the user.
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed(TrialEvent):
    """The trial could not start on the workers that were chosen; no user code has run."""

    reason: str
    #: Whether it counts as a failure. False if another trial has taken the resources first, or the
    #: worker was only slow.
    charged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReturned(TrialEvent):
    """The worker returned a prefetched trial unstarted: the trial before it took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesGranted(OtherEvent):
    """The executor has room for this trial."""

    trial_id: str
    time: float
    #: The number of ranks with which the trial starts, if its request leaves a choice; otherwise 0.
    num_ranks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestionAsked(OtherEvent):
    """The driver requests a configuration from the searcher; a background thread computes it.

    What happens before the answer (`Suggested`) is reported to the search algorithm only after it.
    A search algorithm that answers at once is asked without this event.
    """

    #: The name of the trial.
    trial_id: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggested(OtherEvent):
    """The search algorithm answered a request for a configuration.

    There are three answers: a configuration; None with ``finished=False`` (none now, ask again when
    a trial has ended); None with ``finished=True`` (no more suggestions).
    """

    #: The ID of the new trial. If there is no configuration, no trial has this ID.
    trial_id: str
    config: dict[str, Any] | None
    time: float
    #: The trial's resource request; None exactly if `config` is None.
    resources: PlacementGroupFactory | None = None
    finished: bool = False
    #: Label of a variant of a grid, "lr=0.1,depth=3".
    tag: str = ""
    #: Names that the user's functions give to the trial and its directory. If empty, the ID is
    #: used.
    name: str = ""
    dirname: str = ""
    #: Whether JSON cannot hold the configuration, so that the store keeps it as a pickle.
    pickled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(OtherEvent):
    """The background thread answered a question of the scheduler."""

    #: The scheduler's number of the question.
    number: int
    #: A plain value, or None if the question raised.
    answer: Any
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLost(OtherEvent):
    """A checkpoint in the memory of the workers is lost, most often with its worker.

    This may happen at any time, whatever the status of its trial, and to a checkpoint that is not
    needed any more.
    """

    trial_id: str
    #: The path in the checkpoint's record.
    path: str
    #: What the driver observed, for the user.
    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStored(OtherEvent):
    """A checkpoint in memory was written to the storage, because its driver ends."""

    trial_id: str
    #: The record of the stored checkpoint.
    checkpoint: CheckpointRecord
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChanged(OtherEvent):
    """The workers of the cluster, or their resources, have changed."""

    #: The resources of each usable worker for this experiment, by address and then by name. They
    #: exclude what other users of the cluster hold, and resources without a limit.
    workers: Mapping[str, Mapping[str, float]]
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityChanged(OtherEvent):
    """The resources of all workers together have changed; for observers."""

    #: Sums over the workers by name of the resource, without resources that have no limit.
    capacity: Mapping[str, float]
    #: Number of the workers.
    num_workers: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed(OtherEvent):
    """Time passed without another event; for time budgets."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(OtherEvent):
    """The user wants the experiment to end."""

    reason: str
    time: float
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptRequested(OtherEvent):
    """The user ends the run, by a command or by a signal such as Ctrl-C; trials stay unfinished."""

    time: float
    #: Who issued the command, or whose process has got which signal.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStopRequested(OtherEvent):
    """The user wants one trial to end."""

    trial_id: str
    reason: str
    time: float
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPauseRequested(OtherEvent):
    """The user pauses one trial until `TrialUnpauseRequested`, whatever the policies decide."""

    trial_id: str
    reason: str
    time: float
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialUnpauseRequested(OtherEvent):
    """The user ends the pause of a trial."""

    trial_id: str
    time: float
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAddRequested(OtherEvent):
    """The user adds a trial with a configuration that no search algorithm has suggested."""

    trial_id: str
    config: dict[str, Any]
    resources: PlacementGroupFactory
    time: float
    #: Whether JSON cannot hold the configuration, so that the store keeps it as a pickle.
    pickled: bool = False
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCheckpointRequested(OtherEvent):
    """The user, or a callback, wants a running trial to save a checkpoint soon."""

    trial_id: str
    time: float
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequested(OtherEvent):
    """The user wants no trial to start until `ReleaseRequested`; running trials continue."""

    time: float
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequested(OtherEvent):
    """The user lets trials start again."""

    time: float
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequested(OtherEvent):
    """The user changes the experiment's share of the cluster; None leaves a value as it is."""

    weight: float | None
    priority: float | None
    yields_after: float | None = None
    time: float
    #: Who issued the command, as far as that is known.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareExceeded(OtherEvent):
    """The experiment has held more than its share for so long that this trial should yield."""

    trial_id: str
    incarnation: int
    #: What the driver observed, for the user.
    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomForRanks(OtherEvent):
    """There is room for all ranks of a trial that runs with fewer."""

    trial_id: str
    incarnation: int
    #: What the driver observed, for the user.
    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReopenRequested(OtherEvent):
    """The user wants a trial that has ended to continue or to start from its beginning."""

    trial_id: str
    #: Start from the beginning and forget the results.
    fresh: bool
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBegan(OtherEvent):
    """A new driver has taken over the experiment; trials that ran under the last one are lost."""

    time: float
    #: Number of the session: the epoch of its driver's journal.
    number: int = 0
    #: Number of trials that the search algorithm suggests in all sessions together; None if it is
    #: unknown.
    total_samples: int | None = None


#: All events of executors.
ExecutorEvent = TrialEvent | CheckpointLost | CheckpointStored | ClusterChanged | ShareExceeded

ExperimentEvent = TrialEvent | OtherEvent
