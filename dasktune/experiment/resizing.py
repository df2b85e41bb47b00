"""Trials that get other resources than they asked for at first."""

from __future__ import annotations

from dasktune.trial.actions import AnyTrialAction, ChangeRequest, ResizeTrial
from dasktune.trial.trial import Trial

__all__ = ["resize"]


def resize(trial: Trial, action: AnyTrialAction) -> None:
    """Let a trial ask for what an action gives it, if it gives it anything.

    It counts from now on, so that nobody else is promised the same, although a trial that is being
    resized holds what it had until it has left its worker.

    Parameters
    ----------
    trial : Trial
        Whose action it is.
    action : TrialAction
        What has been decided.
    """
    if isinstance(action, ResizeTrial | ChangeRequest):
        base = trial.base_resources
        trial.resources = action.resources
        trial.first_resources = None if action.resources == base else base
