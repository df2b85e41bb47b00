"""FIFO scheduling: run trials in order, and never pause or stop them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.schedulers.decision import Continue, Decision
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.trial import Trial


def first_in(waiting: Waiting) -> Trial | None:
    """Return the first pending trial, else the first paused one."""
    for trials in (waiting.pending, waiting.paused):
        for trial in trials.values():
            return trial
    return None


class FIFOScheduler(TrialScheduler):
    """Run trials in the order in which they were added, each to its end.

    Examples
    --------
    >>> FIFOScheduler().debug_string()
    'FIFOScheduler'
    """

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Return `Continue()`."""
        return Continue()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the first pending trial, else the first paused one."""
        return first_in(waiting)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return no milestones: no result changes a decision.

        If a subclass overrides `on_trial_result`, trials wait at every result, unless the subclass
        overrides this method too.
        """
        judges = type(self).on_trial_result is not FIFOScheduler.on_trial_result
        return EVERY_RESULT if judges else ()

    @property
    def starts_in_order(self) -> bool:
        """True, unless a subclass overrides `choose_trial_to_run`."""
        return type(self).choose_trial_to_run is FIFOScheduler.choose_trial_to_run
