"""The loop of the driver: events go to the experiment, its actions to executor and store.

Threads. The thread that calls :meth:`TrialRunner.run` is the loop, and only it touches the
experiment, its policies and the store. (While a suggestion is pending, the search algorithm belongs
to a background thread.) Others reach the loop in five ways, each safe at any moment:

- The executor's thread queues events, which `next_events` returns. An event that is queued after a
  call waits for the next one. An event that crosses an action is handled by the state machine; see
  `dasktune.experiment.experiment_machine`.
- A background thread answers the scheduler's questions, and another one computes suggestions. Both
  put answers into a queue of their own and then wake the loop. An answer that comes before the loop
  begins to wait ends that wait at once, because a wake-up is remembered.
- Other threads put commands into :class:`Commands` under its lock.
- `stop_soon` stores a reason in an attribute, then wakes the loop. If two threads call it at the
  same moment, one of the reasons is lost, and the experiment ends with the other.
- A signal handler, or any thread, calls `interrupt`, which sets a flag and then wakes the loop. A
  flag that is set right after the loop has read it is read again at once, because the wake-up ends
  the wait in between.

Order of effects. The record of an event is appended to the journal right after the experiment has
handled it, before the next event and before any of its actions is carried out. So a replay of the
records calls the policies in the same order. An action may take effect before the record is
durable: a driver that dies in between is restored without the event, and the trials that the action
has started are lost with the old session. Their workers may still write checkpoints. The next
driver cannot know the numbers of these starts, so its own starts have numbers of its session, which
are higher: a trial's next start fences the unknown ones and deletes what they have written. Only
two effects cannot be repeated and therefore wait for durability: the acknowledgement of a worker's
message, after which the worker forgets it, and the deletion of a checkpoint.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any, Literal

from dasktune.callback import CallbackList
from dasktune.experiment import ExperimentMachine, HandleResult
from dasktune.runner.background import RunInline
from dasktune.runner.capacity import same_capacity, total_capacity
from dasktune.runner.commands import CommandContext, Commands
from dasktune.runner.elastic_ranks import ElasticRanks, ElasticTimes
from dasktune.runner.measurement import Durations, RunMeasurement, measure
from dasktune.runner.naming import Naming
from dasktune.runner.ports import (
    BackgroundRunner,
    Clock,
    Observer,
    StorePort,
    TrialExecutor,
    dispatch,
)
from dasktune.runner.report_rates import ReportRates
from dasktune.runner.snapshot_interval import SnapshotInterval
from dasktune.runner.suggesting import Suggester
from dasktune.trial.actions import Action, ContinueTraining, ExploitTrial
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import (
    Answered,
    CapacityChanged,
    CheckpointCommitted,
    CheckpointLost,
    ClusterChanged,
    ExperimentEvent,
    InterruptRequested,
    OtherEvent,
    ResourcesGranted,
    RestoreFailed,
    ResultReported,
    SessionBegan,
    StopRequested,
    SuggestionAsked,
    TimePassed,
    TrialAddRequested,
    TrialCheckpointRequested,
    TrialEvent,
    TrialFailed,
    TrialLost,
)
from dasktune.trial.journal_codec import journal_record
from dasktune.trial.resources import ElasticPlacement, PlacementGroupFactory, least_request

logger = logging.getLogger(__name__)

#: Seconds for which trials are started before the next events are handled. Thousands can start at
#: once, and a search algorithm may compute for each.
_START_SECONDS = 0.05

#: Seconds for which the end of the run waits for a pending suggestion. If it comes in time, the
#: search algorithm learns how its last trials ended.
_LAST_SUGGESTION_SECONDS = 1.0


class TrialRunner:
    """Runs an experiment to its end.

    Parameters
    ----------
    experiment : ExperimentMachine
        The state machine.
    executor : TrialExecutor
        Runs the trials.
    store : StorePort
        Keeps the journal and the snapshots.
    clock : Clock
        The source of the time.
    resources_for : callable
        ``resources_for(config)`` returns a trial's resource request.
    observers : sequence of Observer, default=()
        Called after each event.
    poll_interval : float, default=0.25
        Longest wait for events, in seconds, and the accuracy of time budgets.
    checkpoint_period : float or "auto", default="auto"
        Seconds between two snapshots of the experiment's state, which shorten the replay of a later
        driver. By default at least 10, and long enough that snapshots take at most 5 % of the time.
    background : callable, default=RunInline
        Makes a background runner from the function that wakes the loop. It is called once for the
        scheduler's questions and once for the search algorithm. By default the loop computes the
        answers itself and waits for them.
    callbacks : CallbackList, optional
        The user's callbacks: observers whose states are part of the snapshots.
    naming : Naming, optional
        Names trials and their directories as the user wants; by default they are named after their
        ids.
    elastic : ElasticTimes, optional
        How long a trial waits for all of its ranks, and trains with fewer.

    Attributes
    ----------
    commands : Commands
        Requests of other threads.
    """

    def __init__(
        self,
        experiment: ExperimentMachine,
        executor: TrialExecutor,
        *,
        store: StorePort,
        clock: Clock,
        resources_for: Callable[[dict[str, Any]], PlacementGroupFactory],
        observers: Sequence[Observer] = (),
        poll_interval: float = 0.25,
        checkpoint_period: float | Literal["auto"] = "auto",
        background: Callable[[Callable[[], None]], BackgroundRunner] = RunInline,
        callbacks: CallbackList | None = None,
        naming: Naming | None = None,
        elastic: ElasticTimes | None = None,
    ) -> None:
        self.experiment = experiment
        self._executor = executor
        self._store = store
        self._clock = clock
        self._callbacks = callbacks
        #: Whether the end is recorded in a snapshot, so that no later driver reports it again.
        self._saves_end = False
        self._observers = [*observers, *([callbacks] if callbacks else [])]
        self._poll_interval = poll_interval
        self.commands = Commands(executor.wake)
        self._context = CommandContext(experiment, clock, resources_for, self)
        self._background = background(executor.wake)
        #: Numbers of the scheduler's questions that wait for an answer.
        self._open_questions: set[int] = set()
        at_once = experiment.search.answers_at_once
        self._suggester = Suggester(
            experiment.search,
            RunInline() if at_once else background(executor.wake),
            clock=clock,
            resources_for=resources_for,
            naming=naming,
        )
        #: The request of the last trial that was chosen to start, before any change of it.
        self._last_request: PlacementGroupFactory | None = None
        #: The last capacity in the journal.
        self._capacity: CapacityChanged | None = None
        self._interrupted = False
        #: Who has interrupted the run, for the journal; empty if that is recorded or not known.
        self._interrupted_by = ""
        #: How long it took to write checkpoints, for `measure`.
        self._saving = Durations()
        #: Why and for which user the loop ends the experiment at its next step.
        self._stop_reason = "", ""
        #: Whether the warning that everything waits for the user was logged.
        self._has_warned = False
        self._snapshot_interval = SnapshotInterval(checkpoint_period)
        self._report_rates = ReportRates()
        self._elastic = ElasticRanks(self._has_place, executor.has_room_instead, elastic)
        #: The newest event of each incarnation since the last commit. Acknowledging it acknowledges
        #: those before it.
        self._unacknowledged: dict[tuple[str, int], TrialEvent] = {}
        #: Events to acknowledge, each group with the position that must be durable first.
        self._acks: deque[tuple[int, Collection[TrialEvent]]] = deque()
        self._position = self._durable = 0
        #: Whether the last wait for events returned none.
        self._is_idle = False
        #: How often each kind of action was carried out; a result that needs none is not counted.
        self._num_actions: Counter[type[Action]] = Counter()
        #: Whether an earlier driver has run this experiment. It may have started any trial without
        #: a durable record of the start, also one that this driver suggests again.
        self._is_resumed = False

    @property
    def interrupted(self) -> bool:
        """Whether :meth:`interrupt` ended the run before the experiment was finished."""
        return self._interrupted

    def run(self) -> None:
        """Run until the experiment is finished or :meth:`interrupt` is called.

        At the end the executor is closed and the journal is durable, even after an exception.
        """
        with self.running():
            while not (self.experiment.finished or self._interrupted):
                self.step()
            self._end()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Begin the run, and close everything at its end; the caller calls :meth:`step`."""
        with ExitStack() as at_end:
            # These run from the last to the first, each even if another one raises. The executor is
            # closed first of the ports, so no trial writes any more when stale checkpoints are
            # deleted. Trials that ran when an interrupt came are unfinished in the journal, and a
            # later run continues them.
            at_end.callback(self._store.close)
            at_end.callback(self._notify_end)
            at_end.callback(self._remove_stale_checkpoints)
            at_end.callback(self._commit, force=True)
            at_end.callback(self._executor.close)
            at_end.callback(self.commands.close)
            at_end.callback(self._background.close)
            at_end.callback(self._suggester.close)
            # Time budgets count from here.
            self.tick()
            yield

    def _end(self) -> None:
        """Apply the last suggestion, or save the state of an interrupted run."""
        self.commands.close()
        if not self._interrupted:
            self._await_suggestion()
            self._saves_end = self._callbacks is not None
        else:
            if self._interrupted_by:
                self._handle(InterruptRequested(time=self._clock.now(), by=self._interrupted_by))
            self._withdraw()
            self._apply_suggestions()
            # A snapshot spares the next driver a replay. None is taken after an exception, when the
            # state may be ahead of the journal, or while the background thread changes the search
            # algorithm's state.
            if not self.experiment.pending_suggestion.is_open:
                self._take_snapshot()
        logger.info("%s", self.experiment.scheduler.debug_string())

    def tick(self) -> None:
        """Report the time to the experiment. A search algorithm that waited is asked again."""
        self._handle(TimePassed(time=self._clock.now()))
        waits = self.experiment.waits_for_user and not self.experiment.trial_index.active
        if waits and not self._has_warned:
            logger.warning(
                "nothing runs and nothing may start: %s trials are paused by the user%s",
                len(self.experiment.trial_index.paused_by_user),
                ", and new ones are held" if self.experiment.state.on_hold else "",
            )
        self._has_warned = waits

    def resume(
        self,
        requests: Callable[[float], Iterable[OtherEvent]] = lambda now: (),
        dropped: Iterable[CheckpointRecord] = (),
    ) -> None:
        """Take over an experiment from another driver; call it before :meth:`run`.

        The trials that ran under that driver are lost and wait for a place again, in their former
        order.

        Parameters
        ----------
        requests : callable, optional
            ``requests(now)`` returns the user's requests. It is called after the lost trials were
            reported.
        dropped : iterable of CheckpointRecord, optional
            Checkpoints that the other driver had to delete, but may not have deleted.
        """
        now = self._clock.now()
        trials = self.experiment.trials.values()
        self._is_resumed = True
        total = self.experiment.search.total_samples
        self._handle(SessionBegan(time=now, number=self._store.epoch, total_samples=total))
        # A lost trial goes before all waiting trials. Reporting the first trial last keeps the
        # order.
        for trial in reversed(tuple(trials)):
            if not trial.status.is_active:
                continue
            self._handle(
                TrialLost(
                    trial_id=trial.trial_id,
                    incarnation=trial.incarnation,
                    time=now,
                    reason="its driver was gone",
                    charged=False,
                )
            )
        for request in requests(now):
            self._handle(request)
        for key, trial in self.experiment.trials.items():
            if trial.ancestry:
                # The other driver may have died after it recorded the exploit, before it wrote this
                # file.
                self._write_exploit(key)
        # The policies may differ from those of the other driver. With this snapshot, no later
        # replay begins before this session.
        self._take_snapshot()
        for record in dropped:
            self._store.delete_checkpoint(record)
        self._commit(force=True)

    def interrupt(self, *, by: str = "") -> None:
        """Let :meth:`run` save what trials can save and return; they stay unfinished.

        Safe in a signal handler, and in any thread.

        Parameters
        ----------
        by : str, default=""
            Who does so, for the journal; nothing is recorded by default.
        """
        # The loop reads the name after it has seen the flag. If two threads come at the same
        # moment, one of the names is lost.
        self._interrupted_by = self._interrupted_by or by
        self._interrupted = True
        self._executor.wake()

    def measure(self, loop_lag: float) -> RunMeasurement:
        """Return numbers about the run, for `Commands.measure`. Only for the loop's thread."""
        journal = self._position, self._durable
        return measure(
            self.experiment, self._num_actions, journal=journal, saving=self._saving, loop_lag=loop_lag
        )

    def stop(self, reason: str, *, by: str = "") -> None:
        """End the experiment and stop every trial. Only for the loop's thread."""
        self._handle(StopRequested(reason=reason, time=self._clock.now(), by=by))

    def stop_soon(self, reason: str, *, by: str = "") -> None:
        """Let the loop call :meth:`stop` at its next step. Safe in any thread."""
        # One assignment: the loop sees both or none of them.
        self._stop_reason = reason, by
        self._executor.wake()

    def step(self) -> None:
        """Apply requests and answers, start trials, then handle the executor's events.

        The order is free: each of these is an event of its own in the journal, so that a replay
        repeats whatever order there was.
        """
        if self._callbacks:
            self._callbacks.on_step_begin()
        if self._stop_reason[0]:
            # A reason that another thread stores between these two accesses is lost, which changes
            # nothing: the experiment ends anyway.
            (reason, by), self._stop_reason = self._stop_reason, ("", "")
            self.stop(reason, by=by)
        self.commands.handle(self._context)
        for number, answer in self._background.answers() if self._open_questions else ():
            self._open_questions.discard(number)
            self._handle(Answered(number=number, answer=answer, time=self._clock.now()))
        self._apply_suggestions()
        # No snapshot is taken while a suggestion is pending, when the background thread may change
        # the search algorithm's state.
        idle = not self.experiment.pending_suggestion.is_open
        if idle and self._snapshot_interval.is_due(self._clock.now(), self._store.snapshot_seconds):
            self._take_snapshot()
        more = self._start_ready()
        # Trials that wait come first. A running trial that left for room which one of them takes
        # would start again with as few ranks as before. On hold it would not start again at all.
        if self.experiment.state.on_hold:
            self._executor.note_growing({})
        elif not more:
            for found in self._elastic.room_for_all(self.experiment.trials, self._clock.now()):
                self._handle(found)
            self._executor.note_growing(self._elastic.growing)
        self._handle_events(0.0 if more or self.experiment.finished else self._poll_interval)
        if self._callbacks:
            self._callbacks.on_step_end()

    def _await_suggestion(self) -> None:
        """Wait a short time for a pending suggestion."""
        until = self._clock.now() + _LAST_SUGGESTION_SECONDS
        while self.experiment.pending_suggestion.is_open and not self._interrupted:
            left = until - self._clock.now()
            if left <= 0:
                logger.info(
                    "the search algorithm is still computing a suggestion after %g s; the ends of "
                    "its last trials are not reported to it",
                    _LAST_SUGGESTION_SECONDS,
                )
                return
            self._handle_events(left)
            self._apply_suggestions()

    def _withdraw(self) -> None:
        """Let trials save what they can, and write checkpoints in memory to the storage."""
        # None starts any more, so an adaptive cluster and other experiments must not wait for them.
        self._executor.note_waiting(None, 0)
        self._executor.note_growing({})
        self._executor.withdraw()
        while self.experiment.trial_index.active:
            self._handle_events(self._poll_interval)
        # Checkpoints in memory do not outlive this driver. Each is reported as stored or as lost,
        # and either event removes it from its trial's checkpoints in memory.
        trials = [one for one in self.experiment.trials.values() if one.memory_checkpoints]
        for trial in trials:
            for record in trial.memory_checkpoints:
                self._executor.store_checkpoint(record)
        while any(trial.memory_checkpoints for trial in trials):
            self._handle_events(self._poll_interval)

    def _handle_events(self, timeout: float) -> None:
        """Wait for events of the executor, handle them, and commit what is due."""
        events = self._executor.next_events(timeout)
        self._is_idle = timeout > 0 and not events
        for event in events:
            follows = self.experiment.scheduler.follows_cluster
            if follows or not isinstance(event, ClusterChanged):
                self._handle(event)
            else:
                self._note_capacity(event)
        if not events:
            self.tick()
        self._commit()
        trials, active = self.experiment.trials, self.experiment.trial_index.active
        too_fast = self._report_rates.message(self._clock.now(), trials, active)
        if too_fast:
            logger.warning("%s", too_fast)

    def _note_capacity(self, event: ClusterChanged) -> None:
        """Record only total capacity: most schedulers need no more, and clusters may be large."""
        capacity = total_capacity(event)
        if self._capacity is None or not same_capacity(capacity, self._capacity):
            self._capacity = capacity
            self._handle(capacity)

    def _take_snapshot(self) -> None:
        self._store.save_snapshot(self._state)

    def _state(self, *, rows: bool = True) -> dict[str, Any]:
        callbacks = self._callbacks.state_dict() if self._callbacks else {}
        return {**self.experiment.state_dict(rows=rows), **callbacks}

    def _start_ready(self) -> bool:
        """Start trials for a short time, and return whether more may be ready to start."""
        experiment = self.experiment
        begun = now = self._clock.now()
        while now - begun <= _START_SECONDS:
            self._request_suggestions()
            trial = experiment.next_trial()
            if trial is None:
                self._elastic.note_none_waits()
                self._note_waiting(self._expected_request())
                return False
            now = self._clock.now()
            request, has_place = self._elastic.place(trial, now)
            # The next trial requests all of its ranks, although this one may get fewer.
            self._last_request = trial.base_resources
            if not has_place:
                self._note_waiting(request)
                return False
            num_ranks = len(request.bundles) if isinstance(request, ElasticPlacement) else 0
            self._handle(ResourcesGranted(trial_id=trial.trial_id, time=now, num_ranks=num_ranks))
            self._elastic.note_start(trial, now)
        return True

    def _note_waiting(self, request: PlacementGroupFactory | None) -> None:
        self._executor.note_waiting(request, 0 if request is None else _num_waiting(self.experiment))

    def _expected_request(self) -> PlacementGroupFactory | None:
        """Return the expected request of a pending suggestion if it does not fit now.

        The suggestion is expected to request the same as the last trial.
        """
        request, experiment = self._last_request, self.experiment
        waits = experiment.pending_suggestion.is_open and experiment.free_slots > 0
        # The fewest ranks are enough. All of them may be more than the workers can ever hold.
        if request is None or not waits or self._has_place(least_request(request)):
            return None
        return request

    def _has_place(self, request: PlacementGroupFactory) -> bool:
        executor = self._executor
        return executor.has_resources(request) or (
            self.experiment.allows_prefetch and executor.can_prefetch(request)
        )

    def _request_suggestions(self) -> None:
        """Request the suggestion that is needed now, or all that may be requested ahead.

        The whole lookahead takes as long as the start of several trials, so it waits until nothing
        else happens, unless the scheduler chooses among all trials that wait.
        """
        experiment = self.experiment
        ahead = self._is_idle or not experiment.scheduler.starts_in_order
        while experiment.wants_suggestion and (ahead or not experiment.trial_index.pending):
            self._request_suggestion()

    def _request_suggestion(self) -> None:
        experiment = self.experiment
        trial_id = experiment.next_trial_id
        if not experiment.search.answers_at_once:
            # This event precedes the request: from it on, calls to the search algorithm are
            # deferred.
            self._handle(SuggestionAsked(trial_id=trial_id, time=self._clock.now()))
        self._suggester.request(trial_id)
        self._apply_suggestions()

    def _apply_suggestions(self) -> None:
        """Handle the suggestions that were computed since the last call."""
        for suggested in self._suggester.suggestions():
            self._handle(suggested)
            if suggested.config is not None:
                self._write_params(suggested.trial_id)

    def _count_save(self, checkpoint: CheckpointRecord) -> None:
        if checkpoint.seconds is not None:
            self._saving.add(checkpoint.seconds)

    def _write_params(self, trial_id: str) -> None:
        trial = self.experiment.trials[trial_id]
        self._store.write_params(trial.folder, trial.config, pickled=trial.pickled)

    def _write_exploit(self, trial_id: str) -> None:
        """Write a clone's configuration and the exploits that led to it."""
        self._write_params(trial_id)
        trial, rows = self.experiment.trials[trial_id], self.experiment.exploits.rows
        if trial.ancestry and self.experiment.scheduler.writes_policies:
            self._store.write_policy(trial.folder, rows, trial.ancestry)

    def apply_request(self, event: OtherEvent) -> None:
        """Handle a request of the user. Only for the loop's thread."""
        self._handle(event)
        if isinstance(event, InterruptRequested):
            self.interrupt()
        if isinstance(event, TrialAddRequested):
            self._write_params(event.trial_id)

    def _handle(self, event: ExperimentEvent) -> None:
        experiment = self.experiment
        handled = experiment.handle(event)
        if isinstance(event, ResultReported | CheckpointCommitted) and event.checkpoint is not None:
            self._count_save(event.checkpoint)
        has_new_questions = self._submit_questions()
        # The passing of time is recorded only if it had an effect. A new question of the scheduler
        # is such an effect: a replay must let the scheduler ask it again.
        if has_new_questions or handled.actions or not isinstance(event, TimePassed):
            self._record(event, handled)
        # A callback may request a checkpoint of the result that its trial waits at. The trial gets
        # the request before it gets the order to continue, and so saves exactly this result. Only
        # the trial of the event can wait, so there is at most one such order.
        last = None
        if handled.actions and self._callbacks:
            last = next((one for one in handled.actions if isinstance(one, ContinueTraining)), None)
        for action in handled.actions:
            self._num_actions[type(action)] += 1
            if action is last:
                continue
            dispatch(action, self._executor, self._store)
            if isinstance(action, ExploitTrial):
                self._write_exploit(action.trial_id)
        for observer in tuple(self._observers):
            self._notify(observer, lambda watcher: watcher.on_event(event, handled, experiment))
        for trial_id in self._callbacks.take_checkpoint_requests() if self._callbacks else ():
            self._handle(TrialCheckpointRequested(trial_id=trial_id, time=self._clock.now()))
        if last is not None:
            dispatch(last, self._executor, self._store)

    def _submit_questions(self) -> bool:
        """Submit the scheduler's new questions, and return whether there were any."""
        questions = self.experiment.scheduler.questions
        new = [number for number in questions if number not in self._open_questions]
        for number in new:
            self._open_questions.add(number)
            self._background.submit(number, questions[number])
        return bool(new)

    def _record(self, event: ExperimentEvent, handled: HandleResult) -> None:
        """Append an event to the journal, and log losses and failures."""
        trial = self.experiment.trials.get(getattr(event, "trial_id", ""))
        record = journal_record(event, handled.actions, trial, is_current=handled.is_current)
        self._position = self._store.append(record)
        if isinstance(event, TrialEvent) and event.seq:
            # This includes outdated and repeated events: a worker repeats them until acknowledged.
            self._unacknowledged[event.trial_id, event.incarnation] = event
        if isinstance(event, TrialFailed):
            folder = self.experiment.trials[event.trial_id].folder
            self._store.write_error(folder, event.error.traceback or event.error.message)
        elif isinstance(event, CheckpointLost):
            logger.info("trial %s lost its checkpoint in memory: %s", event.trial_id, event.reason)
        elif isinstance(event, RestoreFailed) and handled.is_current:
            older = self.experiment.trials[event.trial_id].restore_point
            logger.warning(
                "trial %s cannot resume from its checkpoint, and resumes from %s: %s",
                event.trial_id,
                "its beginning" if older is None else f"the one of iteration {older.iteration}",
                event.reason,
            )
        elif isinstance(event, TrialLost):
            level = logging.WARNING if event.charged else logging.INFO
            logger.log(level, "trial %s lost its worker: %s", event.trial_id, event.reason)

    def _commit(self, *, force: bool = False) -> None:
        """Commit the journal if that is due, and acknowledge the events that are durable.

        If the driver dies between the two, the worker still has the messages. The next driver
        ignores them as outdated, because their incarnation ends with this session.
        """
        if self._unacknowledged:
            self._acks.append((self._position, self._unacknowledged.values()))
            self._unacknowledged = {}
        self._durable = durable = self._store.commit(force=force)
        while self._acks and self._acks[0][0] <= durable:
            for event in self._acks.popleft()[1]:
                self._executor.acknowledge(event.trial_id, event.incarnation, event.seq)

    def _remove_stale_checkpoints(self) -> None:
        """Delete checkpoints that earlier incarnations of ended trials may have left behind."""
        for trial in self.experiment.trials.values():
            may_have = trial.losses or trial.failures or self._is_resumed
            if trial.status.is_final and may_have:
                kept = {record.path for record in trial.kept_checkpoints}
                self._store.remove_stale_checkpoints(trial.folder, trial.incarnation, kept)

    def _notify_end(self) -> None:
        for observer in tuple(self._observers):
            self._notify(observer, lambda watcher: watcher.on_end(self.experiment))
        if self._saves_end and not self.experiment.pending_suggestion.is_open:
            # The snapshot records that the callbacks were called. Otherwise the next driver would
            # call them again.
            self._take_snapshot()

    def _notify(self, observer: Observer, call: Callable[[Observer], None]) -> None:
        try:
            call(observer)
        except Exception:
            logger.exception("%r raised and is not called again", observer)
            self._observers.remove(observer)


def _num_waiting(experiment: ExperimentMachine) -> int:
    """Return how many trials would start now if they had room, without requesting suggestions."""
    index = experiment.trial_index
    pending = max(1, len(index.pending))
    if not experiment.may_have_suggestion:
        return int(min(pending, experiment.free_slots))
    total = experiment.total_trials
    left = inf if total is None else total - len(index)
    # An algorithm with a lookahead suggests these whatever the results are.
    ahead = max(0, min(left, experiment.search.lookahead - pending))
    # One that learns from results may suggest no more at any time. It is assumed to suggest as many
    # as run already, so the demand doubles until it stops.
    more = max(0, min(left - ahead, len(index.active) - pending - ahead))
    return int(min(pending + ahead + more, experiment.free_slots))
