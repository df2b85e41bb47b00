"""`SimulatedTrialExecutor`: runs trials in virtual time.

It is single-threaded. A heap holds the future events with their times; `next_events` pops the first
one and sets the clock. Events with the same time are reported in the order in which they were
scheduled. When an event is reported, its trial takes the next step at once, as a trial on a worker
runs ahead of the commands that follow from the event. With `TrialKind.takes_turns` it takes the
step when the next event is requested. Events of an older incarnation of a trial are dropped.
"""

from __future__ import annotations

import heapq
import traceback
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Final

from dasktune.errors import ReportError, check
from dasktune.in_process.manual_clock import ManualClock
from dasktune.in_process.places import Cluster, Slots, Workers
from dasktune.in_process.trial_kind import (
    GeneratorTrials,
    SimulatedTrainable,
    Step,
    Steps,
    TrialKind,
    is_time,
)
from dasktune.trial.actions import (
    AdmitOthers,
    CheckpointTrial,
    ContinueTraining,
    EndOnWorker,
    GrowTrial,
    LeaveWorker,
    RestoreTrial,
    SaveTrial,
    SetShare,
    StartTrial,
    StopTrial,
)
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import (
    CheckpointCommitted,
    CheckpointLost,
    CheckpointStored,
    ClusterChanged,
    ExecutorEvent,
    RestoreFailed,
    ResultReported,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialStarted,
    TrialStopped,
)
from dasktune.trial.metrics import flatten
from dasktune.trial.milestone import Milestone, reached
from dasktune.trial.resources import ElasticPlacement, PlacementGroupFactory
from dasktune.trial.result_keys import SHOULD_CHECKPOINT
from dasktune.trial.user_error import ErrorInfo

_REASON: Final = "the simulation removed its worker"


class WorkerDied(Exception):
    """Raised by a simulated trainable to end its worker and all trials on it.

    Examples
    --------
    >>> def curve(config):
    ...     yield {"loss": 1.0}, 60.0
    ...     raise WorkerDied
    """


@dataclass(slots=True, kw_only=True)
class SimulatedRun:
    """A running incarnation of a trial."""

    trial_id: str
    incarnation: int
    steps: Steps
    milestones: tuple[Milestone, ...]
    next_checkpoint: int
    iteration: int = 0
    elapsed: float = 0.0
    seq: int = 0
    #: The trial's number in order of first start.
    number: int = 0
    #: The checkpoint state that its last step yielded.
    state: Any = None
    #: The last result.
    result: dict[str, Any] = field(default_factory=dict)
    #: Whether its step takes longer than the report timeout.
    hangs: bool = False
    #: Whether it waits at a milestone for the scheduler's decision.
    waits: bool = False
    #: Why it leaves after its next step with a checkpoint; empty if it stays.
    grows: str = ""
    #: Whether its last result had a checkpoint.
    has_saved: bool = False
    #: Whether a checkpoint was requested, to be saved with its next step.
    is_checkpoint_requested: bool = False
    #: The event that it reports instead of its next step, after a command to stop or pause.
    halt: type[TrialStopped] | type[TrialPaused] | None = None
    #: The path of the checkpoint to resume from, if it was removed from the storage.
    missing: str = ""
    #: The kind of checkpoint that it saves before that event; None to save nothing.
    saves: CheckpointKind | None = None


class _CannotSave(Exception):
    """The state of a trial cannot be saved; the argument is the exception."""


