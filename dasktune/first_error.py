"""The end of ``fail_fast="raise"``: the trial's own exception, on the driver."""

from __future__ import annotations

import pickle
from typing import NoReturn

from dasktune.errors import TrialError
from dasktune.experiment import Experiment
from dasktune.trial.trial import Trial

__all__ = ["raise_error_of", "raise_first_error"]


def raise_first_error(experiment: Experiment) -> None:
    """Raise what the first trial that failed had raised, if ``fail_fast="raise"`` asks for it.

    Parameters
    ----------
    experiment : Experiment
        One that has ended.

    Raises
    ------
    TrialError
        If the trial's own exception cannot be raised here.
    """
    trial = experiment.first_error
    if trial is not None and experiment.settings.fail_fast == "raise":
        raise_error_of(trial)


def raise_error_of(trial: Trial) -> NoReturn:
    """Raise what a trial that failed had raised.

    Parameters
    ----------
    trial : Trial
        One that has failed for good.

    Raises
    ------
    TrialError
        If its own exception cannot be raised here, or there is none because its workers were lost.
    """
    error = trial.error
    told = TrialError(
        trial.trial_id,
        trial.reason if error is None else error.message,
        "" if error is None else error.traceback,
    )
    own = None if error is None else _unpickled(error.pickled)
    if own is None:
        raise told
    # Its traceback stayed on the worker; the text of it goes along.
    raise own from told


def _unpickled(blob: bytes) -> BaseException | None:
    """Return the exception of user code, if it can be made here; its class may do anything."""
    try:
        error = pickle.loads(blob)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
