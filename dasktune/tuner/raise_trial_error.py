"""Raise the exception of a trial that has ended its experiment."""

from __future__ import annotations

import pickle
from typing import NoReturn

from dasktune.errors import TrialError
from dasktune.experiment import ExperimentMachine
from dasktune.trial.trial import Trial


def raise_first_error(experiment: ExperimentMachine) -> None:
    """Raise the exception of the first failed trial if it is to be raised.

    So it is with ``fail_fast="raise"``, and if every trial would fail with it.

    Parameters
    ----------
    experiment : ExperimentMachine
        An experiment that has ended.

    Raises
    ------
    TrialError
        If the trial's own exception cannot be unpickled here.
    """
    trial = experiment.state.first_failed
    if trial is not None and (experiment.settings.fail_fast == "raise" or trial.fails_all_trials):
        reraise_trial_error(trial)


def reraise_trial_error(trial: Trial) -> NoReturn:
    """Raise the exception of a failed trial.

    Parameters
    ----------
    trial : Trial
        A trial with the status ERROR.

    Raises
    ------
    TrialError
        If its own exception cannot be unpickled here, or if it failed because it lost its workers.
    """
    error = trial.error
    trial_error = TrialError(
        trial.trial_id,
        trial.reason if error is None else error.message,
        "" if error is None else error.traceback,
    )
    own = None if error is None else _unpickled(error.pickled)
    if own is None:
        raise trial_error
    if trial.fails_all_trials:
        # The message says it all, and stands once; the traceback is in the trial's error.txt.
        raise own from None
    # An unpickled exception has no traceback; the TrialError has the text of the worker's.
    raise own from trial_error


def _unpickled(blob: bytes) -> BaseException | None:
    """Return the unpickled exception of user code, None if its class prevents that."""
    try:
        error = pickle.loads(blob)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
