"""Trials as they come: suggested by the search, or added by the user."""

from __future__ import annotations

from dasktune.trial.events import Suggested, TrialAddRequested
from dasktune.trial.trial import Trial

__all__ = ["newcomer"]

#: How a trial calls itself that the user has added.
_TAG = "added"


def newcomer(event: Suggested | TrialAddRequested) -> Trial:
    """Return the trial that an event brings.

    Parameters
    ----------
    event : Suggested or TrialAddRequested
        What happened. It has a configuration.
    """
    assert event.config is not None, "there is a trial exactly if there is a configuration"
    assert event.resources is not None, "there are resources exactly if there is a configuration"
    trial = Trial(
        trial_id=event.trial_id,
        config=event.config,
        resources=event.resources,
        pickled=event.pickled,
    )
    if isinstance(event, TrialAddRequested):
        trial.tag, trial.added = _TAG, True
    else:
        trial.tag, trial.name, trial.dirname = event.tag, event.name, event.dirname
    return trial
