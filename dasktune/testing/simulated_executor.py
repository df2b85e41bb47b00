"""Runs trials in virtual time."""

from __future__ import annotations

import heapq
import traceback
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

from dasktune.errors import check
from dasktune.testing.clock import ManualClock
from dasktune.testing.places import Cluster, Slots, Workers
from dasktune.testing.simulated_run import SimulatedRun
from dasktune.testing.trial_kind import (
    GeneratorTrials,
    SimulatedTrainable,
    Step,
    TrialKind,
    is_time,
)
from dasktune.testing.worker_died import WorkerDied
from dasktune.trial.actions import (
    AdmitOthers,
    ContinueTraining,
    FailTrial,
    PauseTrial,
    RecallTrial,
    ResizeTrial,
    RestoreTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
)
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import (
    AnyTrialEvent,
    CheckpointCommitted,
    CheckpointLost,
    CheckpointStored,
    ClusterChanged,
    ErrorInfo,
    ExecutorEvent,
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
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["SimulatedTrialExecutor"]

_REASON: Final = "its slot was taken away, as the simulation was told to"


class _CannotSave(Exception):
    """What a trial has come to cannot be kept; its argument says why."""


class SimulatedTrialExecutor:
    """A cluster in virtual time: the same runner, schedulers and journal, without the waiting.

    Parameters
    ----------
    trainable : callable or TrialKind
        A generator function ``fn(config)`` or ``fn(config, checkpoint)`` that yields ``(metrics,
        seconds)`` or ``(metrics, seconds, checkpoint)``: what a step reports, how long it takes,
        and whatever the trial needs to go on from there. `checkpoint` is None at the first start,
        and where there is nothing to save. What breaks these rules fails the trial;
        :class:`WorkerDied` ends its worker. Or what says more of what a step does, and how a
        checkpoint is kept.
    clock : ManualClock
        Advanced as events are taken.
    slots : int, default=1
        How many trials run at a time, whatever they ask for. Not used with `workers`.
    workers : sequence of int or WorkerCapacity, or mapping, optional
        The workers of the cluster, in CPUs or in full: trials are placed on them as on a real one.
        Or such lists by the virtual seconds from which they hold, the first of them 0: a cluster
        that grows and shrinks. A worker is known by its address, or its place in the list.
    start_overhead : float, default=0.0
        Seconds from the start of a trial to its first step.
    lose : mapping of float to int, optional
        Virtual seconds -> number of the trial, in order of start from 0, whose worker dies then.
        All trials on that worker are lost; it is back at once. If the trial does not run, its
        checkpoint is lost that was kept in memory.
    checkpoints : mapping, optional
        Where checkpoints are kept, by path. The executor of a restored experiment is given that of
        the one before.
    saves_on_demand : bool, default=False
        Whether what a step yields as its checkpoint is saved only when that is asked for, as with
        the class API: by ``should_checkpoint=True`` in its metrics, or at a pause, in memory. Not
        used with a `TrialKind`.
    beginning : object, optional
        The `checkpoint` that trials begin from, of a trainable that takes one.
    report_timeout_s : float, optional
        Virtual seconds that a step may take; a trial whose step takes longer fails then.

    Raises
    ------
    ConfigError
        If `trainable` is no such function, or another argument is out of range.
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
        #: Says what a trial's directory is called.
        self.folder_of: Callable[[str], str] = str
        self._clock = clock
        self._places = Slots(slots) if workers is None else Workers(workers)
        self._overhead = start_overhead
        self._runs: dict[str, SimulatedRun] = {}
        self._numbers: dict[str, int] = {}
        self._checkpoints = {} if checkpoints is None else checkpoints
        #: What was told by trials that go on when they are asked for more.
        self._told: deque[tuple[SimulatedRun, AnyTrialEvent]] = deque()
        self._beginning = beginning
        self._limit = report_timeout_s
        #: What is kept in memory, by path, with the trial's id.
        self._memory: dict[str, tuple[str, Any]] = {}
        self._tickets = count()
        #: What happens when: a number is a trial that loses its worker, None a change of workers.
        self._agenda: list[tuple[float, int, ExecutorEvent | int | None]] = []
        for when, unlucky in losses.items():
            heapq.heappush(self._agenda, (when, next(self._tickets), unlucky))
        now = clock.now()
        if offers := self._places.offers():
            told = ClusterChanged(workers=offers, time=now)
            heapq.heappush(self._agenda, (now, next(self._tickets), told))
        for when in self._places.changes:
            heapq.heappush(self._agenda, (max(now, when), next(self._tickets), None))

    def has_resources(self, request: PlacementGroupFactory) -> bool:
        """Whether there is room for a trial."""
        return self._places.has_room(request, self._clock.now())

    def offers(self) -> dict[str, dict[str, float]]:
        """Return what the workers have; nothing for slots."""
        return self._places.offers()

    def note_waiting(self, request: PlacementGroupFactory | None, count: int) -> None:
        """Do nothing: there are as many slots as there are."""

    def takes_ahead(self, request: PlacementGroupFactory) -> bool:
        """Say no: there is no way to a worker that would have to be saved."""
        return False

    def start_trial(self, action: StartTrial) -> None:
        """Run a trial from its beginning."""
        self._begin(action, self._beginning, 0, 0.0)

    def restore(self, action: RestoreTrial) -> None:
        """Run a trial on from a checkpoint."""
        record = action.checkpoint
        spent = float(record.metrics.get("time_total_s", 0.0))
        in_memory = record.kind is CheckpointKind.MEMORY
        state = self._memory[record.path][1] if in_memory else self._checkpoints[record.path]
        self._begin(action, state, record.iteration, spent)

    def continue_training(self, action: ContinueTraining) -> None:
        """Take the next step."""
        self._go_on(self._runs[action.trial_id], action.milestones)

    def save(self, action: SaveTrial) -> None:
        """Save what is saved on demand, and take the next step."""
        run = self._runs[action.trial_id]
        if self._save_now(run, action.kind):
            self._go_on(run, action.milestones)

    def admit_others(self, action: AdmitOthers) -> None:
        """Let others run beside a trial that was to be alone on its worker."""
        self._places.admit_others(action.trial_id)

    def pause_trial(self, action: PauseTrial | ResizeTrial | RecallTrial) -> None:
        """Take a trial off its slot."""
        run = self._runs[action.trial_id]
        run.saves = action.kind if action.save else None
        self._halt(run, TrialPaused)

    def stop_trial(self, action: StopTrial | FailTrial) -> None:
        """End a trial."""
        run = self._runs[action.trial_id]
        if self._kind.saves_at_end:
            run.saves = CheckpointKind.PERSISTENT
        self._halt(run, TrialStopped)

    def withdraw(self) -> None:
        """Take all trials off their slots."""
        for run in tuple(self._runs.values()):
            reason = "the experiment was interrupted"
            self._tell(run, TrialLost, reason=reason, charged=False)

    def store_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Let a checkpoint in memory be one in the storage; one that is lost was told to be."""
        if checkpoint.path in self._memory:
            trial_id, self._checkpoints[checkpoint.path] = self._memory.pop(checkpoint.path)
            now = self._clock.now()
            stored = replace(checkpoint, kind=CheckpointKind.PERSISTENT)
            event = CheckpointStored(trial_id=trial_id, checkpoint=stored, time=now)
            heapq.heappush(self._agenda, (now, next(self._tickets), event))

    def drop_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Forget a checkpoint in memory."""
        self._memory.pop(checkpoint.path, None)

    def next_events(self, timeout: float) -> Sequence[ExecutorEvent]:
        """Return the next event of all, and set the clock to its time."""
        while self._told:
            run, told = self._told.popleft()
            # It may have been taken off meanwhile.
            if self._is_current(told):
                self._follow_up(run, told)
        while self._agenda:
            when, _, item = heapq.heappop(self._agenda)
            events = self._changed(when) if item is None else self._come_about(item, when)
            if events:
                self._clock.advance_to(when)
                for one in events:
                    if isinstance(one, TrialEvent):
                        self._take_note(self._runs[one.trial_id], one)
                return events
        self._clock.advance_to(self._clock.now() + timeout)
        return []

    def wake(self) -> None:
        """Do nothing: nobody ever waits here."""

    def acknowledge(self, trial_id: str, incarnation: int, seq: int) -> None:
        """Do nothing: what was told is not kept."""

    def close(self) -> None:
        """Close the generators of what still runs."""
        for run in self._runs.values():
            run.steps.close()
            self._places.give_back(run.trial_id)
        self._runs.clear()

    # One incarnation

    def _begin(
        self, action: StartTrial | RestoreTrial, checkpoint: Any, iteration: int, elapsed: float
    ) -> None:
        # A copy, as on a cluster: what user code does to it is its own affair.
        config = deepcopy(action.config)
        run = SimulatedRun(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            steps=self._kind.begin(
                config, checkpoint, partial(self._is_milestone, action.trial_id)
            ),
            milestones=action.milestones,
            next_checkpoint=action.next_checkpoint,
            iteration=iteration,
            elapsed=elapsed,
            number=self._numbers.setdefault(action.trial_id, len(self._numbers)),
        )
        self._runs[run.trial_id] = run
        worker = self._places.take(run.trial_id, action.resources, self._clock.now())
        self._tell(run, TrialStarted, self._overhead, worker=worker)

    def _is_milestone(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return reached(self._runs[trial_id].milestones, result)

    def _go_on(self, run: SimulatedRun, milestones: tuple[Milestone, ...]) -> None:
        run.milestones = milestones
        run.waits = False
        self._advance(run)

    def _halt(self, run: SimulatedRun, kind: type[TrialStopped] | type[TrialPaused]) -> None:
        run.halt = kind
        if run.waits:
            run.waits = False
            self._leave(run, kind)

    def _advance(self, run: SimulatedRun) -> None:
        try:
            step = self._kind.checked(next(run.steps))
            if self._limit is not None and step.seconds > self._limit:
                self._hang(run, self._limit)
                return
            result = self._result(run, step)
        except StopIteration:
            self._tell(run, TrialEnded)
        except WorkerDied as death:
            self._tell(run, TrialLost, reason=f"its worker died: {death}")
        except Exception as error:
            self._fail(run, error)
        else:
            run.state, run.result = step.checkpoint, result
            self._report(run, step.seconds)

    def _report(self, run: SimulatedRun, seconds: float) -> None:
        result = run.result
        due = not self._kind.saves_on_demand or result.get("should_checkpoint")
        try:
            record = self._save(run, CheckpointKind.PERSISTENT) if due else None
        except _CannotSave as failure:
            self._fail(run, failure.args[0])
            return
        awaits = not result["done"] and reached(run.milestones, result)
        self._tell(run, ResultReported, seconds, metrics=result, checkpoint=record, awaits=awaits)

    def _result(self, run: SimulatedRun, step: Step) -> dict[str, Any]:
        """Return the metrics with the fields that a worker fills in."""
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
        with suppress(Exception):  # it has failed already
            run.steps.close()
        # The last line as a traceback has it, but without the module of our own exceptions.
        message = f"{type(error).__name__}: {error}"
        text = "".join(traceback.format_exception(error))
        self._tell(run, TrialFailed, error=ErrorInfo(message=message, traceback=text))

    def _hang(self, run: SimulatedRun, limit: float) -> None:
        """Let a trial come to no result in time; it fails unless it is told to end before."""
        with suppress(Exception):  # its clean-up is of no interest any more
            run.steps.close()
        run.hangs = True
        message = f"no result for {limit:g} s (report_timeout_s)"
        self._tell(run, TrialFailed, limit, error=ErrorInfo(message=message))

    def _leave(self, run: SimulatedRun, kind: type[TrialStopped] | type[TrialPaused]) -> None:
        """End user code, as it was told to; its clean-up may fail."""
        try:
            run.steps.close()
        except Exception as error:
            self._fail(run, error)
        else:
            if run.saves is None or self._save_now(run, run.saves):
                self._tell(run, kind)

    def _save_now(self, run: SimulatedRun, kind: CheckpointKind) -> bool:
        """Save what is saved on demand; return whether that has not failed."""
        try:
            record = self._save(run, kind) if self._kind.saves_on_demand else None
        except _CannotSave as failure:
            self._fail(run, failure.args[0])
            return False
        if record is not None:
            self._tell(run, CheckpointCommitted, checkpoint=record)
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

    def _tell(
        self,
        run: SimulatedRun,
        kind: Callable[..., AnyTrialEvent],
        delay: float = 0.0,
        **facts: Any,
    ) -> None:
        when = self._clock.now() + delay
        run.seq += 1
        event = kind(
            trial_id=run.trial_id,
            incarnation=run.incarnation,
            time=when,
            seq=run.seq,
            **facts,
        )
        heapq.heappush(self._agenda, (when, next(self._tickets), event))

    # The agenda

    def _come_about(self, item: ExecutorEvent | int, when: float) -> list[ExecutorEvent]:
        event = self._loss(item, when) if isinstance(item, int) else item
        if event is None or not self._is_current(event):
            return []
        if isinstance(event, TrialFailed) and self._runs[event.trial_id].hangs:
            run = self._runs[event.trial_id]
            if run.halt is not None:
                # It is interrupted as it was told to end, which is no failure.
                self._clock.advance_to(when)
                self._leave(run, run.halt)
                return []
        return self._losses(event) if isinstance(event, TrialLost) and event.charged else [event]

    def _changed(self, when: float) -> list[ExecutorEvent]:
        """Let other workers be there, and return what comes of it."""
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
        """Return the losses of all trials that end with the worker of one."""
        lost = [self._runs[key] for key in self._places.beside(first.trial_id)]
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

    def _take_note(self, run: SimulatedRun, event: AnyTrialEvent) -> None:
        goes_on = isinstance(event, TrialStarted) or (
            isinstance(event, ResultReported) and not event.awaits and not event.metrics["done"]
        )
        if goes_on and self._kind.takes_turns:
            self._told.append((run, event))
        else:
            self._follow_up(run, event)

    def _follow_up(self, run: SimulatedRun, event: AnyTrialEvent) -> None:
        match event:
            case ResultReported() if event.metrics["done"]:
                self._tell(run, TrialEnded)
            case TrialStarted() | ResultReported() if run.halt is not None:
                self._leave(run, run.halt)
            case ResultReported(awaits=True):
                run.waits = True
            case TrialStarted() | ResultReported():
                self._advance(run)
            case CheckpointCommitted():
                pass
            case _:
                del self._runs[run.trial_id]
                self._places.give_back(run.trial_id)
