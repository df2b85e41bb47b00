"""Calls the policies of an experiment: stop criteria, stoppers, scheduler, searcher.

They are always asked in this order, and each new result is shown to each of them once. A result
that a trial recomputes after a restart replaces the former row. The former decision stands, and
only the stop criteria, which depend on nothing but the result, are tested again.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from dasktune.experiment.exploit import Exploits
from dasktune.experiment.pending_suggestion import PendingSuggestion
from dasktune.experiment.policy_states import identity_of, load_scheduler, load_search, load_stopper
from dasktune.experiment.recorded_decisions import RecordedDecisions
from dasktune.experiment.settings import ExperimentSettings
from dasktune.experiment.trial_actions import CommandAction, Fail, PolicyDecision
from dasktune.experiment.trial_index import TrialIndex
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.decision import Command, Continue, Exploit, Stop
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.search.searcher import STOPPED_EARLY
from dasktune.stopper import NoopStopper, Stopper
from dasktune.trial.actions import ExploitTrial
from dasktune.trial.metrics import with_nested_names
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

_CONTINUE = Continue()


class Policies:
    """Asks the policies of an experiment and combines their answers into one decision.

    Parameters
    ----------
    settings : ExperimentSettings
        Limits and goals.
    pending_suggestion : PendingSuggestion
        Reports trials to the search algorithm: each result when it comes, the last one with the end
        of its trial. Results of clones and of trials that the user has added are left out.
    scheduler : TrialScheduler
        Decides on the trials that no stopper ends.
    criteria : Stopper
        Stop criteria that depend on nothing but the result.
    stopper : Stopper
        All other stop criteria.
    exploits : Exploits
        Finds the checkpoint that a clone resumes from.

    Attributes
    ----------
    recorded : RecordedDecisions or None
        In a replay, what the journal says about the event that is being handled. The policies are
        called as in the live experiment, so that they reach the same state. Where they now decide
        differently, the journal's decision stands.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        *,
        pending_suggestion: PendingSuggestion,
        scheduler: TrialScheduler,
        criteria: Stopper,
        stopper: Stopper,
        exploits: Exploits,
    ) -> None:
        #: The classes and goals of the policies, read before the policies are used.
        self._identities = {
            "search": identity_of(pending_suggestion.search),
            "scheduler": identity_of(scheduler),
            "criteria": identity_of(criteria),
            "stopper": identity_of(stopper),
        }
        self._streaming = settings.streaming
        self._pending_suggestion = pending_suggestion
        self._scheduler = scheduler
        self._exploits = exploits
        self.criteria = criteria
        self.stopper = stopper
        self.recorded: RecordedDecisions | None = None
        #: The resources of each worker by address; empty unless the scheduler uses them.
        self._workers: dict[str, Mapping[str, float]] = {}
        self._limit = settings.max_concurrent

    def attach(self, trial_index: TrialIndex) -> None:
        """Give the scheduler its live view of the trials and of the cluster.

        Parameters
        ----------
        trial_index : TrialIndex
            The trials.
        """
        view = ClusterView(
            trials=MappingProxyType(trial_index.trials),
            pending=trial_index.pending,
            paused=trial_index.paused,
            active=trial_index.active,
            workers=self._workers,
            limit=self._limit,
        )
        self._scheduler.observe(view)

    def on_cluster_change(self, workers: Mapping[str, Mapping[str, float]]) -> tuple[Command, ...]:
        """Report the cluster's resources to the scheduler, and return its commands.

        Parameters
        ----------
        workers : mapping
            The resources of each worker, by address.
        """
        self._workers.clear()
        self._workers.update(workers)
        return self._scheduler.on_cluster_change()

    def on_time(self, now: float, *, is_over: bool, at: int) -> str:
        """Report the time to the stopper, and return why the experiment must end.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock.
        is_over : bool
            Whether the end of the experiment was requested already.
        at : int
            Position in the event's record: the number of its actions so far.

        Returns
        -------
        str
            Empty if the experiment continues, or its end was requested already.
        """
        self.stopper.on_time(now)
        if is_over:
            return ""
        reason = self.stopper.stop_all_reason() if self.stopper.stop_all() else ""
        if self.recorded is None:
            return reason
        recorded = self.recorded.end_reason(at)
        if bool(recorded) != bool(reason):
            self.recorded.note_divergence(self.stopper)
        return recorded

    def command(self, proposed: CommandAction | None, *, at: int) -> CommandAction | None:
        """Return the command to carry out: the proposed one, or in a replay the recorded one.

        Parameters
        ----------
        proposed : action or None
            The scheduler's next command.
        at : int
            Position in the event's record: the number of its actions so far.
        """
        if self.recorded is None:
            return proposed
        recorded = self.recorded.next_command(at)
        if recorded is not proposed and _identity(recorded) != _identity(proposed):
            self.recorded.note_divergence(self._scheduler)
        if not isinstance(recorded, ExploitTrial):
            return recorded
        same = isinstance(proposed, ExploitTrial) and _identity(recorded) == _identity(proposed)
        config = self._config(recorded.trial_id, proposed if same else None)
        return self._exploits.replayed(recorded, config)

    def decide(
        self, trial: Trial, result: Mapping[str, Any], now: float, *, is_new: bool, at: int
    ) -> PolicyDecision:
        """Return the decision about a trial that has reported a result.

        Parameters
        ----------
        trial : Trial
            The trial, which is running.
        result : mapping
            The trial's last result: flat, and in its history already.
        now : float
            Seconds on the runner's clock.
        is_new : bool
            Whether the result is new, as :func:`record` returned.
        at : int
            Position in the event's record: the number of its actions so far.
        """
        key = trial.trial_id
        recorded = None if self.recorded is None else self.recorded.decision(key, at)
        stop = _user_stop(self.criteria.reason(key, result)) if self.criteria(key, result) else None
        if not is_new:
            return self._recorded_or_proposed(key, stop or _CONTINUE, recorded)
        self.stopper.on_time(now)
        # Called even where the criteria end the trial: the stopper may count its calls.
        stopped = self._ask_stopper(key, result)
        if isinstance(stopped, Stop) and (recorded is None or isinstance(recorded, Stop)):
            stop = stop or stopped
        decision = self._exploits.resolved(trial, stop or self._scheduler.on_trial_result(trial, result))
        proposed: PolicyDecision = stopped if isinstance(stopped, Fail) else stop or stopped or decision
        if proposed is not decision:
            proposed = replace(proposed, commands=decision.commands)
        final = self._recorded_or_proposed(key, proposed, recorded)
        continues = not isinstance(decision if isinstance(final, Fail) else final, Stop)
        if continues and not (trial.ancestry or trial.added):
            self._pending_suggestion.on_trial_result(key, self._search_result(trial, result))
        return final

    def _search_result(self, trial: Trial, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a result with the scheduler's additions for the search algorithm."""
        info = self._scheduler.search_info(trial, result)
        return {**result, **info} if info else result

    def _recorded_or_proposed(
        self, trial_id: str, proposed: PolicyDecision, recorded: PolicyDecision | None
    ) -> PolicyDecision:
        """Return the recorded or else the proposed decision, with the proposed commands."""
        if self.recorded is None:
            return proposed
        if recorded is None:
            # The experiment ended before the decision reached the trial, so it does not matter.
            return Continue(commands=proposed.commands) if isinstance(proposed, Fail) else proposed
        if type(recorded) is not type(proposed):
            # A recorded stop does not say which policy stopped the trial.
            failed = isinstance(recorded, Fail) or isinstance(proposed, Fail)
            self.recorded.note_divergence(*(() if failed else (self._scheduler,)), self.stopper)
        if isinstance(recorded, Exploit):
            same = isinstance(proposed, Exploit) and proposed.donor == recorded.donor
            config = self._config(trial_id, proposed if same else None)
            recorded = replace(recorded, config=config)
        return replace(recorded, commands=proposed.commands) if proposed.commands else recorded

    def _config(self, trial_id: str, proposed: PolicyDecision | CommandAction | None) -> dict[str, Any]:
        """Return the configuration of a recorded exploit."""
        assert self.recorded is not None
        wanted = proposed.config if isinstance(proposed, Exploit | ExploitTrial) else None
        config = self.recorded.config(trial_id, wanted)
        if config is not wanted:
            self.recorded.note_divergence(self._scheduler)
        return config

    def _ask_stopper(self, trial_id: str, result: Mapping[str, Any]) -> Stop | Fail | None:
        """Return Stop if the user's stopper ends the trial, Fail if it raises, otherwise None."""
        if not isinstance(self.stopper, NoopStopper):
            result = with_nested_names(result)
        try:
            if self.stopper(trial_id, result):
                return _user_stop(self.stopper.reason(trial_id, result))
        except Exception as error:
            message = f"the stopper raised {type(error).__name__}: {error}"
            return Fail(ErrorInfo(message=message, traceback=traceback.format_exc()))
        return None

    def on_status_change(self, trial: Trial, before: TrialStatus) -> bool:
        """Report to the search algorithm if a trial starts or stops waiting off its worker.

        Such a trial waits for other trials or for the user, and does not count towards the limit of
        concurrent trials.

        Parameters
        ----------
        trial : Trial
            A trial whose status has just changed.
        before : TrialStatus
            The trial's former status.

        Returns
        -------
        bool
            Whether the trial starts waiting.
        """
        was, now = self._is_waiting(before), self._is_waiting(trial.status)
        if was is now or trial.status.is_final:
            return False
        if not trial.added:
            pending = self._pending_suggestion
            report = pending.on_trial_pause if now else pending.on_trial_unpause
            report(trial.trial_id)
        return now

    def _is_waiting(self, status: TrialStatus) -> bool:
        paused = status is TrialStatus.PAUSED and self._scheduler.waits_for_others
        return paused or status.is_paused_by_user

    def on_end(self, trial: Trial, *, was_active: bool) -> tuple[Command, ...]:
        """Report the end of a trial to the scheduler and the search algorithm.

        The search algorithm gets no result of a trial that an exploit has given another
        configuration: it would take the clone's score for the score of its own suggestion.

        Parameters
        ----------
        trial : Trial
            A trial that has just ended.
        was_active : bool
            Whether it was on a worker until then.

        Returns
        -------
        tuple of Command
            The scheduler's commands for other trials.
        """
        failed = trial.status is TrialStatus.ERROR
        last = trial.last_result
        result = self._search_result(trial, last) if last and not trial.ancestry else None
        if trial.stopped_early:
            result = result and {**result, STOPPED_EARLY: True}
        if failed:
            commands = self._scheduler.on_trial_error(trial)
        elif was_active:
            commands = self._scheduler.on_trial_complete(trial, last)
        else:
            commands = self._scheduler.on_trial_remove(trial)
        if not trial.added:
            self._pending_suggestion.on_trial_complete(trial.trial_id, result, failed)
        return commands

    def on_start(self, trial: Trial) -> tuple[Milestone, ...]:
        """Report a start to the scheduler, and return the trial's first milestones."""
        self._scheduler.on_trial_start(trial)
        return self.milestones(trial)

    def on_exploit(self, trial: Trial, donor: Trial) -> None:
        """Report to the scheduler that a trial will resume from another one's checkpoint.

        Parameters
        ----------
        trial, donor : Trial
            The clone, and the trial with the checkpoint.
        """
        self._scheduler.on_trial_exploit(trial, donor)

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Return the commands for trials that wait while no trial runs.

        If the scheduler has neither a command nor an open question, the default of `TrialScheduler`
        ends the trials.

        Parameters
        ----------
        waiting : Waiting
            At least one trial.
        """
        commands = self._scheduler.on_standstill(waiting)
        if commands or self._scheduler.questions:
            return commands
        return TrialScheduler.on_standstill(self._scheduler, waiting)

    def on_session_begin(self) -> None:
        """Restart the stoppers' clocks: the time between two drivers does not count."""
        self.stopper.load_state_dict(self.stopper.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all policies, with their classes and goals."""
        return {
            "identities": self._identities,
            "inquiry": self._pending_suggestion.state_dict(),
            "scheduler": self._scheduler.state_dict(),
            "criteria": self.criteria.state_dict(),
            "stopper": self.stopper.state_dict(),
            "workers": dict(self._workers),
        }

    def load_state_dict(self, state: Mapping[str, Any], trials: Mapping[str, Trial]) -> None:
        """Restore what :meth:`state_dict` returned.

        Parameters
        ----------
        state : mapping
            The state.
        trials : mapping of str to Trial
            All trials, which are restored already.

        Raises
        ------
        ConfigError
            If a policy cannot continue from the state of the policy that was saved.
        """
        own = self._identities
        saved = state["identities"]
        load_search(
            self._pending_suggestion.load_state_dict, own["search"], state["inquiry"], saved["search"]
        )
        unfinished = (key for key, trial in trials.items() if not trial.status.is_final)
        load_scheduler(self._scheduler, own["scheduler"], state["scheduler"], saved["scheduler"], unfinished)
        for name, stopper in (("criteria", self.criteria), ("stopper", self.stopper)):
            load_stopper(stopper, own[name], state[name], saved[name], trials.values())
        self._workers.update(state["workers"])

    def milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the milestones of all policies: where the trial must next wait for a decision."""
        if not self._streaming:
            return EVERY_RESULT
        wanted = (
            *self._scheduler.next_milestones(trial),
            *self.criteria.next_milestones(trial.trial_id),
            *self.stopper.next_milestones(trial.trial_id),
        )
        return tuple(dict.fromkeys(wanted))


def _identity(action: CommandAction | None) -> tuple[type[CommandAction], str, str] | None:
    if action is None:
        return None
    donor = action.donor if isinstance(action, ExploitTrial) else ""
    return type(action), action.trial_id, donor


def _user_stop(reason: str) -> Stop:
    """Return a stop that the user's own criteria demand, so the trial is not stopped early."""
    return Stop(reason, early=False)
