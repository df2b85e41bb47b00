"""Failures and losses: what counts against a trial, and when it has had its share."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune.experiment.settings import ExperimentSettings
from dasktune.trial.events import ErrorInfo, TrialLost
from dasktune.trial.trial import Trial

__all__ = ["count_failure", "count_loss", "is_cleared", "lost_too_often", "why_all_ends"]


def count_failure(trial: Trial, error: ErrorInfo, limit: int) -> bool:
    """Note that a trial's code has failed, and return whether it has done so too often.

    Parameters
    ----------
    trial : Trial
        Whose code it was.
    error : ErrorInfo
        What went wrong.
    limit : int
        Failures after which it is tried again; -1 is any number.
    """
    trial.errors.append(error)
    trial.failures += 1
    return 0 <= limit < trial.failures


def why_all_ends(settings: ExperimentSettings, trials: Iterable[Trial], failed: Trial) -> str:
    """Return why everything ends with a failed trial; empty if it does not.

    Parameters
    ----------
    settings : ExperimentSettings
        Limits.
    trials : iterable of Trial
        All of the experiment.
    failed : Trial
        Has failed for good.
    """
    if settings.fail_fast:
        return f"trial {failed.trial_id} failed"
    limit = settings.max_total_failures
    if limit is None or sum(trial.failures for trial in trials) <= limit:
        return ""
    return f"trials have failed more often than {limit} times, {failed.trial_id} the last of them"


def count_loss(trial: Trial, event: TrialLost, limit: int) -> bool:
    """Note that a trial has lost its worker, and return whether it has done so too often.

    Losses before it last made progress count no more. One that several trials share counts against
    none of them, as nobody knows which one it was; see `Trial.is_suspect`.

    Parameters
    ----------
    trial : Trial
        Who lost it.
    event : TrialLost
        The loss.
    limit : int
        Losses without progress after which it is tried again.
    """
    if trial.progress > trial.progress_at_loss:
        trial.worker_losses = trial.shared_losses = 0
    trial.progress_at_loss = trial.progress
    trial.losses += 1
    if event.charged and event.shared:
        trial.shared_losses += 1
    else:
        trial.worker_losses += event.charged
    return trial.worker_losses > limit


def lost_too_often(trial: Trial, event: TrialLost) -> str:
    """Return why a trial is given up that has lost its worker too often.

    Parameters
    ----------
    trial : Trial
        Who lost it.
    event : TrialLost
        The last loss.
    """
    return (
        f"lost its worker {trial.worker_losses} times without progress in between, and no "
        f"other trial with it; the last time: {event.reason}"
    )


def is_cleared(trial: Trial) -> bool:
    """Note whether a trial that has to run alone has made progress; if so, it need not any more.

    Parameters
    ----------
    trial : Trial
        Any, after a result or a checkpoint.
    """
    if not trial.is_suspect or trial.progress <= trial.progress_at_loss:
        return False
    trial.shared_losses = 0
    return True
