"""The loop: what happened goes to the experiment, what it wants goes to the executor."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from dasktune.callback import CallbackList
from dasktune.experiment import Experiment
from dasktune.runner.asking import Asker
from dasktune.runner.capacity import is_alike, summed
from dasktune.runner.carrying import carry_out
from dasktune.runner.commands import Commands, Desk
from dasktune.runner.naming import Naming
from dasktune.runner.ports import Clock, ExperimentStore, Observer, Thinker, TrialExecutor
from dasktune.runner.records import journal_record
from dasktune.runner.snapshot_pace import SnapshotPace
from dasktune.runner.thinking import ThinkingAtOnce
from dasktune.trial.actions import Action, ExploitTrial
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import (
    Answered,
    CapacityChanged,
    CheckpointLost,
    ClusterChanged,
    ExperimentEvent,
    OtherEvent,
    ResourcesGranted,
    SessionBegan,
    StopRequested,
    SuggestionAsked,
    TimePassed,
    TrialAddRequested,
    TrialEvent,
    TrialFailed,
    TrialLost,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

__all__ = ["TrialRunner"]

logger = logging.getLogger(__name__)

#: Seconds for which trials are started before those that run are heard again: thousands can start
#: at once, and a search may think about each.
_TURN = 0.05

#: Seconds for which the search may go on thinking when everything else has ended. If it answers by
#: then, it still hears how its last trials ended.
_LAST_WORD = 1.0


class TrialRunner:
    """Drives an experiment to its end.

    Parameters
    ----------
    experiment : Experiment
        Decides.
    executor : TrialExecutor
        Acts.
    store : ExperimentStore
        Remembers. A result is acknowledged to its worker, and a checkpoint deleted, only when the
        journal that says so is safe.
    clock : Clock
        Tells the time.
    resources_for : callable
        ``resources_for(config)`` gives what a trial needs.
    observers : sequence of Observer, default=()
        Watch.
    poll_interval : float, default=0.25
        Longest wait for events, in seconds; what time budgets are accurate to.
    checkpoint_period : float or "auto", default="auto"
        Seconds between two snapshots of the experiment's state, from which a later driver goes on
        sooner. By default at least 10, and so many that they take at most 5 % of the time.
    thinker : callable, default=ThinkingAtOnce
        Makes who thinks about the scheduler's questions, and another who thinks for the search;
        called with what wakes the runner when there is an answer. By default they think at once,
        which keeps everybody waiting.
    callbacks : CallbackList, optional
        Observe, too, and their states are part of the snapshots.
    naming : Naming, optional
        Calls trials what the user wants; by default they and their directories are called by their
        ids.

    Attributes
    ----------
    commands : Commands
        By which other threads say what they want done.
    """

    def __init__(
        self,
        experiment: Experiment,
        executor: TrialExecutor,
        *,
        store: ExperimentStore,
        clock: Clock,
        resources_for: Callable[[dict[str, Any]], PlacementGroupFactory],
        observers: Sequence[Observer] = (),
        poll_interval: float = 0.25,
        checkpoint_period: float | Literal["auto"] = "auto",
        thinker: Callable[[Callable[[], None]], Thinker] = ThinkingAtOnce,
        callbacks: CallbackList | None = None,
        naming: Naming | None = None,
    ) -> None:
        self.experiment = experiment
        self._executor = executor
        self._store = store
        self._clock = clock
        self._callbacks = callbacks
        #: Whether the end is one of which no later driver need tell.
        self._notes_end = False
        self._observers = [*observers, *([callbacks] if callbacks else [])]
        self._poll_interval = poll_interval
        self.commands = Commands(executor.wake)
        self._desk = Desk(experiment, clock, resources_for, self)
        self._thinker = thinker(executor.wake)
        #: Numbers of the scheduler's questions that are being thought about.
        self._asked: set[int] = set()
        at_once = experiment.search.answers_at_once
        self._asker = Asker(
            experiment.search,
            ThinkingAtOnce() if at_once else thinker(executor.wake),
            clock=clock,
            resources_for=resources_for,
            naming=naming,
        )
        #: What the last trial that was to start had asked for.
        self._last_request: PlacementGroupFactory | None = None
        #: What was told of the cluster last.
        self._capacity: CapacityChanged | None = None
        self._interrupted = False
        self._stop_wanted = ""
        #: Whether a warning stands that all waits for the user.
        self._has_told = False
        self._snapshot_pace = SnapshotPace(checkpoint_period)
        #: Newest event of each incarnation since the last commit: it stands for those before it.
        self._unsettled: dict[tuple[str, int], TrialEvent] = {}
        #: ``(position that must be safe first, events)``
        self._acks: deque[tuple[int, Collection[TrialEvent]]] = deque()
        self._position = 0

    @property
    def interrupted(self) -> bool:
        """Whether :meth:`interrupt` ended the run before the experiment was finished."""
        return self._interrupted

    def run(self) -> None:
        """Run until the experiment is finished or :meth:`interrupt` is called.

        The executor is closed and the journal safe afterwards, whatever happens.
        """
        with self.running():
            while not (self.experiment.finished or self._interrupted):
                self.step()
            self._end()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Begin, for those who call :meth:`step` themselves; what :meth:`run` does at its end."""
        with ExitStack() as at_end:
            # Called from the last to the first, each even if another one raises. What ran when an
            # interrupt came is still unfinished in the journal: a later run goes on.
            at_end.callback(self._store.close)
            at_end.callback(self._tell_the_end)
            at_end.callback(self._settle_checkpoints)
            at_end.callback(self._settle, force=True)
            at_end.callback(self._executor.close)
            at_end.callback(self.commands.close)
            at_end.callback(self._thinker.close)
            at_end.callback(self._asker.close)
            # Time budgets count from here.
            self.tick()
            yield

    def _end(self) -> None:
        """Let everybody have the last word, and keep what was not finished."""
        self.commands.close()
        if not self._interrupted:
            self._await_search()
            self._notes_end = self._callbacks is not None
        else:
            self._withdraw()
            self._hear_search()
            # Whoever goes on is in a hurry. After an exception there is none: the state may be
            # ahead of the journal then. Nor is there one of a search that thinks.
            if not self.experiment.inquiry.is_open:
                self._take_snapshot()
        logger.info("%s", self.experiment.scheduler.debug_string())

    def tick(self) -> None:
        """Tell the experiment the time; a search that had nothing to offer is asked again."""
        self._handle(TimePassed(time=self._clock.now()))
        waits = self.experiment.waits_for_user and not self.experiment.roster.active
        if waits and not self._has_told:
            logger.warning(
                "nothing runs and nothing may start: %s trials are paused by the user%s",
                len(self.experiment.roster.resting),
                ", and new ones are held" if self.experiment.on_hold else "",
            )
        self._has_told = waits

    def resume(
        self,
        requests: Callable[[float], Iterable[OtherEvent]] = lambda now: (),
        given_up: Iterable[CheckpointRecord] = (),
    ) -> None:
        """Take over an experiment that another driver has left; to be called before :meth:`run`.

        What ran under that driver is lost and waits for a place again, in its old order.

        Parameters
        ----------
        requests : callable, optional
            Given the time, and called when all trials are where they are to go on from; returns
            what the user wants changed.
        given_up : iterable of CheckpointRecord, optional
            Checkpoints that the other driver may not have deleted any more.
        """
        now = self._clock.now()
        self._handle(SessionBegan(time=now))
        # Each goes before all that wait, so the first of them comes last.
        for trial in reversed(tuple(self.experiment.trials.values())):
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
                # The driver may have died before it had written what its journal tells.
                self._write_ancestry(key)
        # From here on the policies may be others than before: nobody must replay across this place.
        self._take_snapshot()
        for record in given_up:
            self._store.delete_checkpoint(record)
        self._settle(force=True)

    def interrupt(self) -> None:
        """Let :meth:`run` return soon, with the trials saved where they can be, and unfinished.

        Safe in a signal handler.
        """
        self._interrupted = True

    def stop(self, reason: str) -> None:
        """End the experiment: every trial is stopped and told so. For the thread that runs it."""
        self._handle(StopRequested(reason=reason, time=self._clock.now()))

    def stop_soon(self, reason: str) -> None:
        """Let the thread that runs it :meth:`stop` it. Safe in any thread."""
        self._stop_wanted = reason

    def step(self) -> None:
        """Start what can be started, then take in what has happened."""
        if self._callbacks:
            self._callbacks.on_step_begin()
        if self._stop_wanted:
            reason, self._stop_wanted = self._stop_wanted, ""
            self.stop(reason)
        self.commands.handle(self._desk)
        for number, answer in self._thinker.answers() if self._asked else ():
            self._asked.discard(number)
            self._handle(Answered(number=number, answer=answer, time=self._clock.now()))
        self._hear_search()
        # While the search thinks nobody may look at its state: this is the moment before it is
        # asked again.
        idle = not self.experiment.inquiry.is_open
        if idle and self._snapshot_pace.is_due(self._clock.now(), self._store.snapshot_seconds):
            self._take_snapshot()
        more = self._start_ready()
        self._take_in(0.0 if more or self.experiment.finished else self._poll_interval)
        if self._callbacks:
            self._callbacks.on_step_end()

    def _await_search(self) -> None:
        """Let the search have its last word, if it has one soon."""
        until = self._clock.now() + _LAST_WORD
        while self.experiment.inquiry.is_open and not self._interrupted:
            left = until - self._clock.now()
            if left <= 0:
                logger.info("the search still thinks; how its last trials ended it does not hear")
                return
            self._take_in(left)
            self._hear_search()

    def _withdraw(self) -> None:
        """Let trials save what they can before they are left."""
        self._executor.withdraw()
        while self.experiment.roster.active:
            self._take_in(self._poll_interval)
        # What is in memory ends with this driver.
        trials = [one for one in self.experiment.trials.values() if one.memory is not None]
        for trial in trials:
            if trial.memory is not None:
                self._executor.store_checkpoint(trial.memory)
        while any(trial.memory is not None for trial in trials):
            self._take_in(self._poll_interval)

    def _take_in(self, longest_wait: float) -> None:
        events = self._executor.next_events(longest_wait)
        for event in events:
            minds = self.experiment.scheduler.follows_cluster
            if minds or not isinstance(event, ClusterChanged):
                self._handle(event)
            else:
                self._note_capacity(event)
        if not events:
            self.tick()
        self._settle()

    def _note_capacity(self, event: ClusterChanged) -> None:
        """Tell of the sums: most schedulers do not mind, and large clusters make large records."""
        told = summed(event)
        if self._capacity is None or not is_alike(told, self._capacity):
            self._capacity = told
            self._handle(told)

    def _take_snapshot(self) -> None:
        self._store.save_snapshot(self._state)

    def _state(self) -> dict[str, Any]:
        told = self._callbacks.state_dict() if self._callbacks else {}
        return {**self.experiment.state_dict(), **told}

    def _start_ready(self) -> bool:
        """Start trials for as long as a turn, and return whether there may be more to start."""
        experiment = self.experiment
        begun = now = self._clock.now()
        while now - begun <= _TURN:
            while experiment.wants_suggestion:
                self._ask()
            trial = experiment.next_trial()
            if trial is not None:
                self._last_request = trial.request
            if trial is None or not self._has_place(trial.request):
                self._note_waiting(trial)
                return False
            now = self._clock.now()
            self._handle(ResourcesGranted(trial_id=trial.trial_id, time=now))
        return True

    def _note_waiting(self, first: Trial | None) -> None:
        request = self._thought_about() if first is None else first.request
        self._executor.note_waiting(request, 0 if request is None else _waiting(self.experiment))

    def _thought_about(self) -> PlacementGroupFactory | None:
        """Return what a trial will need that the search thinks about, if that waits for room.

        It is taken to be like the last one.
        """
        request, experiment = self._last_request, self.experiment
        waits = experiment.inquiry.is_open and experiment.room > 0
        if request is None or not waits or self._has_place(request):
            return None
        return request

    def _has_place(self, request: PlacementGroupFactory) -> bool:
        executor = self._executor
        return executor.has_resources(request) or (
            self.experiment.hands_ahead and executor.takes_ahead(request)
        )

    def _ask(self) -> None:
        experiment = self.experiment
        trial_id = experiment.next_trial_id
        if not experiment.search.answers_at_once:
            self._handle(SuggestionAsked(trial_id=trial_id, time=self._clock.now()))
        self._asker.ask(trial_id)
        self._hear_search()

    def _hear_search(self) -> None:
        """Take in what the search has answered."""
        for suggested in self._asker.answers():
            self._handle(suggested)
            if suggested.config is not None:
                self._write_params(suggested.trial_id)

    def _write_params(self, trial_id: str) -> None:
        trial = self.experiment.trials[trial_id]
        self._store.write_params(trial.folder, trial.config, pickled=trial.pickled)

    def _write_ancestry(self, trial_id: str) -> None:
        """Write a trial's new configuration, and how it has come to it."""
        self._write_params(trial_id)
        trial, rows = self.experiment.trials[trial_id], self.experiment.cloning.rows
        if trial.ancestry and self.experiment.scheduler.writes_policies:
            self._store.write_policy(trial.folder, rows, trial.ancestry)

    def take(self, event: OtherEvent) -> None:
        """Let the experiment hear what the user wants. For the thread that runs it."""
        self._handle(event)
        if isinstance(event, TrialAddRequested):
            self._write_params(event.trial_id)

    def _handle(self, event: ExperimentEvent) -> None:
        experiment = self.experiment
        actions = experiment.handle(event)
        # Whoever has a new question has learnt something, were it from the time.
        if self._ask_others() or actions or not isinstance(event, TimePassed):
            self._remember(event, actions)
        for action in actions:
            carry_out(action, self._executor, self._store)
            if isinstance(action, ExploitTrial):
                self._write_ancestry(action.trial_id)
        for observer in tuple(self._observers):
            self._watch(observer, lambda watcher: watcher.on_event(event, actions, experiment))

    def _ask_others(self) -> bool:
        """Hand out the questions that are open, and return whether there were new ones."""
        questions = self.experiment.scheduler.questions
        new = [number for number in questions if number not in self._asked]
        for number in new:
            self._asked.add(number)
            self._thinker.ask(number, questions[number])
        return bool(new)

    def _remember(self, event: ExperimentEvent, actions: Sequence[Action]) -> None:
        trial = self.experiment.trials.get(getattr(event, "trial_id", ""))
        self._position = self._store.append(journal_record(event, actions, trial))
        if isinstance(event, TrialEvent) and event.seq:
            self._unsettled[event.trial_id, event.incarnation] = event
        if isinstance(event, TrialFailed):
            folder = self.experiment.trials[event.trial_id].folder
            self._store.write_error(folder, event.error.traceback or event.error.message)
        elif isinstance(event, CheckpointLost):
            logger.info("trial %s lost its checkpoint in memory: %s", event.trial_id, event.reason)
        elif isinstance(event, TrialLost):
            level = logging.WARNING if event.charged else logging.INFO
            logger.log(level, "trial %s lost its worker: %s", event.trial_id, event.reason)

    def _settle(self, *, force: bool = False) -> None:
        if self._unsettled:
            self._acks.append((self._position, self._unsettled.values()))
            self._unsettled = {}
        safe = self._store.commit(force=force)
        while self._acks and self._acks[0][0] <= safe:
            for event in self._acks.popleft()[1]:
                self._executor.acknowledge(event.trial_id, event.incarnation, event.seq)

    def _settle_checkpoints(self) -> None:
        """Remove what was written by starts of trials that came to no good end."""
        for trial in self.experiment.trials.values():
            if trial.status.is_final and (trial.losses or trial.failures):
                kept = {record.path for record in trial.kept_checkpoints}
                self._store.settle_checkpoints(trial.folder, trial.incarnation, kept)

    def _tell_the_end(self) -> None:
        for observer in tuple(self._observers):
            self._watch(observer, lambda watcher: watcher.on_end(self.experiment))
        if self._notes_end and not self.experiment.inquiry.is_open:
            # That they have heard of it; else the next driver would tell them.
            self._take_snapshot()

    def _watch(self, observer: Observer, call: Callable[[Observer], None]) -> None:
        try:
            call(observer)
        except Exception:
            logger.exception("%r raised and is not called again", observer)
            self._observers.remove(observer)


def _waiting(experiment: Experiment) -> int:
    """Return how many trials would start now if there was room, without asking for any."""
    roster = experiment.roster
    pending = max(1, len(roster.pending))
    if not experiment.may_ask:
        return int(min(pending, experiment.room))
    # A search that learns from results may hold back, nobody knows when. So it is trusted with as
    # many as run already: the room doubles until it holds back.
    total = experiment.search.total_samples
    left = len(roster.active) if total is None else total - len(roster)
    return int(min(pending + max(0, min(left, len(roster.active) - pending)), experiment.room))
