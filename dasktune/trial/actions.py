"""Actions: the commands of the experiment, in the imperative.

The runner carries them out through its ports, in order. Each returns at once, and its outcome is a
later event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.resources import PlacementGroupFactory

# The base class of an action determines the port that carries it out: an executor knows
# `LeaveWorker` and `EndOnWorker`, not their subclasses, and no port is called for a `StatusChange`.
# The names and fields of the subclasses are part of the journal's format.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAction:
    """An action about one incarnation of one trial."""

    trial_id: str
    incarnation: int


class LeaveWorker(TrialAction):
    """Take the trial off its worker, to continue later from its last checkpoint."""

    __slots__ = ()

    #: Save a checkpoint first, if the trainable can.
    save: bool
    #: Why, for the journal and the user.
    reason: str
    #: Where to save it; a checkpoint that is too large for the memory goes into the storage.
    kind: CheckpointKind


class EndOnWorker(TrialAction):
    """End the trial on its worker; the result it waits at, or its next one, is its last."""

    __slots__ = ()

    reason: str


class StatusChange(TrialAction):
    """Change a trial that is on no worker, or whose worker need not know; no port is called."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrial(TrialAction):
    """Run the trial from its beginning."""

    config: dict[str, Any] = field(repr=False)
    resources: PlacementGroupFactory
    #: The results at which the worker must wait for a decision.
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Number of the trial's next checkpoint.
    next_checkpoint: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTrial(TrialAction):
    """Run the trial from a checkpoint."""

    config: dict[str, Any] = field(repr=False)
    resources: PlacementGroupFactory
    checkpoint: CheckpointRecord
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    next_checkpoint: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueTraining(TrialAction):
    """Let the worker that waits at result `seq` continue to its next milestone."""

    seq: int
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Whether a scheduler may later clone the trial as it was at this result.
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTrial(TrialAction):
    """Let the worker that waits at result `seq` save a checkpoint and continue."""

    seq: int
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Where to save it; a checkpoint that is too large for the memory goes into the storage.
    kind: CheckpointKind = CheckpointKind.PERSISTENT
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTrial(TrialAction):
    """Let the worker save a checkpoint, at the result where it waits or else with a later one.

    Unlike :class:`SaveTrial` it is no answer: the trial does not wait for it, and it may come at
    any time.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowTrial(TrialAction):
    """Let the trial leave its workers with its next checkpoint, to start again with all its ranks.

    It is no answer, and may come at any time. A trial that saves no checkpoint does not leave.
    """

    #: Why, for the journal and the user.
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitOthers(TrialAction):
    """Let other trials run beside a suspect one, which has made progress alone on its worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseTrial(LeaveWorker):
    """Pause the trial because its scheduler has decided so."""

    save: bool = True
    reason: str = ""
    kind: CheckpointKind = CheckpointKind.MEMORY
    #: As for :class:`ContinueTraining`.
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTrial(LeaveWorker):
    """Pause the trial because the user has requested it.

    The pause may be long, so the checkpoint goes into the storage.
    """

    save: bool = True
    reason: str = ""
    kind: CheckpointKind = CheckpointKind.PERSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldTrial(LeaveWorker):
    """Take the trial off its worker, because its resources are due to another experiment.

    The trial then waits for a place before the other trials. That may take long, so the checkpoint
    goes into the storage.
    """

    save: bool = True
    reason: str = ""
    kind: CheckpointKind = CheckpointKind.PERSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTrial(LeaveWorker):
    """Take the trial off its worker, to restart it at once with other resources."""

    #: The resources that the trial holds from its next start.
    resources: PlacementGroupFactory
    save: bool = True
    reason: str = ""
    kind: CheckpointKind = CheckpointKind.MEMORY
    #: As for :class:`ContinueTraining`.
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTrial(EndOnWorker):
    """End the trial on its worker, with the status TERMINATED."""

    reason: str
    #: Whether a scheduler ends it before its training is complete.
    early: bool = False
    #: The rung at which the trial was compared, and the value that would have been enough there.
    rung: float | None = None
    cutoff: float | None = None
    #: Whether user code is interrupted at once, and not only if it has not ended in time.
    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailTrial(EndOnWorker):
    """End the trial on its worker, with the status ERROR: the user's stopper raised."""

    reason: str
    #: The traceback of the stopper's exception.
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendTrial(StatusChange):
    """Count the trial as paused by the user; its worker, if any, is pausing it already."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTrial(StatusChange):
    """End the user's pause: the trial is pending, or paused by its scheduler, as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploitTrial(StatusChange):
    """Let the trial resume from another one's checkpoint, with another configuration.

    If it runs, a :class:`PauseTrial` follows.
    """

    #: The trial with the checkpoint; the trial's own id if only its configuration changes.
    donor: str
    config: dict[str, Any] = field(repr=False)
    #: The donor's configuration, from which `config` was derived.
    old_config: dict[str, Any] = field(repr=False)
    #: Why, for the journal and the user.
    reason: str
    #: The ``training_iteration`` that the trial had reached before this exploit.
    iteration: int
    #: Clone the donor as it was at this ``training_iteration``; None clones it as it is now.
    donor_iteration: int | None = None
    #: The checkpoint from which the trial resumes; None is its own newest one.
    checkpoint: CheckpointRecord | None = None
    #: Whether JSON cannot hold `config`, so that the store keeps it as a pickle.
    pickled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpauseTrial(StatusChange):
    """Let a trial that its scheduler has paused wait for a place again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest(StatusChange):
    """Change the resources that a trial on no worker will need."""

    resources: PlacementGroupFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTrial(StatusChange):
    """End a trial that is on no worker."""

    reason: str
    #: As for :class:`StopTrial`.
    early: bool = False
    rung: float | None = None
    cutoff: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp(StatusChange):
    """End a trial with the status ERROR: it has no tries left."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReopenTrial(StatusChange):
    """Let a trial that is on no worker wait for a place again, even if it had ended."""

    #: Start from the beginning and forget the results.
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCheckpoint:
    """Delete a checkpoint that no trial will resume from.

    In the storage it is deleted once this action is durable in the journal. Otherwise a driver that
    dies in between would be restored to a state that needs the checkpoint. One in memory does not
    outlive the driver and is deleted at once.
    """

    trial_id: str
    checkpoint: CheckpointRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class EndExperiment:
    """End the experiment because a stopper demands it: no trial starts any more.

    Each trial that runs gets an action of its own.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetShare:
    """Change the experiment's share of the cluster; None leaves a value as it is."""

    weight: float | None
    priority: float | None
    yields_after: float | None = None


Action = TrialAction | DeleteCheckpoint | EndExperiment | SetShare
