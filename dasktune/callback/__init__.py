"""Code of the user's that hears of what happens in an experiment."""

from dasktune.callback.callback import Callback
from dasktune.callback.callback_list import CallbackList, check_callbacks
from dasktune.callback.missed import Missed
from dasktune.callback.trial_view import Location, TrialPlaces, TrialView, TrialViews

__all__ = [
    "Callback",
    "CallbackList",
    "Location",
    "Missed",
    "TrialPlaces",
    "TrialView",
    "TrialViews",
    "check_callbacks",
]
