"""The state machine of an experiment: it takes events and returns actions.

It has no clock, file, thread or cluster. The time comes with the events, and every effect leaves as
an action. The same events therefore lead to the same decisions in a simulation, on a cluster, and
when a journal is replayed.

One thread, the driver's loop, calls :meth:`ExperimentMachine.handle`, so events never overlap. What
they report may be outdated, as workers and the user act in the meantime:

- A worker's event may belong to an incarnation that has ended here already, or come twice after a
  lost acknowledgement. `is_current` rejects both before anything changes.
- A worker's event may cross an action on the network, such as a result that was sent before the
  worker received the stop. `TRANSITIONS` has a row for each such pair; other pairs are bugs.
- A request of the user may be about a trial that has ended since. It then has no effect.
- A suggestion may arrive after the end of the experiment was requested. Its trial is added, so that
  the journal and the search algorithm agree, and stopped at once.
- An answer may be about a question that the scheduler has dropped. Its `on_answer` must ignore it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, ClassVar, NamedTuple

from numpy.random import SeedSequence, default_rng

from dasktune.experiment import trial_actions, user_requests
from dasktune.experiment.checkpoint_references import CheckpointReferences
from dasktune.experiment.experiment_state import ExperimentState
from dasktune.experiment.exploit import Exploits
from dasktune.experiment.failures import experiment_failure_reason, judged, lost_too_often
from dasktune.experiment.pending_suggestion import PendingSuggestion
from dasktune.experiment.policies import Policies
from dasktune.experiment.recorded_decisions import RecordedDecisions
from dasktune.experiment.settings import ExperimentSettings
from dasktune.experiment.trial_actions import Fail
from dasktune.experiment.trial_state import StoredHistories
from dasktune.schedulers.decision import Command, Continue, Decision, Exploit, Pause, Resize, Stop
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.search.search_algorithm import SearchAlgorithm
from dasktune.stopper import Stopper
from dasktune.trial import events
from dasktune.trial.actions import (
    Action,
    AdmitOthers,
    ChangeRequest,
    EndExperiment,
    ExploitTrial,
    FinishTrial,
    GiveUp,
    GrowTrial,
    ReopenTrial,
    SetShare,
    StopTrial,
    TrialAction,
    UnpauseTrial,
    YieldTrial,
)
from dasktune.trial.apply import is_current, new_trial
from dasktune.trial.metrics import score
from dasktune.trial.resources import ElasticPlacement
from dasktune.trial.rows.row_blocks import IN_MEMORY, BlockStore
from dasktune.trial.rows.trial_history import History
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

#: The statuses in which the policies decide on a trial's result.
_DECIDABLE = frozenset({TrialStatus.RUNNING, TrialStatus.YIELDING, TrialStatus.SUSPENDING})


class HandleResult(NamedTuple):
    """The actions that an event led to, and whether it changed anything.

    Attributes
    ----------
    actions : list of Action
        The actions to carry out, in order. The statuses of the trials already reflect them.
    is_current : bool
        False for a worker's event of an earlier incarnation, and for a repeated one. Such an event
        changed nothing.
    is_new_result : bool
        Whether the event brought a result for an iteration that its trial had not reported before.
    """

    actions: list[Action]
    is_current: bool = True
    is_new_result: bool = False


class ExperimentMachine:
    """Owns the trials and the policies that decide on them.

    Parameters
    ----------
    settings : ExperimentSettings
        The user's limits and goals.
    search : SearchAlgorithm
        Suggests configurations; already set up.
    scheduler : TrialScheduler
        Prioritises, pauses and stops trials.
    criteria : Stopper
        Stop criteria that depend on nothing but the result. They are tested again on a result that
        a trial has recomputed.
    stopper : Stopper
        All other stop criteria, called once for each result.
    seed : SeedSequence
        Seeds the names of the trials and the scheduler.
    blocks : BlockStore, default=IN_MEMORY
        Keeps the older results of the trials.

    Attributes
    ----------
    state : ExperimentState
        The trials and the progress of the experiment.
    trial_index : TrialIndex
        The trials by status.
    trials : mapping of str to Trial
        All trials that were ever added, in order.
    pending_suggestion : PendingSuggestion
        The suggestion that the search algorithm is computing, if any.
    exploits : Exploits
        Which trial was cloned from which.
    """

    #: Check every invariant after each event; the tests turn it on.
    validate_each_event: ClassVar[bool] = False

    def __init__(
        self,
        settings: ExperimentSettings,
        *,
        search: SearchAlgorithm,
        scheduler: TrialScheduler,
        criteria: Stopper,
        stopper: Stopper,
        seed: SeedSequence,
        blocks: BlockStore = IN_MEMORY,
    ) -> None:
        for_names, for_scheduler = seed.spawn(2)
        prefix = f"{int(default_rng(for_names).integers(16**5)):05x}"
        self.settings = settings
        self._blocks = blocks
        #: The objective whose best score each trial keeps; None without one, or with several.
        self._goal = (settings.metric, settings.mode) if settings.metric and settings.mode else None
        self.search = search
        self.scheduler = scheduler
        self.state = ExperimentState(prefix=prefix)
        self.trial_index = self.state.trial_index
        self.trials: Mapping[str, Trial] = self.trial_index.trials
        self.pending_suggestion = PendingSuggestion(search)
        self._checkpoints = CheckpointReferences(self.trials, settings.retention)
        self.exploits = Exploits(self.trials, self._checkpoints)
        scheduler.set_search_properties(settings.metric, settings.mode)
        self._policies = Policies(
            settings,
            pending_suggestion=self.pending_suggestion,
            scheduler=scheduler,
            criteria=criteria,
            stopper=stopper,
            exploits=self.exploits,
        )
        #: The actions so far for the event that is being handled, and its time.
        self._actions: list[Action] = []
        self._now = 0.0
        #: The scheduler's commands that are still to be carried out. A queue, because carrying one
        #: out may end a trial, which may lead to further commands.
        self._commands: deque[Command] = deque()
        self._policies.attach(self.trial_index)
        scheduler.seed(for_scheduler)

    # Queries

    @property
    def finished(self) -> bool:
        """Whether every trial has ended and no other will be added."""
        return self.state.finished

    @property
    def total_trials(self) -> int | None:
        """The number of trials that the experiment will have; None if it is unknown.

        It counts the trials that the user has added. It is at least the number of trials that
        exist: a restored experiment may have more of them than a smaller ``num_samples`` allows.
        """
        total = self.search.total_samples
        return None if total is None else max(total + self.trial_index.num_added, len(self.trials))

    @property
    def waits_for_user(self) -> bool:
        """Whether the user has held the experiment or paused a trial."""
        return self.state.waits_for_user

    @property
    def is_stopped_by_failure(self) -> bool:
        """Whether a failure ended the experiment and would end it under the present limits, too."""
        failed = self.state.first_failed
        return failed is not None and self._failure_reason(failed) != ""

    def _failure_reason(self, failed: Trial) -> str:
        return experiment_failure_reason(self.settings, self.trials.values(), failed)

    @property
    def may_have_suggestion(self) -> bool:
        """Whether the search algorithm may suggest a trial, now or when it has answered."""
        return not (self.state.search_finished or self.state.search_waits)

    @property
    def wants_suggestion(self) -> bool:
        """Whether the search algorithm should be asked now."""
        enough = len(self.trial_index.pending) >= self.search.lookahead
        waits = self.state.on_hold or self.pending_suggestion.is_open or enough
        return self.may_have_suggestion and not waits and self.free_slots > 0

    @property
    def free_slots(self) -> float:
        """How many more trials may run now; infinite without a limit.

        The search algorithm observes the limit, too, but does not count trials that were reopened.
        """
        limit = self.settings.max_concurrent
        return limit - len(self.trial_index.active) if limit else inf

    @property
    def allows_prefetch(self) -> bool:
        """Whether a trial may be sent to a worker that still runs another one.

        False if a result may change which trial is next, because a trial stays on the worker to
        which it was sent.
        """
        return self.scheduler.starts_in_order and self.search.lookahead > 1

    @property
    def next_trial_id(self) -> str:
        """The name of the search algorithm's next trial."""
        return self.pending_suggestion.trial_id or self.free_trial_id

    @property
    def free_trial_id(self) -> str:
        """A name that neither a trial nor the pending suggestion has."""
        number = len(self.trial_index)
        while (name := f"{self.state.prefix}_{number:05d}") in self.trials or (
            name == self.pending_suggestion.trial_id
        ):
            number += 1
        return name

    def next_trial(self) -> Trial | None:
        """Return the trial that should get the next free place; changes nothing."""
        index = self.trial_index
        if self.state.on_hold or self.free_slots <= 0 or not (index.pending or index.paused):
            return None
        return self.scheduler.choose_trial_to_run(Waiting(index.pending, index.paused))

    # Events

    def handle(
        self, event: events.ExperimentEvent, recorded: RecordedDecisions | None = None
    ) -> HandleResult:
        """Apply an event, and return the actions that follow from it.

        Parameters
        ----------
        event : ExperimentEvent
            The event to apply.
        recorded : RecordedDecisions, optional
            In a replay, the journal's decisions about the event. They override those of the
            policies.

        Returns
        -------
        HandleResult
            The actions, and whether the event changed anything.

        Raises
        ------
        InvalidTransition
            If the trial's status does not allow the event, which is a bug in dasktune.
        """
        self._actions, self._now = [], event.time
        self._policies.recorded = recorded
        current, is_new_result = True, False
        trial = None
        if isinstance(event, events.TrialEvent):
            trial = self.trials[event.trial_id]
            current = is_current(trial, event)
            if current:
                is_new_result = self._on_trial_event(trial, event)
        else:
            self._on_other_event(event)
        self._carry_out_commands()
        if self.validate_each_event:
            self.trial_index.validate(*([trial] if trial else []))
        return HandleResult(self._actions, current, is_new_result)

    def _on_other_event(self, event: events.OtherEvent) -> None:  # noqa: C901, PLR0912, PLR0915 - one branch for each kind of event
        match event:
            case events.ResourcesGranted():
                self._start(self.trials[event.trial_id], event.num_ranks)
            case events.SuggestionAsked():
                self.pending_suggestion.open(event.trial_id)
            case events.Suggested():
                self._on_suggested(event)
            case events.Answered():
                self._commands.extend(self.scheduler.on_answer(event.number, event.answer))
            case events.TimePassed():
                self._on_time()
                self._resolve_standstill()
            case events.StopRequested():
                self._stop_everything(event.reason)
            case events.InterruptRequested():
                pass  # the run ends, and the experiment stays as it is
            case events.TrialStopRequested():
                self._stop(self.trials[event.trial_id], Stop(event.reason, early=False))
            case events.TrialPauseRequested() | events.TrialUnpauseRequested():
                self._pause_or_unpause(self.trials[event.trial_id], event)
            case events.TrialAddRequested():
                self._add(event)
            case events.TrialCheckpointRequested():
                if (action := user_requests.checkpoint_action(self.trials[event.trial_id])) is not None:
                    self._emit(action)
            case events.HoldRequested() | events.ReleaseRequested():
                self.state.on_hold = isinstance(event, events.HoldRequested)
            case events.ShareRequested():
                self._set_share(event.weight, event.priority, event.yields_after)
            case events.ShareExceeded():
                self._yield(self.trials[event.trial_id], event)
            case events.RoomForRanks():
                self._grow(self.trials[event.trial_id], event)
            case events.CheckpointLost() | events.CheckpointStored():
                self._actions += self._checkpoints.on_event(event)
            case events.ClusterChanged():
                self._commands.extend(self._policies.on_cluster_change(event.workers))
            case events.SessionBegan():
                self._begin_session(event.number)
            case events.TrialReopenRequested():
                self._reopen(self.trials[event.trial_id], fresh=event.fresh)
            case events.CapacityChanged():
                pass  # For observers and the journal only.
            case _:
                raise TypeError(f"the experiment cannot handle {type(event).__name__}")

    def _on_trial_event(self, trial: Trial, event: events.TrialEvent) -> bool:
        """Apply a worker's event, and return whether it brought a new result."""
        before = trial.status
        is_new_result = self._apply(trial, event)
        match event:
            case events.ResultReported():
                self._on_result(trial, event, is_new=is_new_result)
            case events.TrialFailed():
                self._on_failed(trial, event)
            case events.TrialLost():
                self._on_lost(trial, event)
            case events.RestoreFailed():
                self._checkpoints.lose(event.path)
            case _:
                pass  # Nothing to decide.
        if trial.status.is_final:
            self._conclude(trial, was_active=True)
        elif self._policies.on_status_change(trial, before):
            self.state.search_waits = False
        if not isinstance(event, events.ResultReported):
            # The event may have freed a place. The time budget is tested before a trial starts
            # there; `_on_result` has tested it already.
            self._on_time()
        if trial.status is TrialStatus.PAUSED and not self._commands:
            # The trial may have been the last one that ran, and the other trials may wait for it.
            self._resolve_standstill()
        return is_new_result

    def _apply(self, trial: Trial, event: events.TrialEvent) -> bool:
        was_suspect = trial.is_suspect
        # Nearly all events are results.
        if isinstance(event, events.ResultReported):
            if event.checkpoint is not None:
                self._actions += self._checkpoints.keep(trial, event.checkpoint)
        elif isinstance(event, events.CheckpointCommitted):
            self._actions += self._checkpoints.keep(trial, event.checkpoint)
        elif isinstance(event, events.TrialFailed):
            event = replace(event, error=judged(event.error, self.trials.values()))
        is_new_result = self.trial_index.apply(trial, event, event.time)
        if was_suspect and not trial.is_suspect and trial.status is TrialStatus.RUNNING:
            self._emit(AdmitOthers(trial_id=trial.trial_id, incarnation=trial.incarnation))
        return is_new_result

    def _on_suggested(self, event: events.Suggested) -> None:
        # First report to the search algorithm what happened while it computed, then add the trial.
        # The live experiment and its replay keep this order.
        may_suggest_again = self.pending_suggestion.close()
        if event.config is None:
            self.state.search_finished = self.state.search_finished or event.finished
            self.state.search_waits = not may_suggest_again
            if event.finished:
                self._commands.extend(self.scheduler.on_search_end())
        else:
            self._add(event)

    def _add(self, event: events.Suggested | events.TrialAddRequested) -> None:
        trial = new_trial(event, History(store=self._blocks, owner=event.trial_id))
        self.trial_index.add(trial)
        self._commands.extend(self.scheduler.on_trial_add(trial) or ())
        if self.state.stop_reason:
            # The end of the experiment was requested while the suggestion was computed.
            self._stop(trial, Stop(self.state.stop_reason, early=False))

    def _pause_or_unpause(
        self, trial: Trial, request: events.TrialPauseRequested | events.TrialUnpauseRequested
    ) -> None:
        action = user_requests.action_for_request(trial, request)
        if action is not None:
            self._emit(action)

    # Results

    def _on_result(self, trial: Trial, event: events.ResultReported, *, is_new: bool) -> None:
        result = event.metrics
        if is_new and self._goal is not None:
            self._keep_best(trial, score(result, *self._goal))
        if trial.status not in _DECIDABLE:
            self._on_time()
            return
        position = len(self._actions)
        decision = self._policies.decide(trial, result, event.time, is_new=is_new, at=position)
        if isinstance(decision, Fail):
            self._emit(trial_actions.fail_action(trial, decision.error))
            self._on_time()
        else:
            # If the time budget ends the experiment here, it stops the trial before the decision
            # is carried out, which then has no effect.
            self._on_time()
            self._carry_out(trial, decision)
        self._commands.extend(decision.commands)

    @staticmethod
    def _keep_best(trial: Trial, points: float | None) -> None:
        if points is not None and (trial.best_score is None or points > trial.best_score):
            trial.best_score = points

    def _carry_out(self, trial: Trial, decision: Decision) -> None:
        if trial.status not in _DECIDABLE:
            return  # The experiment was ended in the meantime.
        match decision:
            case Continue():
                if trial.awaiting_seq:
                    milestones = self._policies.milestones(trial)
                    self._emit(trial_actions.continue_action(trial, milestones, decision))
                    self._hold_checkpoint(trial, decision)
            case Pause():
                self._emit(trial_actions.pause_action(trial, decision))
                self._hold_checkpoint(trial, decision)
            case Resize():
                self._emit(trial_actions.resize_action(trial, decision))
                self._hold_checkpoint(trial, decision)
            case Exploit():
                self._exploit(self.exploits.action_for(trial, decision))
            case Stop():  # pragma: no branch - these are all
                self._stop(trial, decision)

    def _carry_out_commands(self) -> None:
        if not self._commands and self._policies.recorded is None:
            return
        trials, to_exploit = self.trials, self.exploits.action_for
        while True:
            proposed = trial_actions.next_command_action(self._commands, trials, to_exploit)
            action = self._policies.command(proposed, at=len(self._actions))
            if action is None:
                break
            if isinstance(action, ExploitTrial):
                self._exploit(action)
            elif isinstance(action, StopTrial | FinishTrial):
                self._stop(trials[action.trial_id], Stop(action.reason, early=action.early))
            else:
                self._emit(action)
        # In a replay, the scheduler may have given commands that the journal lacks. Discard them.
        self._commands.clear()

    def _hold_checkpoint(self, trial: Trial, decision: Continue | Pause | Resize) -> None:
        if decision.hold:
            self._actions += self._checkpoints.hold(trial)

    def _exploit(self, action: ExploitTrial | None) -> None:
        assert action is not None, "an exploit without a checkpoint was replaced when it was decided"
        trial, donor = self.trials[action.trial_id], self.trials[action.donor]
        self._emit(action)
        self._actions += self.exploits.apply(action)
        self._policies.on_exploit(trial, donor)
        if trial.status is TrialStatus.RUNNING:
            # A clone of another trial discards its own progress, so nothing is saved.
            pause = Pause(action.reason, save=trial is donor)
            self._emit(trial_actions.pause_action(trial, pause))

    # Starts and ends

    def _start(self, trial: Trial, num_ranks: int) -> None:
        key, incarnation, request = trial.trial_id, trial.incarnation, trial.resources
        if trial.status is TrialStatus.PAUSED:
            self._emit(UnpauseTrial(trial_id=key, incarnation=incarnation))
        if isinstance(request, ElasticPlacement) and num_ranks not in (0, len(request.bundles)):
            resized = request.resized(num_ranks)
            self._emit(ChangeRequest(trial_id=key, incarnation=incarnation, resources=resized))
        incarnation = self.state.next_incarnation(trial)
        self._emit(trial_actions.start_action(trial, incarnation, self._policies.on_start(trial)))

    def _on_failed(self, trial: Trial, event: events.TrialFailed) -> None:
        too_often = 0 <= self.settings.max_failures < trial.failures
        if trial.status is not TrialStatus.ERROR and (too_often or self._failure_reason(trial)):
            self._end_in_error(trial, event.error.message)

    def _on_lost(self, trial: Trial, event: events.TrialLost) -> None:
        too_often = trial.worker_losses > self.settings.max_worker_losses
        if too_often and trial.status in (TrialStatus.PENDING, TrialStatus.SUSPENDED):
            self._end_in_error(trial, lost_too_often(trial, event))

    def _end_in_error(self, trial: Trial, reason: str) -> None:
        self._emit(GiveUp(trial_id=trial.trial_id, incarnation=trial.incarnation, reason=reason))

    def _stop(self, trial: Trial, decision: Stop, *, at_once: bool = False) -> None:
        if trial_actions.ends_anyway(trial):
            return  # A trial that is stopped twice keeps the first reason.
        self._emit(trial_actions.stop_action(trial, decision, at_once=at_once))
        if trial.status.is_final:
            self._conclude(trial, was_active=False)

    def _conclude(self, trial: Trial, *, was_active: bool) -> None:
        """Report the end of a trial to the policies, once, and release its checkpoints."""
        self._actions += self._checkpoints.release_all(trial)
        self.state.search_waits = False
        self._commands.extend(self._policies.on_end(trial, was_active=was_active))
        failed = trial.status is TrialStatus.ERROR
        if failed and not self.state.stop_reason and (reason := self._failure_reason(trial)):
            self.state.first_failed = trial
            at_once = bool(self.settings.fail_fast) or trial.fails_all_trials
            self._stop_everything(reason, at_once=at_once)

    # Another session

    def _begin_session(self, number: int) -> None:
        """Continue under a new driver, unless a failure ended the experiment and still would."""
        self.state.session = number
        # The new driver's executor has the share of the settings.
        self._set_share(self.state.weight, self.state.priority, self.state.yields_after)
        self._policies.on_session_begin()
        # The last driver's search algorithm will not answer any more.
        self.pending_suggestion.close()
        self._checkpoints.lose_memory()
        self.state.search_waits = False
        if not self.is_stopped_by_failure:
            self.state.reopen()

    def _set_share(self, weight: float | None, priority: float | None, yields_after: float | None) -> None:
        state = self.state
        state.weight = state.weight if weight is None else weight
        state.priority = state.priority if priority is None else priority
        state.yields_after = state.yields_after if yields_after is None else yields_after
        if (weight, priority, yields_after) != (None, None, None):
            self._actions.append(SetShare(weight=weight, priority=priority, yields_after=yields_after))

    def _yield(self, trial: Trial, event: events.ShareExceeded) -> None:
        """Let a trial leave its worker for another experiment, unless it has left it meanwhile."""
        if trial.incarnation == event.incarnation and trial.status is TrialStatus.RUNNING:
            key, incarnation = trial.trial_id, trial.incarnation
            self._emit(YieldTrial(trial_id=key, incarnation=incarnation, reason=event.reason))

    def _grow(self, trial: Trial, event: events.RoomForRanks) -> None:
        """Let a trial leave to get all its ranks, unless it has left its workers meanwhile."""
        if trial.incarnation == event.incarnation and trial.status is TrialStatus.RUNNING:
            key, incarnation = trial.trial_id, trial.incarnation
            self._emit(GrowTrial(trial_id=key, incarnation=incarnation, reason=event.reason))

    def _reopen(self, trial: Trial, *, fresh: bool) -> None:
        was_final = trial.status.is_final
        self.state.reopen()
        key, incarnation = trial.trial_id, trial.incarnation
        deletions = self._checkpoints.drop_all(trial) if fresh else []
        self._emit(ReopenTrial(trial_id=key, incarnation=incarnation, fresh=fresh))
        self._actions += deletions
        if was_final:
            self._commands.extend(self.scheduler.on_trial_add(trial) or ())

    def state_dict(self, *, rows: bool = True) -> dict[str, Any]:
        """Return the state of the experiment and of its policies.

        Later events do not change what is returned.

        Parameters
        ----------
        rows : bool, default=True
            Whether the states of the trials have all of their results. Without them,
            :meth:`load_state_dict` needs `histories`.

        Returns
        -------
        dict
            Plain values except where configurations, metrics or policies hold something else.
        """
        return {
            "exploits": list(self.exploits.rows),
            "policies": self._policies.state_dict(),
            **self.state.state_dict(rows=rows, clones=self.scheduler.clones_trials),
        }

    def load_state_dict(self, state: Mapping[str, Any], histories: StoredHistories | None = None) -> None:
        """Restore what :meth:`state_dict` returned; call it before the first event.

        Parameters
        ----------
        state : mapping
            The state.
        histories : callable, optional
            ``histories(trial_id)`` returns the results of a trial whose state has only the last.

        Raises
        ------
        ConfigError
            If a policy is set up so differently that it cannot continue from its state.
        """
        self.state.load_state_dict(state, histories, self._blocks)
        self.exploits.rows = list(state["exploits"])
        self._checkpoints.recount()
        self._policies.load_state_dict(state["policies"], self.trials)

    # The time, and the end of the experiment

    def _on_time(self) -> None:
        is_over = bool(self.state.stop_reason)
        reason = self._policies.on_time(self._now, is_over=is_over, at=len(self._actions))
        if reason:
            self._actions.append(EndExperiment(reason=reason))
            self._stop_everything(reason)

    def _stop_everything(self, reason: str, *, at_once: bool = False) -> None:
        self.state.stop_reason = self.state.stop_reason or reason
        self.state.search_finished = True
        for trial in tuple(self.trials.values()):
            self._stop(trial, Stop(self.state.stop_reason, early=False), at_once=at_once)

    def _resolve_standstill(self) -> None:
        """Let the scheduler decide on the waiting trials if no trial runs and none may start.

        In this case no trial would ever end, and a search algorithm that waits for an end would
        wait forever. The scheduler may still unpause trials.
        """
        if self.state.waits_for_user:
            return  # The user decides how the experiment continues.
        if self.trial_index.active or self.wants_suggestion or self.next_trial() is not None:
            return
        if self.pending_suggestion.is_open or self.scheduler.questions:
            return  # The answer may still change this, and will be an event.
        self.state.search_waits = False
        if self.trial_index.unfinished:
            waiting = Waiting(self.trial_index.pending, self.trial_index.paused)
            self._commands.extend(self._policies.on_standstill(waiting))

    def _emit(self, action: TrialAction) -> None:
        trial = self.trials[action.trial_id]
        before = trial.status
        self.trial_index.apply(trial, action, self._now)
        if self._policies.on_status_change(trial, before):
            self.state.search_waits = False
        self._actions.append(action)
