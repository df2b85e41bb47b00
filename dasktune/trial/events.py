"""Facts about trials, in the past tense, as the executor and the runner tell the experiment.

Every event carries `time`, in seconds of the runner's clock (epoch seconds on a real cluster,
virtual seconds in a simulation), and, when it comes from a worker, the `incarnation` that it
belongs to: the experiment ignores what an older incarnation still has to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory

__all__ = [
    "Answered",
    "AnyTrialEvent",
    "CapacityChanged",
    "CheckpointCommitted",
    "CheckpointLost",
    "CheckpointStored",
    "ClusterChanged",
    "ErrorInfo",
    "ExecutorEvent",
    "ExperimentEvent",
    "HoldRequested",
    "OtherEvent",
    "ReleaseRequested",
    "ResourcesGranted",
    "ResultReported",
    "SessionBegan",
    "StartFailed",
    "StopRequested",
    "Suggested",
    "SuggestionAsked",
    "TimePassed",
    "TrialAddRequested",
    "TrialEnded",
    "TrialEvent",
    "TrialFailed",
    "TrialLost",
    "TrialPauseRequested",
    "TrialPaused",
    "TrialReopenRequested",
    "TrialReturned",
    "TrialStarted",
    "TrialStopRequested",
    "TrialStopped",
    "TrialUnpauseRequested",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """What went wrong in user code, as text: the exception itself may exist on the worker only."""

    #: Last line of the traceback, "ValueError: no such loss".
    message: str
    #: The whole traceback as the worker printed it.
    traceback: str = ""
    #: The pickled exception, or empty if it cannot travel. For ``fail_fast="raise"``.
    pickled: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEvent:
    """Something that happened to one incarnation of one trial."""

    trial_id: str
    #: Counts the starts of the trial, from 1.
    incarnation: int
    #: Seconds on the runner's clock.
    time: float
    #: Position in the worker's stream of messages of this incarnation, from 1; 0 where the worker
    #: did not say it itself.
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted(TrialEvent):
    """The worker has taken the trial; user code is about to run."""

    #: Where it runs: the worker's address, or a slot of the simulator.
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultReported(TrialEvent):
    """The trial reported metrics.

    `awaits` says that the worker stands at a milestone and will not go on before it is answered
    with ``ContinueTraining``, ``SaveTrial``, ``PauseTrial``, ``ResizeTrial`` or ``StopTrial``.
    """

    #: One level of metrics with the auto-filled fields; nobody may change it any more.
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
    """User code came to its end, or its own result said ``done``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPaused(TrialEvent):
    """The worker obeyed ``PauseTrial`` or ``ResizeTrial``; what the trial held there is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStopped(TrialEvent):
    """The worker obeyed ``StopTrial``: user code is out and its resources are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailed(TrialEvent):
    """User code raised."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLost(TrialEvent):
    """The worker died, hung or was cut off; it is not the user's code that is to blame."""

    #: What was seen, for the user: "worker tcp://... left the cluster".
    reason: str
    #: Whether user code may have caused it. The loss of a retiring worker does not count at all.
    charged: bool = True
    #: Whether other trials were lost with it, any of which may be to blame: then it counts against
    #: none of them, but after the second such loss each has to run alone.
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed(TrialEvent):
    """The trial did not get going on the workers that were chosen; no user code has run."""

    reason: str
    #: Whether something is wrong. Not so if somebody else was quicker to take what it needs.
    charged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReturned(TrialEvent):
    """The worker gave the trial back unbegun: the one before it there took too long to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesGranted:
    """The executor has room for this trial."""

    trial_id: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestionAsked:
    """The search algorithm is asked for a configuration, and thinks about it beside the loop.

    What happens before the answer (`Suggested`) it hears only after that. One that answers at once
    is asked without this event.
    """

    #: What the trial will be called.
    trial_id: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggested:
    """The search algorithm was asked for a configuration and answered.

    Exactly one of three answers: a configuration; None with ``finished=False`` (no slot now, ask
    again when a trial has ended); None with ``finished=True`` (there will be no more).
    """

    #: What the trial is called, or would have been.
    trial_id: str
    config: dict[str, Any] | None
    time: float
    #: What a trial with this configuration needs; there is one exactly if there is a configuration.
    resources: PlacementGroupFactory | None = None
    finished: bool = False
    #: What a variant of a grid calls itself, "lr=0.1,depth=3".
    tag: str = ""
    #: What the user's functions call the trial and its directory; empty for its id.
    name: str = ""
    dirname: str = ""
    #: Whether JSON cannot tell the configuration, so that the store keeps it as a pickle.
    pickled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question of the scheduler's was thought about, off the driver's loop."""

    #: Which one, by the scheduler's own count.
    number: int
    #: A plain value, or None if whoever thought about it failed.
    answer: Any
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLost:
    """A checkpoint that was kept in memory is gone, most often with its worker.

    It may happen at any time, whatever its trial is doing, and to a checkpoint that is not needed
    any more.
    """

    trial_id: str
    #: Of its record.
    path: str
    #: What was seen, for the user.
    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStored:
    """A checkpoint that was kept in memory is in the storage now, because its driver leaves."""

    trial_id: str
    #: What is in the storage.
    checkpoint: CheckpointRecord
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChanged:
    """The cluster has other workers now, or they have more or less to give."""

    #: What each worker that may take trials has for this experiment, by address and then by name of
    #: the resource. What others have taken is not among it, nor is what has no limit.
    workers: Mapping[str, Mapping[str, float]]
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityChanged:
    """All workers together have more or less to give; for those who look at the experiment."""

    #: Sums over the workers, by name of the resource; what has no limit is not among it.
    capacity: Mapping[str, float]
    #: How many workers these are.
    num_workers: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """Nothing happened but time; for time budgets."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The user (or Ctrl-C) wants the experiment to end."""

    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStopRequested:
    """The user wants one trial to end."""

    trial_id: str
    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPauseRequested:
    """The user wants one trial to rest until `TrialUnpauseRequested`, whatever policies want."""

    trial_id: str
    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialUnpauseRequested:
    """The user lets a trial go on that was to rest."""

    trial_id: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAddRequested:
    """The user wants a trial with a configuration that no search has suggested."""

    trial_id: str
    config: dict[str, Any]
    resources: PlacementGroupFactory
    time: float
    #: Whether JSON cannot tell the configuration, so that the store keeps it as a pickle.
    pickled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequested:
    """The user wants nothing to start until `ReleaseRequested`; what runs goes on."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequested:
    """The user lets trials start again."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReopenRequested:
    """The user wants a trial to go on that has ended, or to begin anew."""

    trial_id: str
    #: Begin anew, without what came of it so far.
    fresh: bool
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBegan:
    """A new driver has taken the experiment over; what ran under the last one is lost."""

    time: float


#: What an executor has to tell of the trials that it runs.
AnyTrialEvent = (
    TrialStarted
    | ResultReported
    | CheckpointCommitted
    | TrialEnded
    | TrialPaused
    | TrialStopped
    | TrialFailed
    | TrialLost
    | TrialReturned
    | StartFailed
)

#: All that an executor has to tell.
ExecutorEvent = AnyTrialEvent | CheckpointLost | CheckpointStored | ClusterChanged

#: What is about no incarnation of a trial.
OtherEvent = (
    Answered
    | CapacityChanged
    | CheckpointLost
    | CheckpointStored
    | ClusterChanged
    | ResourcesGranted
    | Suggested
    | SuggestionAsked
    | TimePassed
    | SessionBegan
    | StopRequested
    | TrialStopRequested
    | TrialPauseRequested
    | TrialUnpauseRequested
    | TrialAddRequested
    | HoldRequested
    | ReleaseRequested
    | TrialReopenRequested
)

ExperimentEvent = AnyTrialEvent | OtherEvent
