"""What comes of a result: it is recorded, then the policies are asked, each of them once.

The order is always the same: stop criteria, stoppers, scheduler, searcher. A result that a trial
computed before, ahead of a restart, replaces the row that it had; what was decided on it then
stands, and only the criteria, which depend on nothing else, are tested again.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from dasktune.experiment.cloning import Cloning
from dasktune.experiment.inquiry import Inquiry
from dasktune.experiment.orders import Order
from dasktune.experiment.precedent import Precedent
from dasktune.experiment.roster import Roster
from dasktune.experiment.settings import ExperimentSettings
from dasktune.experiment.verdict import Fail, Verdict
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.decision import Command, Continue, Exploit, Stop
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.search.suggest import STOPPED_EARLY
from dasktune.stopper import Stopper
from dasktune.trial.actions import ExploitTrial
from dasktune.trial.events import ErrorInfo
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["Judge", "record"]

_CONTINUE = Continue()


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
    inquiry : Inquiry
        By which the search hears of every result that does not end its trial, as long as that has
        the configuration that was suggested.
    scheduler : TrialScheduler
        Decides on those that no stopper ends.
    criteria : Stopper
        Stop criteria that depend on nothing but the result.
    stopper : Stopper
        Any other stop criteria.
    cloning : Cloning
        Knows who can be cloned.

    Attributes
    ----------
    precedent : Precedent or None
        In replay, what the journal says of the event that is being handled. The policies are asked
        as ever, so that they learn what they had learnt, and their answers do not count.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        *,
        inquiry: Inquiry,
        scheduler: TrialScheduler,
        criteria: Stopper,
        stopper: Stopper,
        cloning: Cloning,
    ) -> None:
        self._streaming = settings.streaming
        self._inquiry = inquiry
        self._scheduler = scheduler
        self._cloning = cloning
        self.criteria = criteria
        self.stopper = stopper
        self.precedent: Precedent | None = None
        #: What each worker has, by address; empty where the scheduler does not mind.
        self._workers: dict[str, Mapping[str, float]] = {}
        self._limit = settings.max_concurrent

    def show(self, roster: Roster) -> None:
        """Let the scheduler see the trials, now and from now on, and the cluster that they share.

        Parameters
        ----------
        roster : Roster
            The trials.
        """
        view = ClusterView(
            trials=MappingProxyType(roster.trials),
            pending=roster.pending,
            paused=roster.paused,
            active=roster.active,
            workers=self._workers,
            limit=self._limit,
        )
        self._scheduler.observe(view)

    def tell_cluster(self, workers: Mapping[str, Mapping[str, float]]) -> tuple[Command, ...]:
        """Tell the scheduler what the cluster has now, and return what it wants done about it.

        Parameters
        ----------
        workers : mapping
            What each worker has, by address.
        """
        self._workers.clear()
        self._workers.update(workers)
        return self._scheduler.on_cluster_change()

    def tell_time(self, now: float, *, over: bool) -> str:
        """Pass the time on, and return why everything must end now; empty if it need not.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock.
        over : bool
            Whether everything ends already.
        """
        self.stopper.on_time(now)
        if over:
            return ""
        reason = self.stopper.stop_all_reason() if self.stopper.stop_all() else ""
        if self.precedent is None:
            return reason
        told = self.precedent.end()
        if bool(told) != bool(reason):
            self.precedent.overrule(self.stopper)
        return told

    def order(self, proposed: Order | None) -> Order | None:
        """Return the order that stands: the one that is proposed, unless a journal tells of one."""
        if self.precedent is None:
            return proposed
        told = self.precedent.order()
        if told is not proposed and _whom(told) != _whom(proposed):
            self.precedent.overrule(self._scheduler)
        if not isinstance(told, ExploitTrial):
            return told
        same = isinstance(proposed, ExploitTrial) and _whom(told) == _whom(proposed)
        config = self._config(told.trial_id, proposed if same else None)
        return self._cloning.again(told, config)

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
        told = None if self.precedent is None else self.precedent.verdict(key)
        stop = _enough_of(self.criteria.reason(key, result)) if self.criteria(key, result) else None
        if not is_new:
            return self._standing(key, stop or _CONTINUE, told)
        self.stopper.on_time(now)
        # Asked in any case: it may count what it is shown.
        enough = self._enough(key, result)
        if isinstance(enough, Stop) and (told is None or isinstance(told, Stop)):
            stop = stop or enough
        wish = stop or self._scheduler.on_trial_result(trial, result)
        decision = self._cloning.settled(trial, wish)
        own: Verdict = enough if isinstance(enough, Fail) else stop or enough or decision
        if own is not decision:
            own = replace(own, commands=decision.commands)
        verdict = self._standing(key, own, told)
        goes_on = not isinstance(decision if isinstance(verdict, Fail) else verdict, Stop)
        if goes_on and not (trial.ancestry or trial.added):
            self._inquiry.on_trial_result(key, self._told(trial, result))
        return verdict

    def _told(self, trial: Trial, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a result as the searcher is told it."""
        info = self._scheduler.search_info(trial, result)
        return {**result, **info} if info else result

    def _standing(self, trial_id: str, own: Verdict, told: Verdict | None) -> Verdict:
        """Return the verdict that stands, with the commands that are proposed now."""
        if self.precedent is None:
            return own
        if told is None:
            # Whatever it was, everything ended before the trial could hear of it.
            return Continue(commands=own.commands) if isinstance(own, Fail) else own
        if type(told) is not type(own):
            # Of a stop nobody can tell whose it was.
            failed = isinstance(told, Fail) or isinstance(own, Fail)
            self.precedent.overrule(*(() if failed else (self._scheduler,)), self.stopper)
        if isinstance(told, Exploit):
            same = isinstance(own, Exploit) and own.donor == told.donor
            told = replace(told, config=self._config(trial_id, own if same else None))
        return replace(told, commands=own.commands) if own.commands else told

    def _config(self, trial_id: str, own: Verdict | Order | None) -> dict[str, Any]:
        """Return what a clone goes on with: what the scheduler says now, or said then."""
        assert self.precedent is not None
        wanted = own.config if isinstance(own, Exploit | ExploitTrial) else None
        config = self.precedent.config(trial_id, wanted)
        if config is not wanted:
            self.precedent.overrule(self._scheduler)
        return config

    def _enough(self, trial_id: str, result: Mapping[str, Any]) -> Stop | Fail | None:
        """Return whether the user's stopper ends the trial, or raises."""
        try:
            if self.stopper(trial_id, result):
                return _enough_of(self.stopper.reason(trial_id, result))
        except Exception as error:
            message = f"the stopper raised {type(error).__name__}: {error}"
            return Fail(ErrorInfo(message=message, traceback=traceback.format_exc()))
        return None

    def note_rest(self, trial: Trial, before: TrialStatus) -> bool:
        """Tell the searcher if a trial begins or ends to rest; return whether it begins.

        It rests while it waits for others, or for the user: then it counts in no limit.

        Parameters
        ----------
        trial : Trial
            Its status has just changed.
        before : TrialStatus
            What it was.
        """
        was, now = self._rests(before), self._rests(trial.status)
        if was is now or trial.status.is_final:
            return False
        if not trial.added:
            tell = self._inquiry.on_trial_pause if now else self._inquiry.on_trial_unpause
            tell(trial.trial_id)
        return now

    def _rests(self, status: TrialStatus) -> bool:
        paused = status is TrialStatus.PAUSED and self._scheduler.waits_for_others
        return paused or status.is_resting

    def conclude(self, trial: Trial, *, was_active: bool) -> tuple[Command, ...]:
        """Tell scheduler and searcher that a trial has ended for good.

        Of one that has another configuration than was suggested, because it was given up for a
        clone, the searcher hears nothing else: it would take the clone's score for that of what it
        suggested.

        Parameters
        ----------
        trial : Trial
            It has just ended.
        was_active : bool
            Whether it was on a worker until then.

        Returns
        -------
        tuple of Command
            What the scheduler wants to happen to other trials.
        """
        failed = trial.status is TrialStatus.ERROR
        last = trial.last_result
        told = self._told(trial, last) if last and not trial.ancestry else None
        if trial.stopped_early:
            told = told and {**told, STOPPED_EARLY: True}
        if failed:
            commands = self._scheduler.on_trial_error(trial)
        elif was_active:
            commands = self._scheduler.on_trial_complete(trial, last)
        else:
            commands = self._scheduler.on_trial_remove(trial)
        if not trial.added:
            self._inquiry.on_trial_complete(trial.trial_id, told, failed)
        return commands

    def begin(self, trial: Trial) -> tuple[Milestone, ...]:
        """Tell the scheduler that a trial starts, and return where it must wait first."""
        self._scheduler.on_trial_start(trial)
        return self.milestones(trial)

    def note_clone(self, trial: Trial, donor: Trial) -> None:
        """Tell the scheduler that a trial is to go on from another one's checkpoint.

        Parameters
        ----------
        trial, donor : Trial
            The clone, and of whom it is one.
        """
        self._scheduler.on_trial_exploit(trial, donor)

    def end_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Return what becomes of the trials that wait where nobody runs: they go on, or they end.

        Nothing, if the scheduler has opened a question about it.

        Parameters
        ----------
        waiting : Waiting
            At least one trial.
        """
        commands = self._scheduler.on_standstill(waiting)
        if commands or self._scheduler.questions:
            return commands
        return TrialScheduler.on_standstill(self._scheduler, waiting)

    def begin_session(self) -> None:
        """Tell the stoppers that a new driver goes on: time in between does not count."""
        self.stopper.load_state_dict(self.stopper.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all policies."""
        return {
            "inquiry": self._inquiry.state_dict(),
            "scheduler": self._scheduler.state_dict(),
            "criteria": self.criteria.state_dict(),
            "stopper": self.stopper.state_dict(),
            "workers": dict(self._workers),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the policies back what :meth:`state_dict` gave."""
        self._inquiry.load_state_dict(state["inquiry"])
        self._scheduler.load_state_dict(state["scheduler"])
        self.criteria.load_state_dict(state["criteria"])
        self.stopper.load_state_dict(state["stopper"])
        self._workers.update(state["workers"])

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


def _whom(order: Order | None) -> tuple[type[Order], str, str] | None:
    if order is None:
        return None
    return type(order), order.trial_id, order.donor if isinstance(order, ExploitTrial) else ""


def _enough_of(reason: str) -> Stop:
    """Return the end of a trial that has come as far as the user wants it to."""
    return Stop(reason, early=False)
