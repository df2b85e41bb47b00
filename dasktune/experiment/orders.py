"""Orders to a trial's worker, made of what is known of the trial."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from dasktune.schedulers.decision import (
    Command,
    Continue,
    ExploitOther,
    Pause,
    Resize,
    ResizeWaiting,
    StopOther,
    Unpause,
)
from dasktune.trial.actions import (
    ChangeRequest,
    ContinueTraining,
    ExploitTrial,
    FailTrial,
    FinishTrial,
    PauseTrial,
    ResizeTrial,
    RestoreTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    UnpauseTrial,
)
from dasktune.trial.events import ErrorInfo
from dasktune.trial.milestone import Milestone
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = [
    "Order",
    "ends_anyway",
    "next_order",
    "to_fail",
    "to_go_on",
    "to_pause",
    "to_resize",
    "to_start",
    "to_stop",
]

#: What a command of a scheduler comes to.
Order = UnpauseTrial | ChangeRequest | StopTrial | FinishTrial | ExploitTrial

#: On no worker, but not at its end.
_WAITING = frozenset(
    {TrialStatus.PENDING, TrialStatus.PAUSED, TrialStatus.SUSPENDED, TrialStatus.SHELVED}
)


def to_start(trial: Trial, milestones: tuple[Milestone, ...]) -> StartTrial | RestoreTrial:
    """Return the order to begin, or to go on from a checkpoint if there is one."""
    checkpoint = trial.restore_point
    if checkpoint is None:
        return StartTrial(
            trial_id=trial.trial_id,
            incarnation=trial.incarnation,
            config=trial.config,
            resources=trial.request,
            milestones=milestones,
            next_checkpoint=trial.next_checkpoint,
        )
    return RestoreTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        config=trial.config,
        resources=trial.request,
        checkpoint=checkpoint,
        milestones=milestones,
        next_checkpoint=trial.next_checkpoint,
    )


def to_go_on(
    trial: Trial, milestones: tuple[Milestone, ...], decision: Continue
) -> ContinueTraining | SaveTrial:
    """Return the answer that a trial awaits at a milestone."""
    key, incarnation, seq = trial.trial_id, trial.incarnation, trial.awaiting_seq
    if decision.save:
        return SaveTrial(
            trial_id=key,
            incarnation=incarnation,
            seq=seq,
            milestones=milestones,
            kind=decision.kind,
            hold=decision.hold,
        )
    return ContinueTraining(
        trial_id=key,
        incarnation=incarnation,
        seq=seq,
        milestones=milestones,
        hold=decision.hold,
    )


def to_pause(trial: Trial, decision: Pause) -> PauseTrial:
    """Return the order to make room."""
    return PauseTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        save=decision.save,
        reason=decision.reason,
        kind=decision.kind,
        hold=decision.hold,
    )


def to_resize(trial: Trial, decision: Resize) -> ResizeTrial:
    """Return the order to leave and come back with other resources."""
    return ResizeTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        resources=decision.resources,
        save=decision.save,
        reason=decision.reason,
        kind=decision.kind,
        hold=decision.hold,
    )


def to_fail(trial: Trial, error: ErrorInfo) -> FailTrial:
    """Return the order to end in error, because of something that went wrong here."""
    return FailTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        reason=error.message,
        traceback=error.traceback,
    )


def to_stop(trial: Trial, reason: str, *, early: bool) -> StopTrial | FinishTrial:
    """Return the order to end; one that is on no worker only needs to be finished."""
    order = StopTrial if trial.status.is_active else FinishTrial
    return order(trial_id=trial.trial_id, incarnation=trial.incarnation, reason=reason, early=early)


def ends_anyway(trial: Trial) -> bool:
    """Whether a trial has ended, or will without another word."""
    return trial.status.is_final or trial.status in (TrialStatus.STOPPING, TrialStatus.FAILING)


def next_order(
    commands: deque[Command],
    trials: Mapping[str, Trial],
    to_exploit: Callable[[Trial, ExploitOther], ExploitTrial | None],
) -> Order | None:
    """Take commands until one comes to something, and return that; None if none does.

    Parameters
    ----------
    commands : deque of Command
        What a scheduler wants, in order. Some may come too late.
    trials : mapping of str to Trial
        All trials.
    to_exploit : callable
        Returns the order to go on from another trial, or None if that has nothing to go on from.
    """
    while commands:
        command = commands.popleft()
        trial = trials[command.trial_id]
        match command:
            case Unpause():
                if trial.status in (TrialStatus.PAUSED, TrialStatus.SHELVED):
                    return UnpauseTrial(trial_id=trial.trial_id, incarnation=trial.incarnation)
            case ResizeWaiting():
                if trial.status in _WAITING and trial.resources != command.resources:
                    return ChangeRequest(
                        trial_id=trial.trial_id,
                        incarnation=trial.incarnation,
                        resources=command.resources,
                    )
            case ExploitOther():
                waits = trial.status in _WAITING
                order = to_exploit(trial, command) if waits else None
                if order is not None:
                    return order
            case StopOther():  # pragma: no branch - these are all
                if not ends_anyway(trial):
                    return to_stop(trial, command.reason, early=True)
    return None
