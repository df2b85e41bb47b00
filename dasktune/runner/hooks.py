"""Refusing policies of the user's own whose methods do not take what they are given.

Most often they were written for Ray Tune, whose schedulers are handed its controller.
"""

from __future__ import annotations

from typing import Final

from dasktune.schedulers import TrialScheduler
from dasktune.search import Searcher
from dasktune.signatures import check_hooks, public_hooks
from dasktune.stopper import CombinedStopper, Stopper

__all__ = ["check_scheduler", "check_searcher", "check_stopper"]

_OF_SCHEDULERS: Final = public_hooks(TrialScheduler)
_OF_STOPPERS: Final = public_hooks(Stopper)
_OF_SEARCHERS: Final = (
    "set_search_properties",
    "suggest",
    "on_trial_result",
    "on_trial_complete",
    "on_pause",
    "on_unpause",
)

_VALUES: Final = (
    'A scheduler is not handed the runner: on_trial_result() returns Continue(), Pause("why") or '
    'Stop("why"), and choose_trial_to_run() one of waiting.pending or waiting.paused.'
)


def check_scheduler(scheduler: TrialScheduler) -> None:
    """Check a scheduler, and those that it wraps.

    Parameters
    ----------
    scheduler : TrialScheduler
        The user's.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    check_hooks("scheduler", scheduler, TrialScheduler, _OF_SCHEDULERS, hint=_VALUES)
    inner = getattr(scheduler, "base_scheduler", None)
    if isinstance(inner, TrialScheduler):
        check_scheduler(inner)


def check_searcher(searcher: Searcher) -> None:
    """Check a searcher, and those that it wraps.

    Parameters
    ----------
    searcher : Searcher
        The user's.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    told = {"set_search_properties": ("seed", "num_samples")}
    check_hooks("search_alg", searcher, Searcher, _OF_SEARCHERS, more=told)
    inner = getattr(searcher, "searcher", None)
    if isinstance(inner, Searcher):
        check_searcher(inner)


def check_stopper(stopper: Stopper) -> None:
    """Check a stopper, or all that it combines.

    Parameters
    ----------
    stopper : Stopper
        The user's.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    check_hooks("stop", stopper, Stopper, _OF_STOPPERS)
    if isinstance(stopper, CombinedStopper):
        for one in stopper.stoppers:
            check_stopper(one)
