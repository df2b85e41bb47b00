"""What the user wants of single trials while the experiment runs."""

from __future__ import annotations

from dasktune.trial.actions import RecallTrial, ResumeTrial, SuspendTrial
from dasktune.trial.events import TrialPauseRequested, TrialUnpauseRequested
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["order_for"]

#: Where a worker has to be told that its trial is to rest.
_TO_BE_RECALLED = frozenset(
    {TrialStatus.STARTING, TrialStatus.RESTORING, TrialStatus.RUNNING, TrialStatus.SAVING}
)

#: Where it has nobody to be told, or has been told to leave already.
_TO_BE_SUSPENDED = frozenset(
    {TrialStatus.PENDING, TrialStatus.PAUSED, TrialStatus.PAUSING, TrialStatus.RESIZING}
)


def order_for(
    trial: Trial, wish: TrialPauseRequested | TrialUnpauseRequested
) -> RecallTrial | SuspendTrial | ResumeTrial | None:
    """Return what a wish comes to; None if it comes too late, or twice.

    Parameters
    ----------
    trial : Trial
        Whom it is about.
    wish : TrialPauseRequested or TrialUnpauseRequested
        The wish.
    """
    key, incarnation = trial.trial_id, trial.incarnation
    if isinstance(wish, TrialUnpauseRequested):
        if trial.status.is_resting:
            return ResumeTrial(trial_id=key, incarnation=incarnation)
        return None
    if trial.status in _TO_BE_RECALLED:
        return RecallTrial(trial_id=key, incarnation=incarnation, reason=wish.reason)
    if trial.status in _TO_BE_SUSPENDED:
        return SuspendTrial(trial_id=key, incarnation=incarnation, reason=wish.reason)
    return None
