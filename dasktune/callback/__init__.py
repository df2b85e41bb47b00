"""Callbacks: user code that the driver calls on the events of an experiment.

The base class, the views of trials that hooks get, and the list that calls the hooks are here.
Callbacks that write results for other tools live in ``dasktune.logger``.
"""

from dasktune.callback.callback import Callback
from dasktune.callback.callback_list import CallbackList, check_callbacks
from dasktune.callback.hooks import MissedEvents
from dasktune.callback.trial_view import Trial, TrialStorage, TrialView, TrialViews
from dasktune.trial.location import Location

__all__ = [
    "Callback",
    "CallbackList",
    "Location",
    "MissedEvents",
    "Trial",
    "TrialStorage",
    "TrialView",
    "TrialViews",
    "check_callbacks",
]
