"""What comes of a result: it is recorded, then the policies are asked, each of them once.

The order is always the same: stop criteria, stoppers, scheduler, searcher. A result that a trial
computed before, ahead of a restart, replaces the row that it had; what was decided on it then
stands, and only the criteria, which depend on nothing else, are tested again.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.experiment.settings import ExperimentSettings
from dasktune.schedulers.decision import Command, Continue, Decision, Stop
from dasktune.schedulers.trial_scheduler import TrialScheduler
from dasktune.search.searcher import SearchAlgorithm
from dasktune.stopper import Stopper
from dasktune.trial.events import ErrorInfo
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.trial import Trial

__all__ = ["Fail", "Judge", "Verdict", "record"]

_CONTINUE = Continue()


@dataclass(frozen=True, slots=True)
class Fail:
    """End the trial as failed: the user's stopper raised and cannot say whether to go on.

    Parameters
    ----------
    error : ErrorInfo
        What it raised.
    commands : tuple of Command
        What the scheduler wants to happen to other trials.
    """

    error: ErrorInfo
    commands: tuple[Command, ...]


#: What is to become of a trial.
Verdict = Decision | Fail


def record(trial: Trial, result: dict[str, Any]) -> bool:
    """Keep a result, and return whether it is new rather than computed again.

    Parameters
    ----------
    trial : Trial
        Who reported it.
    result : dict
        Flat metrics; kept as they are.
    """
    iteration = int(result["training_iteration"])
    history = trial.history
    if not history or iteration > trial.last_iteration:
        trial.rows[iteration] = len(history)
        history.append(result)
        return True
    row = trial.rows.get(iteration)
    if row is not None:
        history[row] = result
    return False


class Judge:
    """Asks the policies of an experiment, and makes one verdict of what they say.

    Parameters
    ----------
    settings : ExperimentSettings
        Limits and goals.
    search : SearchAlgorithm
        Hears of every result that does not end its trial.
    scheduler : TrialScheduler
        Decides on those that no stopper ends.
    criteria : Stopper
        Stop criteria that depend on nothing but the result.
    stopper : Stopper
        Any other stop criteria.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        *,
        search: SearchAlgorithm,
        scheduler: TrialScheduler,
        criteria: Stopper,
        stopper: Stopper,
    ) -> None:
        self._streaming = settings.streaming
        self._search = search
        self._scheduler = scheduler
        self.criteria = criteria
        self.stopper = stopper

    def tell_time(self, now: float) -> str:
        """Pass the time on, and return why everything must end now; empty if it need not.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock.
        """
        self.stopper.on_time(now)
        return self.stopper.stop_all_reason() if self.stopper.stop_all() else ""

    def judge(
        self, trial: Trial, result: Mapping[str, Any], now: float, *, is_new: bool
    ) -> Verdict:
        """Return what is to become of a trial.

        Parameters
        ----------
        trial : Trial
            It runs.
        result : mapping
            Its last result, recorded and flat.
        now : float
            Seconds on the runner's clock.
        is_new : bool
            What :func:`record` said.
        """
        key = trial.trial_id
        met = self.criteria(key, result)
        if not is_new:
            return Stop(self.criteria.reason(key, result)) if met else _CONTINUE
        self.stopper.on_time(now)
        # Asked in any case: it may count what it is shown.
        enough = self._enough(key, result)
        verdict: Verdict
        if met:
            verdict = Stop(self.criteria.reason(key, result))
        elif isinstance(enough, str) and enough:
            verdict = Stop(enough)
        else:
            verdict = self._scheduler.on_trial_result(trial, result)
        if not isinstance(verdict, Stop):
            self._search.on_trial_result(key, result)
        return Fail(enough, verdict.commands) if isinstance(enough, ErrorInfo) else verdict

    def _enough(self, trial_id: str, result: Mapping[str, Any]) -> str | ErrorInfo:
        """Return why the user's stopper ends the trial, or what it raised; empty if neither."""
        try:
            if self.stopper(trial_id, result):
                return self.stopper.reason(trial_id, result)
        except Exception as error:
            message = f"the stopper raised {type(error).__name__}: {error}"
            return ErrorInfo(message=message, traceback=traceback.format_exc())
        return ""

    def begin_session(self) -> None:
        """Tell the stoppers that a new driver goes on: time in between does not count."""
        self.stopper.load_state_dict(self.stopper.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all policies."""
        return {
            "search": self._search.state_dict(),
            "scheduler": self._scheduler.state_dict(),
            "criteria": self.criteria.state_dict(),
            "stopper": self.stopper.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the policies back what :meth:`state_dict` gave."""
        self._search.load_state_dict(state["search"])
        self._scheduler.load_state_dict(state["scheduler"])
        self.criteria.load_state_dict(state["criteria"])
        self.stopper.load_state_dict(state["stopper"])

    def milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return where a trial must next wait for a verdict, for whichever policy."""
        if not self._streaming:
            return EVERY_RESULT
        wanted = (
            *self._scheduler.next_milestones(trial),
            *self.criteria.next_milestones(trial.trial_id),
            *self.stopper.next_milestones(trial.trial_id),
        )
        return tuple(dict.fromkeys(wanted))
