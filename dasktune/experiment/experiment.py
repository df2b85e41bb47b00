"""The state machine of an experiment: facts in, commands out.

It knows no clock, file, thread or cluster. Time arrives in the events, and whatever must be done
leaves as actions, so that the same events always give the same decisions: in a simulation, on a
cluster, and when a journal is replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.random import SeedSequence, default_rng

from dasktune.experiment import orders, wishes
from dasktune.experiment.agenda import Agenda
from dasktune.experiment.cloning import Cloning
from dasktune.experiment.custody import Custody
from dasktune.experiment.judging import Judge, record
from dasktune.experiment.newcomers import newcomer
from dasktune.experiment.precedent import Precedent
from dasktune.experiment.reopening import wipe
from dasktune.experiment.resizing import resize
from dasktune.experiment.roster import is_news
from dasktune.experiment.setbacks import count_failure, count_loss, is_cleared, lost_too_often
from dasktune.experiment.settings import ExperimentSettings
from dasktune.experiment.verdict import Fail
from dasktune.schedulers.decision import Command, Continue, Decision, Exploit, Pause, Resize, Stop
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.search.searcher import SearchAlgorithm
from dasktune.stopper import Stopper
from dasktune.trial.actions import (
    Action,
    AdmitOthers,
    AnyTrialAction,
    EndExperiment,
    ExploitTrial,
    FinishTrial,
    GiveUp,
    ReopenTrial,
    StopTrial,
    UnpauseTrial,
)
from dasktune.trial.events import (
    Answered,
    AnyTrialEvent,
    CapacityChanged,
    CheckpointCommitted,
    CheckpointLost,
    CheckpointStored,
    ClusterChanged,
    ErrorInfo,
    ExperimentEvent,
    HoldRequested,
    OtherEvent,
    ReleaseRequested,
    ResourcesGranted,
    ResultReported,
    SessionBegan,
    StartFailed,
    StopRequested,
    Suggested,
    SuggestionAsked,
    TimePassed,
    TrialAddRequested,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialPauseRequested,
    TrialReopenRequested,
    TrialReturned,
    TrialStarted,
    TrialStopped,
    TrialStopRequested,
    TrialUnpauseRequested,
)
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import NO_STORY, Trial

__all__ = ["Experiment"]

#: Whose results are judged: who runs, as far as it has heard.
_JUDGED = frozenset({TrialStatus.RUNNING, TrialStatus.SUSPENDING})


class Experiment(Agenda):
    """Owns the trials and the policies that decide about them.

    Parameters
    ----------
    settings : ExperimentSettings
        Limits and goals.
    search : SearchAlgorithm
        Proposes configurations; already set up.
    scheduler : TrialScheduler
        Prioritises, pauses and stops trials.
    criteria : Stopper
        Stop criteria that depend on nothing but the result: they are tested again on recomputed
        ones.
    stopper : Stopper
        Any other stop criteria; each result is shown to it once.
    seed : SeedSequence
        Names the trials, and seeds the scheduler.
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
    ) -> None:
        names, scheduling = seed.spawn(2)
        prefix = f"{int(default_rng(names).integers(16**5)):05x}"
        super().__init__(settings, search, scheduler, prefix)
        self._checkpoints = Custody(self.roster.trials, settings.retention)
        #: Who goes on from whom.
        self.cloning = Cloning(self.roster.trials, self._checkpoints)
        self._judge = Judge(
            settings,
            inquiry=self.inquiry,
            scheduler=scheduler,
            criteria=criteria,
            stopper=stopper,
            cloning=self.cloning,
        )
        self._actions: list[Action] = []
        #: Still to be obeyed: a queue, lest a chain of commands become a chain of calls.
        self._commands: deque[Command] = deque()
        self._judge.show(self.roster)
        scheduler.set_search_properties(settings.metric, settings.mode)
        scheduler.seed(scheduling)

    # What happened

    def handle(self, event: ExperimentEvent, precedent: Precedent | None = None) -> list[Action]:
        """Take a fact, and return what must be done about it, in order.

        Parameters
        ----------
        event : ExperimentEvent
            What happened. Events of an incarnation that is no more are ignored.
        precedent : Precedent, optional
            What was decided about it, if it is an old story. Then that is decided again.

        Returns
        -------
        list of Action
            The commands, already counted as obeyed in the trials' statuses.

        Raises
        ------
        InvalidTransition
            If the trial's status does not allow the event: a bug in dasktune.
        """
        self._actions = [] if precedent is None else precedent.done
        self._judge.precedent = precedent
        self.heeded = self.brought_result = False
        trial = None
        if isinstance(event, TrialEvent):
            trial = self.roster.trials[event.trial_id]
            if is_news(trial, event):
                self.heeded = True
                self._on_trial_event(trial, event)
        else:
            self._on_experiment_event(event)
        self._obey_commands(event.time)
        if self.validate_each_event:
            self.roster.validate(*([trial] if trial else []))
        return self._actions

    def _on_experiment_event(self, event: OtherEvent) -> None:
        match event:
            case ResourcesGranted():
                self._start(self.roster.trials[event.trial_id], event.time)
            case SuggestionAsked():
                self.inquiry.open(event.trial_id)
            case Suggested():
                self._on_suggested(event)
            case Answered():
                self._commands.extend(self.scheduler.on_answer(event.number, event.answer))
            case TimePassed():
                self._on_time(event.time)
                self._end_a_standstill()
            case StopRequested():
                self._stop_everything(event.reason, event.time)
            case TrialStopRequested():
                self._stop(self.roster.trials[event.trial_id], event.reason, event.time)
            case TrialPauseRequested() | TrialUnpauseRequested():
                self._let_rest(self.roster.trials[event.trial_id], event)
            case TrialAddRequested():
                self._add(event)
            case HoldRequested() | ReleaseRequested():
                self.on_hold = isinstance(event, HoldRequested)
            case CheckpointLost() | CheckpointStored():
                self._actions += self._checkpoints.hear(event)
            case ClusterChanged():
                self._commands.extend(self._judge.tell_cluster(event.workers))
            case SessionBegan():
                self._begin_session()
            case TrialReopenRequested():
                self._reopen(self.roster.trials[event.trial_id], fresh=event.fresh)
            case CapacityChanged():  # pragma: no branch - these are all
                pass  # It is for those who look.

    def _on_trial_event(self, trial: Trial, event: AnyTrialEvent) -> None:
        before = self.roster.move(trial, event)
        trial.last_seq = max(trial.last_seq, event.seq)
        match event:
            case ResultReported():
                self._on_result(trial, event)
            case TrialStarted():
                trial.worker = event.worker
                trial.started_at = event.time if trial.started_at is None else trial.started_at
            case CheckpointCommitted():
                self._actions += self._checkpoints.keep(trial, event.checkpoint)
                self._clear(trial)
            case TrialFailed():
                self._on_failed(trial, event)
            case TrialLost():
                self._on_lost(trial, event)
            case (  # pragma: no branch - these are all
                TrialEnded() | TrialStopped() | TrialPaused() | TrialReturned() | StartFailed()
            ):
                pass
        if trial.status.is_final:
            self._conclude(trial, event.time, was_active=True)
        elif self._judge.note_rest(trial, before):
            self._search_waits = False
        if not isinstance(event, ResultReported):
            # Whatever has made room: nothing may start there once the time is up.
            self._on_time(event.time)
        if trial.status is TrialStatus.PAUSED and not self._commands:
            # It may be the one that all others have waited for.
            self._end_a_standstill()

    def _on_suggested(self, event: Suggested) -> None:
        has_learnt = self.inquiry.close()
        if event.config is None:
            self._search_finished = self._search_finished or event.finished
            self._search_waits = not has_learnt
            if event.finished:
                self._commands.extend(self.scheduler.on_search_end())
        else:
            self._add(event)

    def _add(self, event: Suggested | TrialAddRequested) -> None:
        trial = newcomer(event)
        self.roster.add(trial)
        self._commands.extend(self.scheduler.on_trial_add(trial) or ())
        if self.stop_reason:
            # It was asked for before the stop and answered after it.
            self._stop(trial, self.stop_reason, event.time)

    def _let_rest(self, trial: Trial, wish: TrialPauseRequested | TrialUnpauseRequested) -> None:
        order = wishes.order_for(trial, wish)
        if order is not None:
            trial.pause_reason = getattr(order, "reason", "")
            self._emit(order)

    # Results

    def _on_result(self, trial: Trial, event: ResultReported) -> None:
        if event.checkpoint is not None:
            self._actions += self._checkpoints.keep(trial, event.checkpoint)
        result = event.metrics
        # What crosses the order to be a clone on the wire is of another past.
        is_new = trial.cloned_in < trial.incarnation and record(trial, result)
        self.brought_result = is_new
        self._clear(trial)
        if trial.status not in _JUDGED:
            self._on_time(event.time)
            return
        if event.awaits and trial.status is TrialStatus.RUNNING:
            trial.awaiting_seq = event.seq
        verdict = self._judge.judge(trial, result, event.time, is_new=is_new)
        if isinstance(verdict, Fail):
            self._fail(trial, verdict.error)
            self._on_time(event.time)
        else:
            self._on_time(event.time)
            self._obey(trial, verdict, event.time)
        self._commands.extend(verdict.commands)

    def _fail(self, trial: Trial, error: ErrorInfo) -> None:
        trial.errors.append(error)
        trial.reason = error.message
        self._emit(orders.to_fail(trial, error))

    def _obey(self, trial: Trial, decision: Decision, now: float) -> None:
        if trial.status not in _JUDGED:
            return  # Everything ends now.
        match decision:
            case Continue():
                if trial.awaiting_seq:
                    milestones = self._judge.milestones(trial)
                    self._emit(orders.to_go_on(trial, milestones, decision))
                    trial.awaiting_seq = 0
                    self._hold(trial, decision)
            case Pause():
                trial.pause_reason = decision.reason
                self._emit(orders.to_pause(trial, decision))
                self._hold(trial, decision)
            case Resize():
                trial.pause_reason = decision.reason
                self._emit(orders.to_resize(trial, decision))
                self._hold(trial, decision)
            case Exploit():
                self._exploit(self.cloning.order(trial, decision))
            case Stop():  # pragma: no branch - these are all
                self._stop(trial, decision.reason, now, early=decision.early)

    def _obey_commands(self, now: float) -> None:
        if not self._commands and self._judge.precedent is None:
            return
        trials = self.roster.trials
        clone = self.cloning.order
        while order := self._judge.order(orders.next_order(self._commands, trials, clone)):
            if isinstance(order, ExploitTrial):
                self._exploit(order)
            elif isinstance(order, StopTrial | FinishTrial):
                self._stop(trials[order.trial_id], order.reason, now, early=order.early)
            else:
                self._emit(order)
        # What an old story did not come to.
        self._commands.clear()

    def _hold(self, trial: Trial, decision: Continue | Pause | Resize) -> None:
        if decision.hold:
            self._actions += self._checkpoints.hold(trial)

    def _exploit(self, order: ExploitTrial | None) -> None:
        assert order is not None, "a decision is settled when it is made"
        trial, donor = self.roster.trials[order.trial_id], self.roster.trials[order.donor]
        trial.pause_reason = order.reason
        self._emit(order)
        self._actions += self.cloning.carry_out(order)
        self._judge.note_clone(trial, donor)
        if trial.status is TrialStatus.RUNNING:
            # What a clone of another one has come to is given up.
            self._emit(orders.to_pause(trial, Pause(order.reason, save=trial is donor)))

    # Starts and ends

    def _start(self, trial: Trial, now: float) -> None:
        if trial.status is TrialStatus.PAUSED:
            self._emit(UnpauseTrial(trial_id=trial.trial_id, incarnation=trial.incarnation))
        trial.incarnation += 1
        trial.last_seq = 0
        self._emit(orders.to_start(trial, self._judge.begin(trial)))

    def _clear(self, trial: Trial) -> None:
        if is_cleared(trial) and trial.status is TrialStatus.RUNNING:
            self._emit(AdmitOthers(trial_id=trial.trial_id, incarnation=trial.incarnation))

    def _on_failed(self, trial: Trial, event: TrialFailed) -> None:
        too_often = count_failure(trial, event.error, self.settings.max_failures)
        if trial.status is TrialStatus.ERROR:
            trial.reason = event.error.message
        elif too_often or self._why_all_ends(trial):
            self._give_up(trial, event.error.message)

    def _on_lost(self, trial: Trial, event: TrialLost) -> None:
        too_often = count_loss(trial, event, self.settings.max_worker_losses)
        if too_often and trial.status in (TrialStatus.PENDING, TrialStatus.SUSPENDED):
            self._give_up(trial, lost_too_often(trial, event))

    def _give_up(self, trial: Trial, reason: str) -> None:
        trial.reason = reason
        self._emit(GiveUp(trial_id=trial.trial_id, incarnation=trial.incarnation, reason=reason))

    def _stop(self, trial: Trial, reason: str, now: float, *, early: bool = False) -> None:
        if orders.ends_anyway(trial):
            return
        trial.reason, trial.stopped_early = reason, early
        self._emit(orders.to_stop(trial, reason, early=early))
        if trial.status.is_final:
            self._conclude(trial, now, was_active=False)

    def _conclude(self, trial: Trial, now: float, *, was_active: bool) -> None:
        """Tell everybody, once, that a trial has ended for good."""
        trial.ended_at = now
        trial.story = NO_STORY
        self._actions += self._checkpoints.settle(trial)
        self._search_waits = False
        self._commands.extend(self._judge.conclude(trial, was_active=was_active))
        failed = trial.status is TrialStatus.ERROR
        if failed and not self.stop_reason and (reason := self._why_all_ends(trial)):
            self.first_error = trial
            self._stop_everything(reason, now)

    # Another session

    def _begin_session(self) -> None:
        """Go on, unless a failure has ended everything and nothing is to be done about it."""
        self._judge.begin_session()
        # Who was asked is no more, with the answer.
        self.inquiry.close()
        self._checkpoints.lose_memory()
        self._search_waits = False
        if not self.is_cut_off:
            self._go_on()

    def _reopen(self, trial: Trial, *, fresh: bool) -> None:
        was_final = trial.status.is_final
        self._go_on()
        key, incarnation = trial.trial_id, trial.incarnation
        self._emit(ReopenTrial(trial_id=key, incarnation=incarnation, fresh=fresh))
        wipe(trial, fresh=fresh)
        if fresh:
            self._actions += self._checkpoints.drop_all(trial)
        if was_final:
            self._commands.extend(self.scheduler.on_trial_add(trial) or ())

    def state_dict(self) -> dict[str, Any]:
        """Return all that the experiment knows, its policies' states included.

        Later events do not change what is returned.

        Returns
        -------
        dict
            Plain values except where configurations, metrics or policies hold something else.
        """
        return {
            "exploits": list(self.cloning.rows),
            "policies": self._judge.state_dict(),
            **super().state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave; to be called before any event.

        Parameters
        ----------
        state : mapping
            The state.

        Raises
        ------
        ConfigError
            If a policy is set up so differently that it cannot go on from its state.
        """
        super().load_state_dict(state)
        self.cloning.rows = list(state["exploits"])
        self._checkpoints.recount()
        self._judge.load_state_dict(state["policies"])

    # Time, and the end of everything

    def _on_time(self, now: float) -> None:
        reason = self._judge.tell_time(now, over=bool(self.stop_reason))
        if reason:
            self._actions.append(EndExperiment(reason=reason))
            self._stop_everything(reason, now)

    def _stop_everything(self, reason: str, now: float) -> None:
        self.stop_reason = self.stop_reason or reason
        self._search_finished = True
        for trial in tuple(self.roster.trials.values()):
            self._stop(trial, self.stop_reason, now)

    def _end_a_standstill(self) -> None:
        """Ask what becomes of those that wait, so that an experiment cannot hang on its policies.

        Where nothing runs and nothing may start, no trial will ever end by itself, which is what a
        search that waits is waiting for. The scheduler may still let some go on.
        """
        if self.waits_for_user:
            return  # Nobody goes on or ends in the place of those who wait for the user.
        if self.roster.active or self.wants_suggestion or self.next_trial() is not None:
            return
        if self.inquiry.is_open or self.scheduler.questions:
            return  # Whoever waits for an answer goes on by it.
        self._search_waits = False
        if self.roster.unfinished:
            waiting = Waiting(self.roster.pending, self.roster.paused)
            self._commands.extend(self._judge.end_standstill(waiting))

    def _emit(self, action: AnyTrialAction) -> None:
        trial = self.roster.trials[action.trial_id]
        before = self.roster.move(trial, action)
        if self._judge.note_rest(trial, before):
            self._search_waits = False
        resize(trial, action)
        self._actions.append(action)