class SimulatedTrialExecutor:
    """A cluster in virtual time, for the same runner, schedulers and journal as a real one.

    Parameters
    ----------
    trainable : callable or TrialKind
        A generator function ``fn(config)`` or ``fn(config, checkpoint)`` that yields ``(metrics,
        seconds)`` or ``(metrics, seconds, checkpoint)``: the metrics of a step, its duration, and
        the state that the trial can resume from. `checkpoint` is None at the first start; yield
        None to save nothing. A step that breaks these rules fails the trial; :class:`WorkerDied`
        ends its worker. Or a `TrialKind`, which defines steps and checkpoints in detail.
    clock : ManualClock
        The clock, which is advanced to the time of each event.
    slots : int, default=1
        The number of trials that run at a time, whatever they request. Not used with `workers`.
    workers : sequence of int or WorkerCapacity, or mapping, optional
        The number of CPUs or the capacity of each worker; trials are placed on them as on a real
        cluster. For a cluster that grows and shrinks, give a mapping from virtual times in seconds
        to such lists. Each list holds from its time on; one is for 0. A worker is identified by its
        address, or its position in the list.
    start_overhead : float, default=0.0
        Seconds from the start of a trial to its first step.
    lose : mapping of float to int, optional
        Maps a virtual time in seconds to the number of a trial, in order of start from 0. The
        trial's worker dies at that time and is replaced at once; all trials on it are lost. If the
        trial is not running, its checkpoint in memory is lost.
    checkpoints : mapping, optional
        The stored checkpoints by path. A trial cannot resume from one that you remove. To restore
        an experiment, pass the mapping of the old executor to the new one.
    saves_on_demand : bool, default=False
        Whether the checkpoint of a step is saved on demand only, as for class trainables: by
        ``should_checkpoint=True`` in its metrics, or in memory at a pause. Not used with a
        `TrialKind`.
    beginning : object, optional
        The initial checkpoint of the trials.
    report_timeout_s : float, optional
        The maximum duration of a step, in virtual seconds; a trial with a longer step fails.

    Raises
    ------
    ConfigError
        If `trainable` is not such a function, or another argument is out of range.
    """

    def __init__(
        self,
        trainable: SimulatedTrainable | TrialKind,
        *,
        clock: ManualClock,
        slots: int = 1,
        workers: Cluster | None = None,
        start_overhead: float = 0.0,
        lose: Mapping[float, int] | None = None,
        checkpoints: MutableMapping[str, Any] | None = None,
        saves_on_demand: bool = False,
        beginning: Any = None,
        report_timeout_s: float | None = None,
    ) -> None:
        if not isinstance(trainable, TrialKind):
            trainable = GeneratorTrials(trainable, saves_on_demand=saves_on_demand)
        check(is_time(start_overhead), "start_overhead", "at least 0 seconds", start_overhead)
        losses = dict(lose or {})
        check(all(map(is_time, losses)), "lose", "a dict of times, at least 0 seconds", lose)
        self._kind = trainable
        #: Returns the name of a trial's directory.
        self.folder_of: Callable[[str], str] = str
        self._clock = clock
        self._places = Slots(slots) if workers is None else Workers(workers)
        self._overhead = start_overhead
        self._runs: dict[str, SimulatedRun] = {}
        self._numbers: dict[str, int] = {}
        self._checkpoints = {} if checkpoints is None else checkpoints
        #: Reported events of trials that advance when the next event is requested.
        self._advancing: deque[tuple[SimulatedRun, TrialEvent]] = deque()
        self._beginning = beginning
        self._limit = report_timeout_s
        #: Checkpoints in memory by path, with the trial's ID.
        self._memory: dict[str, tuple[str, Any]] = {}
        self._tickets = count()
        #: Future events by time. A number is a trial that loses its worker, None a change of the
        #: workers. The ticket keeps the order of events with the same time.
        self._agenda: list[tuple[float, int, ExecutorEvent | int | None]] = []
        for when, unlucky in losses.items():
            heapq.heappush(self._agenda, (when, next(self._tickets), unlucky))
        now = clock.now()
        if offers := self._places.offers():
            event = ClusterChanged(workers=offers, time=now)
            heapq.heappush(self._agenda, (now, next(self._tickets), event))
        for when in self._places.changes:
            heapq.heappush(self._agenda, (max(now, when), next(self._tickets), None))

    def has_resources(self, request: PlacementGroupFactory) -> bool:
        """Whether there is room for a trial."""
        return self._places.has_room(request, self._clock.now())

    def has_room_instead(self, requests: Mapping[str, PlacementGroupFactory]) -> bool:
        """Whether all requests would fit if their trials, which run, released their resources."""
        return self._places.has_room_instead(requests, self._clock.now())

    def worker_resources(self) -> dict[str, dict[str, float]]:
        """Return the resources of each worker; ``{}`` for slots."""
        return self._places.offers()

    def cluster_shares(self) -> None:
        """Return None: a simulated cluster has one experiment."""

    def note_waiting(self, request: PlacementGroupFactory | None, count: int) -> None:
        """Do nothing: a simulated cluster does not scale with demand."""

    def note_growing(self, requests: Mapping[str, ElasticPlacement]) -> None:
        """Do nothing: a simulated cluster does not scale with demand."""

    def can_prefetch(self, request: PlacementGroupFactory) -> bool:
        """Return False: without a network, prefetching saves no time."""
        return False

    def start_trial(self, action: StartTrial) -> None:
        """Run a trial from its beginning."""
        self._begin(action, self._beginning, 0, 0.0)

    def restore(self, action: RestoreTrial) -> None:
        """Resume a trial from a checkpoint."""
        record = action.checkpoint
        if record.kind is CheckpointKind.PERSISTENT and record.path not in self._checkpoints:
            self._begin(action, None, record.iteration, 0.0, missing=record.path)
            return
        spent = float(record.metrics.get("time_total_s", 0.0))
        in_memory = record.kind is CheckpointKind.MEMORY
        state = self._memory[record.path][1] if in_memory else self._checkpoints[record.path]
        self._begin(action, state, record.iteration, spent)

    def continue_training(self, action: ContinueTraining) -> None:
        """Take the next step."""
        self._resume(self._runs[action.trial_id], action.milestones)

    def save(self, action: SaveTrial) -> None:
        """Save a checkpoint on demand, and take the next step."""
        run = self._runs[action.trial_id]
        if self._save_now(run, action.kind):
            self._resume(run, action.milestones)

    def checkpoint_trial(self, action: CheckpointTrial) -> None:
        """Save a checkpoint at the result where a trial waits, or else with its next step."""
        run = self._runs[action.trial_id]
        if run.waits:
            self._save_now(run, CheckpointKind.PERSISTENT)
        else:
            run.is_checkpoint_requested = True

    def set_share(self, action: SetShare) -> None:
        """Change nothing: a simulated cluster has one experiment."""

    def admit_others(self, action: AdmitOthers) -> None:
        """Let other trials run on the worker of an exclusive trial."""
        self._places.admit_others(action.trial_id)

    def grow_trial(self, action: GrowTrial) -> None:
        """Let a trial leave after the next step that saves a checkpoint."""
        self._runs[action.trial_id].grows = action.reason

    def pause_trial(self, action: LeaveWorker) -> None:
        """Pause a trial."""
        run = self._runs[action.trial_id]
        run.saves = action.kind if action.save else None
        self._halt(run, TrialPaused)

    def stop_trial(self, action: EndOnWorker) -> None:
        """Stop a trial; its step is interrupted if that is to happen at once."""
        run = self._runs[action.trial_id]
        if isinstance(action, StopTrial) and action.at_once:
            run.waits = False
            run.saves = None
            self._leave(run, TrialStopped)
            return
        if self._kind.saves_at_end:
            run.saves = CheckpointKind.PERSISTENT
        self._halt(run, TrialStopped)

    def withdraw(self) -> None:
        """Take all trials off their workers; they stay unfinished, and no loss is charged."""
        for run in tuple(self._runs.values()):
            reason = "the experiment was interrupted"
            self._schedule(run, TrialLost, reason=reason, charged=False)

    def store_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Move a checkpoint from memory to the storage, unless it was reported as lost."""
        if checkpoint.path in self._memory:
            trial_id, self._checkpoints[checkpoint.path] = self._memory.pop(checkpoint.path)
            now = self._clock.now()
            stored = replace(checkpoint, kind=CheckpointKind.PERSISTENT)
            event = CheckpointStored(trial_id=trial_id, checkpoint=stored, time=now)
            heapq.heappush(self._agenda, (now, next(self._tickets), event))

    def drop_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Drop a checkpoint in memory."""
        self._memory.pop(checkpoint.path, None)

    def next_events(self, timeout: float) -> Sequence[ExecutorEvent]:
        """Return the next event, and set the clock to its time."""
        while self._advancing:
            run, reported = self._advancing.popleft()
            # A command may have ended the run since the event was reported.
            if self._is_current(reported):
                self._follow_up(run, reported)
        while self._agenda:
            when, _, item = heapq.heappop(self._agenda)
            events = self._change_workers(when) if item is None else self._occur(item, when)
            if events:
                self._clock.advance_to(when)
                for one in events:
                    if isinstance(one, TrialEvent):
                        self._after_report(self._runs[one.trial_id], one)
                return events
        self._clock.advance_to(self._clock.now() + timeout)
        return []

    def wake(self) -> None:
        """Do nothing: `next_events` never blocks."""

    def acknowledge(self, trial_id: str, incarnation: int, seq: int) -> None:
        """Do nothing: reported events are not kept."""

    def close(self) -> None:
        """Close the generators of the running trials."""
        for run in self._runs.values():
            run.steps.close()
            self._places.release(run.trial_id)
        self._runs.clear()

    # One incarnation

    def _begin(
        self,
        action: StartTrial | RestoreTrial,
        checkpoint: Any,
        iteration: int,
        elapsed: float,
        missing: str = "",
    ) -> None:
        # A copy, as on a cluster, so that changes by user code have no effect on the driver.
        config = deepcopy(action.config)
        run = SimulatedRun(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            steps=self._kind.begin(config, checkpoint, partial(self._is_milestone, action.trial_id)),
            milestones=action.milestones,
            next_checkpoint=action.next_checkpoint,
            iteration=iteration,
            elapsed=elapsed,
            number=self._numbers.setdefault(action.trial_id, len(self._numbers)),
            missing=missing,
        )
        self._runs[run.trial_id] = run
        worker = self._places.reserve(run.trial_id, action.resources, self._clock.now())
        self._schedule(run, TrialStarted, self._overhead, worker=worker)

    def _is_milestone(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return reached(self._runs[trial_id].milestones, result)

    def _resume(self, run: SimulatedRun, milestones: tuple[Milestone, ...]) -> None:
        run.milestones = milestones
        run.waits = False
        self._go_on(run)

    def _go_on(self, run: SimulatedRun) -> None:
        """Take the next step, or leave to continue with more ranks."""
        if run.grows and run.has_saved:
            run.steps.close()
            self._schedule(run, TrialLost, reason=run.grows, charged=False)
        else:
            self._advance(run)

    def _halt(self, run: SimulatedRun, kind: type[TrialStopped] | type[TrialPaused]) -> None:
        run.halt = kind
        if run.waits:
            run.waits = False
            self._leave(run, kind)

    def _advance(self, run: SimulatedRun) -> None:
        if run.missing:
            reason = f"there is no committed checkpoint at {run.missing}"
            self._schedule(run, RestoreFailed, path=run.missing, reason=reason)
            return
        try:
            step = self._kind.checked(next(run.steps))
            if self._limit is not None and step.seconds > self._limit:
                self._hang(run, self._limit)
                return
            result = self._result(run, step)
        except StopIteration:
            self._schedule(run, TrialEnded)
        except WorkerDied as death:
            self._schedule(run, TrialLost, reason=f"its worker died: {death}")
        except Exception as error:
            self._fail(run, error)
        else:
            run.state, run.result = step.checkpoint, result
            self._report(run, step.seconds)

    def _report(self, run: SimulatedRun, seconds: float) -> None:
        result = run.result
        requested, run.is_checkpoint_requested = run.is_checkpoint_requested, False
        due = not self._kind.saves_on_demand or result.get(SHOULD_CHECKPOINT) or requested
        try:
            record = self._save(run, CheckpointKind.PERSISTENT) if due else None
        except _CannotSave as failure:
            self._fail(run, failure.args[0])
            return
        run.has_saved = record is not None
        awaits = not result["done"] and reached(run.milestones, result)
        self._schedule(run, ResultReported, seconds, metrics=result, checkpoint=record, awaits=awaits)

    def _result(self, run: SimulatedRun, step: Step) -> dict[str, Any]:
        """Return the metrics with the fields that a worker adds."""
        result = {
            "training_iteration": run.iteration + 1,
            "time_this_iter_s": step.seconds,
            "done": False,
            **step.metrics,
            "time_total_s": run.elapsed + step.seconds,
            "trial_id": run.trial_id,
        }
        iteration = result["training_iteration"]
        check(type(iteration) is int, "metrics['training_iteration']", "an int", iteration)
        run.iteration = iteration
        run.elapsed += step.seconds
        return flatten(result)

    def _fail(self, run: SimulatedRun, error: Exception) -> None:
        with suppress(Exception):  # the trial has failed already
            run.steps.close()
        # The last line of a traceback, without the module of dasktune's exceptions.
        message = f"{type(error).__name__}: {error}"
        text = "".join(traceback.format_exception(error))
        every = isinstance(error, ReportError)
        info = ErrorInfo(message=message, traceback=text, fails_all_trials=every)
        self._schedule(run, TrialFailed, error=info)

    def _hang(self, run: SimulatedRun, limit: float) -> None:
        """Let a trial exceed the report timeout; it fails unless a command ends it before."""
        with suppress(Exception):  # the trial is interrupted; errors of its cleanup do not matter
            run.steps.close()
        run.hangs = True
        message = f"no result for {limit:g} s (report_timeout_s)"
        self._schedule(run, TrialFailed, limit, error=ErrorInfo(message=message))

    def _leave(self, run: SimulatedRun, kind: type[TrialStopped] | type[TrialPaused]) -> None:
        """End user code after a command to stop or pause; its cleanup may fail the trial."""
        try:
            run.steps.close()
        except Exception as error:
            self._fail(run, error)
        else:
            if run.saves is None or self._save_now(run, run.saves):
                self._schedule(run, kind)

    def _save_now(self, run: SimulatedRun, kind: CheckpointKind) -> bool:
        """Save a checkpoint on demand; return False if that failed."""
        try:
            record = self._save(run, kind) if self._kind.saves_on_demand else None
        except _CannotSave as failure:
            self._fail(run, failure.args[0])
            return False
        if record is not None:
            self._schedule(run, CheckpointCommitted, checkpoint=record)
        return True

    def _save(self, run: SimulatedRun, kind: CheckpointKind) -> CheckpointRecord | None:
        if run.state is None:
            return None
        number = run.next_checkpoint
        run.next_checkpoint += 1
        folder = self.folder_of(run.trial_id)
        path = f"trials/{folder}/checkpoint_{number:06d}_i{run.incarnation:02d}"
        try:
            state = self._kind.kept(run.state)
        except Exception as error:
            raise _CannotSave(error) from error
        if kind is CheckpointKind.MEMORY:
            self._memory[path] = run.trial_id, state
        else:
            self._checkpoints[path] = state
        facts: dict[str, Any] = {"iteration": run.iteration, "metrics": run.result, "kind": kind}
        return CheckpointRecord(path=path, index=number, **facts)

    def _schedule(
        self, run: SimulatedRun, kind: Callable[..., TrialEvent], delay: float = 0.0, **facts: Any
    ) -> None:
        when = self._clock.now() + delay
        run.seq += 1
        event = kind(trial_id=run.trial_id, incarnation=run.incarnation, time=when, seq=run.seq, **facts)
        heapq.heappush(self._agenda, (when, next(self._tickets), event))

    # Events

    def _occur(self, item: ExecutorEvent | int, when: float) -> list[ExecutorEvent]:
        event = self._loss(item, when) if isinstance(item, int) else item
        if event is None or not self._is_current(event):
            return []
        if isinstance(event, TrialFailed) and self._runs[event.trial_id].hangs:
            run = self._runs[event.trial_id]
            if run.halt is not None:
                # The command to end has interrupted the step, which is not a failure.
                self._clock.advance_to(when)
                self._leave(run, run.halt)
                return []
        return self._losses(event) if isinstance(event, TrialLost) and event.charged else [event]

    def _change_workers(self, when: float) -> list[ExecutorEvent]:
        """Replace the workers, and return the losses and the change as events."""
        lost = [self._runs[key] for key in self._places.change()]
        events: list[ExecutorEvent] = [
            TrialLost(
                trial_id=run.trial_id,
                incarnation=run.incarnation,
                time=when,
                reason="its worker left the cluster",
                charged=False,
            )
            for run in lost
        ]
        return [*events, ClusterChanged(workers=self._places.offers(), time=when)]

    def _loss(self, number: int, when: float) -> TrialLost | CheckpointLost | None:
        for run in self._runs.values():
            if run.number == number:
                key, now = run.trial_id, run.incarnation
                return TrialLost(trial_id=key, incarnation=now, time=when, reason=_REASON)
        for path, (trial_id, _) in self._memory.items():
            if self._numbers[trial_id] == number:
                del self._memory[path]
                return CheckpointLost(trial_id=trial_id, path=path, reason=_REASON, time=when)
        return None

    def _losses(self, first: TrialLost) -> list[ExecutorEvent]:
        """Return the losses of all trials on the worker of a lost trial."""
        lost = [self._runs[key] for key in self._places.lost_with(first.trial_id)]
        shared = len(lost) > 1
        return [
            replace(first, trial_id=run.trial_id, incarnation=run.incarnation, seq=0, shared=shared)
            for run in lost
        ]

    def _is_current(self, event: ExecutorEvent) -> bool:
        if not isinstance(event, TrialEvent):
            return True
        run = self._runs.get(event.trial_id)
        return run is not None and run.incarnation == event.incarnation

    def _after_report(self, run: SimulatedRun, event: TrialEvent) -> None:
        continues = isinstance(event, TrialStarted) or (
            isinstance(event, ResultReported) and not event.awaits and not event.metrics["done"]
        )
        if continues and self._kind.takes_turns:
            self._advancing.append((run, event))
        else:
            self._follow_up(run, event)

    def _follow_up(self, run: SimulatedRun, event: TrialEvent) -> None:
        match event:
            case ResultReported() if event.metrics["done"]:
                self._schedule(run, TrialEnded)
            case TrialStarted() | ResultReported() if run.halt is not None:
                self._leave(run, run.halt)
            case ResultReported(awaits=True):
                run.waits = True
            case TrialStarted() | ResultReported():
                self._go_on(run)
            case CheckpointCommitted():
                pass
            case _:
                del self._runs[run.trial_id]
                self._places.release(run.trial_id)
