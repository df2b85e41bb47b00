"""Commands about trials, in the imperative: what the experiment wants done.

The runner carries them out through its ports, in order. Each returns at once; the outcome is a
later event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.resources import PlacementGroupFactory

__all__ = [
    "Action",
    "AdmitOthers",
    "AnyTrialAction",
    "ChangeRequest",
    "ContinueTraining",
    "DeleteCheckpoint",
    "EndExperiment",
    "ExploitTrial",
    "FailTrial",
    "FinishTrial",
    "GiveUp",
    "PauseTrial",
    "RecallTrial",
    "ReopenTrial",
    "ResizeTrial",
    "RestoreTrial",
    "ResumeTrial",
    "SaveTrial",
    "StartTrial",
    "StopTrial",
    "SuspendTrial",
    "TrialAction",
    "UnpauseTrial",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAction:
    """Something to be done with one incarnation of one trial."""

    trial_id: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrial(TrialAction):
    """Run the trial from its beginning."""

    config: dict[str, Any] = field(repr=False)
    resources: PlacementGroupFactory
    #: Where the worker must wait for a decision.
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Number that the next checkpoint of the trial gets.
    next_checkpoint: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTrial(TrialAction):
    """Run the trial on from a checkpoint."""

    config: dict[str, Any] = field(repr=False)
    resources: PlacementGroupFactory
    checkpoint: CheckpointRecord
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    next_checkpoint: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueTraining(TrialAction):
    """Let the worker that waits at result `seq` go on to its next milestone."""

    seq: int
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Whether other trials may be told to go on from the trial as it was at this result.
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTrial(TrialAction):
    """Let the worker that waits at result `seq` save a checkpoint and then go on."""

    seq: int
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Where to; what is too large for the memory goes into the storage.
    kind: CheckpointKind = CheckpointKind.PERSISTENT
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitOthers(TrialAction):
    """Let other trials run beside one that had to be alone: it has made progress there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseTrial(TrialAction):
    """Take the trial off its worker, to go on later from its last checkpoint."""

    #: Save a checkpoint first, if the trainable can.
    save: bool = True
    #: Why, for the journal and the user.
    reason: str = ""
    #: Where to save it; what is too large for the memory goes into the storage.
    kind: CheckpointKind = CheckpointKind.MEMORY
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTrial(TrialAction):
    """Take the trial off its worker because the user wants it to rest.

    For the worker it is a pause. The rest may be long, so that what is saved goes into the storage.
    """

    #: Save a checkpoint first, if the trainable can.
    save: bool = True
    #: Why, for the journal and the user.
    reason: str = ""
    kind: CheckpointKind = CheckpointKind.PERSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendTrial(TrialAction):
    """Let the trial rest because the user wants it; its worker, if it has one, need not hear."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTrial(TrialAction):
    """End a rest that the user wanted: the trial waits again for what it had waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploitTrial(TrialAction):
    """Let the trial go on from another one's checkpoint, with another configuration.

    Where it runs, it is paused for that.
    """

    #: Whose checkpoint; the trial's own id if only its configuration changes.
    donor: str
    config: dict[str, Any] = field(repr=False)
    #: The donor's, of which `config` was made.
    old_config: dict[str, Any] = field(repr=False)
    #: Why, for the journal and the user.
    reason: str
    #: ``training_iteration`` that the trial had come to by itself.
    iteration: int
    #: ``training_iteration`` as of which the donor is cloned; None is now.
    donor_iteration: int | None = None
    #: What the trial goes on from; None for its own.
    checkpoint: CheckpointRecord | None = None
    #: Whether JSON cannot tell `config`, so that the store keeps it as a pickle.
    pickled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpauseTrial(TrialAction):
    """Let a paused trial wait for a place again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTrial(TrialAction):
    """Take the trial off its worker, to go on at once with other resources.

    For the worker it is a pause.
    """

    #: What it holds from its next start on.
    resources: PlacementGroupFactory
    #: Save a checkpoint first, if the trainable can.
    save: bool = True
    #: Why, for the journal and the user.
    reason: str = ""
    #: Where to save it; what is too large for the memory goes into the storage.
    kind: CheckpointKind = CheckpointKind.MEMORY
    #: As for `PauseTrial`.
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest(TrialAction):
    """Let a trial that is on no worker ask for other resources."""

    resources: PlacementGroupFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTrial(TrialAction):
    """End the trial on its worker; the result it waits at, or its next one, is its last."""

    reason: str
    #: Whether a scheduler ends it though it had further to go.
    early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailTrial(TrialAction):
    """End the trial on its worker, in ERROR: what it reported could not be judged."""

    reason: str
    #: Of what the user's stopper raised.
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTrial(TrialAction):
    """End a trial that is on no worker."""

    reason: str
    #: As for :class:`StopTrial`.
    early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp(TrialAction):
    """End a trial in ERROR: it has used up its retries."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReopenTrial(TrialAction):
    """Let a trial that is on no worker wait for a place again, even if it had ended."""

    #: Begin anew, without what came of it so far.
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCheckpoint:
    """Retention: remove a checkpoint from storage, once the journal says so durably.

    One in memory is let go at once: nobody will go on from it any more.
    """

    trial_id: str
    checkpoint: CheckpointRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class EndExperiment:
    """A stopper ends everything: no trial starts any more. Those that run have an order each."""

    reason: str


#: What moves a trial.
AnyTrialAction = (
    StartTrial
    | RestoreTrial
    | ContinueTraining
    | SaveTrial
    | AdmitOthers
    | PauseTrial
    | RecallTrial
    | SuspendTrial
    | ResumeTrial
    | ExploitTrial
    | UnpauseTrial
    | ResizeTrial
    | ChangeRequest
    | StopTrial
    | FailTrial
    | FinishTrial
    | GiveUp
    | ReopenTrial
)

Action = AnyTrialAction | DeleteCheckpoint | EndExperiment
