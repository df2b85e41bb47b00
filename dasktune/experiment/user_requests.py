"""The actions that the user's requests about single trials lead to."""

from __future__ import annotations

from dasktune.trial.actions import CheckpointTrial, RecallTrial, ResumeTrial, SuspendTrial
from dasktune.trial.events import (
    TrialPauseRequested,
    TrialUnpauseRequested,
)
from dasktune.trial.status import TRANSITIONS, TrialStatus
from dasktune.trial.trial import Trial


def action_for_request(
    trial: Trial, request: TrialPauseRequested | TrialUnpauseRequested
) -> RecallTrial | SuspendTrial | ResumeTrial | None:
    """Return the action that a request leads to.

    Parameters
    ----------
    trial : Trial
        The trial that the request is about.
    request : TrialPauseRequested or TrialUnpauseRequested
        The request.

    Returns
    -------
    action or None
        None if the request comes too late or a second time: a trial to pause is ending or is paused
        by the user already, or a trial to unpause is not paused by the user.
    """
    key, incarnation = trial.trial_id, trial.incarnation
    if isinstance(request, TrialUnpauseRequested):
        if trial.status.is_paused_by_user:
            return ResumeTrial(trial_id=key, incarnation=incarnation)
        return None
    # Only the worker can pause a trial that it trains or is about to train.
    if (trial.status, RecallTrial) in TRANSITIONS:
        return RecallTrial(trial_id=key, incarnation=incarnation, reason=request.reason)
    if (trial.status, SuspendTrial) in TRANSITIONS:
        return SuspendTrial(trial_id=key, incarnation=incarnation, reason=request.reason)
    return None


def checkpoint_action(trial: Trial) -> CheckpointTrial | None:
    """Return the action for a request to save a checkpoint; None if the trial does not train.

    A trial that leaves its worker saves a checkpoint anyway, if it needs one.
    """
    if trial.status is not TrialStatus.RUNNING:
        return None
    return CheckpointTrial(trial_id=trial.trial_id, incarnation=trial.incarnation)
