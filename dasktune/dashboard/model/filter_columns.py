"""Values of trials as a filter compares them, the same on the command line and in a browser."""

from __future__ import annotations

from typing import Any, Final

from dasktune.dashboard.labels import label, value_label
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.results.trial_filter import number_text
from dasktune.trial.metrics import number

#: Column names that a filter never reads as a metric or a parameter; a parameter's full name is
#: ``config/NAME``. The table in a browser has only some of these columns.
RESERVED_NAMES: Final = (
    "trial_id",
    "status",
    "iteration",
    "best",
    "runtime_s",
    "stopped_early",
    "reason",
    "error",
    "failures",
    "losses",
    "restores",
    "pauses",
    "checkpoints",
    "worker",
)

#: Maximum length of a text and of a name on a page, and so in a filter's comparison, in characters.
_MAX_TEXT: Final = 200
_MAX_NAME: Final = 60


def filter_value(value: Any) -> Any:
    """Return a parameter or metric for a filter: None, a bool, a number or a text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    real = None if isinstance(value, str) else number(value)
    return value_label(value, _MAX_TEXT) if real is None else real


def filter_text(value: Any) -> str:
    """Return a parameter or metric as a text that a filter compares like the value itself.

    Examples
    --------
    >>> filter_text(0.000123456789), filter_text("adam"), filter_text([64, 64]), filter_text(None)
    ('0.000123456789', 'adam', '[64, 64]', 'None')
    """
    value = filter_value(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number_text(value) if is_number else value_label(value, _MAX_TEXT)


def trial_name(trial: TrialProjection) -> str:
    """Return the id of a trial as one line."""
    return label(trial.trial_id, _MAX_NAME)


def message_text(message: str) -> str:
    """Return a reason or an error message on one line, as a page contains it."""
    return label(message, _MAX_TEXT)


def status_words(trial: TrialProjection) -> list[str]:
    """Return the status of a trial; STOPPED and TERMINATED if the trial was stopped early."""
    return list(dict.fromkeys((trial.outcome, trial.status)))


def worker_names(trial: TrialProjection) -> list[str]:
    """Return the address of a trial's worker with and without its protocol."""
    address = label(trial.worker, _MAX_NAME)
    return [address, address.rpartition("//")[2]]


def searchable_text(trial: TrialProjection) -> str:
    """Return the text of a trial in which a filter searches for words without a comparison."""
    values = map(filter_text, trial.config.values())
    why = message_text(trial.error or trial.reason)
    return " ".join((trial.trial_id, trial.outcome, trial.worker, *values, why))
