"""Orders to a trial's worker, made of what is known of the trial."""

from __future__ import annotations

from dasktune.schedulers.decision import Pause
from dasktune.trial.actions import (
    ContinueTraining,
    FinishTrial,
    PauseTrial,
    RestoreTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
)
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

__all__ = ["to_go_on", "to_pause", "to_start", "to_stop"]


def to_start(trial: Trial, milestones: tuple[Milestone, ...]) -> StartTrial | RestoreTrial:
    """Return the order to begin, or to go on from the newest checkpoint if there is one."""
    checkpoint = trial.checkpoint
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
    trial: Trial, milestones: tuple[Milestone, ...], *, save: bool
) -> ContinueTraining | SaveTrial:
    """Return the answer that a trial awaits at a milestone."""
    order = SaveTrial if save else ContinueTraining
    return order(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        seq=trial.awaiting_seq,
        milestones=milestones,
    )


def to_pause(trial: Trial, decision: Pause) -> PauseTrial:
    """Return the order to make room."""
    return PauseTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        save=decision.save,
        reason=decision.reason,
    )


def to_stop(trial: Trial, reason: str) -> StopTrial | FinishTrial:
    """Return the order to end; one that is on no worker only needs to be finished."""
    order = StopTrial if trial.status.is_active else FinishTrial
    return order(trial_id=trial.trial_id, incarnation=trial.incarnation, reason=reason)
