"""The reasons for which failures of user code and losses of workers end trials and experiments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dasktune.experiment.settings import ExperimentSettings
from dasktune.text.formatting import plural
from dasktune.trial.events import TrialLost
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo


def judged(error: ErrorInfo, trials: Iterable[Trial]) -> ErrorInfo:
    """Return an error as one of its trial alone if any trial has a result, else as it is.

    Parameters
    ----------
    error : ErrorInfo
        The exception of a trial's code.
    trials : iterable of Trial
        All trials of the experiment.
    """
    if error.fails_all_trials and any(trial.history for trial in trials):
        return replace(error, fails_all_trials=False)
    return error


def experiment_failure_reason(settings: ExperimentSettings, trials: Iterable[Trial], failed: Trial) -> str:
    """Return why a failed trial ends the experiment; empty if it does not.

    Parameters
    ----------
    settings : ExperimentSettings
        The user's limits.
    trials : iterable of Trial
        All trials of the experiment.
    failed : Trial
        A trial that has failed and has no tries left.
    """
    if settings.fail_fast or failed.fails_all_trials:
        return f"trial {failed.trial_id} failed"
    limit = settings.max_total_failures
    if limit is None or sum(trial.failures for trial in trials) <= limit:
        return ""
    times = f"{limit} {plural('time', limit)}"
    return f"trials have failed more often than {times}, {failed.trial_id} the last of them"


def lost_too_often(trial: Trial, event: TrialLost) -> str:
    """Return the reason of a trial that ends because it has lost its worker too often.

    Parameters
    ----------
    trial : Trial
        The trial.
    event : TrialLost
        The last loss.
    """
    return (
        f"lost its worker {trial.worker_losses} times without progress in between, and no "
        f"other trial with it; the last time: {event.reason}"
    )
