"""Recording policies, and a driver that plays the cluster by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from numpy.random import SeedSequence

from dasktune.experiment import ExperimentMachine, ExperimentSettings
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Command, Continue, Decision, Pause, Resize, Stop
from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.stopper import CombinedStopper, Stopper
from dasktune.trial.actions import Action, ContinueTraining, RestoreTrial, StartTrial
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import (
    CheckpointCommitted,
    ExperimentEvent,
    ResourcesGranted,
    RestoreFailed,
    ResultReported,
    ShareExceeded,
    StopRequested,
    Suggested,
    TimePassed,
    TrialAddRequested,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialPauseRequested,
    TrialStarted,
    TrialStopped,
    TrialUnpauseRequested,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])
TWO_CPUS = PlacementGroupFactory([{"CPU": 2}])

#: Events that the worker sends by itself, with a number.
NUMBERED = (
    TrialStarted,
    ResultReported,
    CheckpointCommitted,
    TrialEnded,
    TrialPaused,
    TrialStopped,
    TrialFailed,
    RestoreFailed,
)


class RecordingScheduler(FIFOScheduler):
    """Records all its calls, and answers what the test laid out."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.decide: Callable[[Trial, Mapping[str, Any]], Decision] = lambda trial, result: Continue()
        self.commands: dict[str, tuple[Command, ...]] = {}
        self.strands = False
        #: What it wants when no trial will be added; how often it was asked.
        self.at_search_end: tuple[Command, ...] = ()
        self.search_ends = 0
        self.lets_others_come = False
        self.standstill: tuple[Command, ...] | None = None
        #: What it wants once its only question is answered; None if it has none.
        self.question: tuple[Command, ...] | None = None

    @property
    def questions(self) -> Mapping[int, Callable[[], Any]]:
        return {} if self.question is None else {1: lambda: "why"}

    def on_answer(self, number: int, answer: Any) -> tuple[Command, ...]:
        self.calls.append((f"answer {number}", answer))
        commands, self.question = self.question or (), None
        return commands

    def on_trial_add(self, trial: Trial) -> None:
        self.calls.append(("add", trial.trial_id))

    def on_trial_start(self, trial: Trial) -> None:
        self.calls.append(("start", trial.trial_id))

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        self.calls.append((f"result {result['training_iteration']}", trial.trial_id))
        return self.decide(trial, result)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        return self._ended("complete", trial)

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        return self._ended("error", trial)

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        return self._ended("remove", trial)

    def on_search_end(self) -> tuple[Command, ...]:
        self.search_ends += 1
        return self.at_search_end

    @property
    def waits_for_others(self) -> bool:
        return self.lets_others_come

    def search_info(self, trial: Trial, result: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"rung": result["training_iteration"]} if self.lets_others_come else {}

    def choose_trial_to_run(self, waiting: Any) -> Trial | None:
        return None if self.strands else super().choose_trial_to_run(waiting)

    def on_standstill(self, waiting: Any) -> tuple[Command, ...]:
        return super().on_standstill(waiting) if self.standstill is None else self.standstill

    def ends(self, trial: Trial) -> list[str]:
        return [what for what, key in self.calls if key == trial.trial_id and what in ENDS]

    def _ended(self, what: str, trial: Trial) -> tuple[Command, ...]:
        self.calls.append((what, trial.trial_id))
        return self.commands.pop(trial.trial_id, ())


class Replayed(NamedTuple):
    """What the replay of an event has led to."""

    actions: list[Action]
    diverged_policy: str


ENDS = ("complete", "error", "remove")


class RecordingSearch(SearchAlgorithm):
    """Proposes nothing by itself; records what it is given."""

    def __init__(self) -> None:
        self.results: list[tuple[str, int]] = []
        self.ends: list[tuple[str, Mapping[str, Any] | None, bool]] = []
        self.told: list[Mapping[str, Any]] = []
        self.pauses: list[tuple[str, str]] = []

    def setup(self, spec: SearchSpec) -> None:
        raise NotImplementedError

    @property
    def total_samples(self) -> int | None:
        return None

    def next_trial(self, trial_id: str) -> Suggestion:
        raise NotImplementedError

    def knows(self, trial: Trial) -> bool:
        """Whether it was told anything of a trial."""
        told = [*self.results, *self.ends]
        return trial.trial_id in {*(one[0] for one in told), *(key for _, key in self.pauses)}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.results.append((trial_id, result["training_iteration"]))
        self.told.append(result)

    def on_trial_pause(self, trial_id: str) -> None:
        self.pauses.append(("pause", trial_id))

    def on_trial_unpause(self, trial_id: str) -> None:
        self.pauses.append(("unpause", trial_id))

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        self.ends.append((trial_id, result, error))


class RecordingStopper(Stopper):
    """Writes down what it is shown; stops one trial, or everything, when a test wants it."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int]] = []
        self.stops_at: int | None = None
        self.everything = False
        self.breaks = False
        self.now = 0.0

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        self.shown.append((trial_id, result["training_iteration"]))
        if self.breaks:
            raise ZeroDivisionError("no data")
        return result["training_iteration"] == self.stops_at

    def on_time(self, now: float) -> None:
        self.now = now

    def stop_all(self) -> bool:
        return self.everything


class Lab:
    """An experiment with recording policies, and the cluster played by hand.

    Every event gets the next second; a worker's messages are numbered as the worker would.
    """

    def __init__(self, *, criteria: Stopper | None = None, **settings: Any) -> None:
        self.scheduler = RecordingScheduler()
        self.search = RecordingSearch()
        self.stopper = RecordingStopper()
        self.now = 0.0
        self.seqs: dict[tuple[str, int], int] = {}
        self.experiment = ExperimentMachine(
            ExperimentSettings(**settings),
            search=self.search,
            scheduler=self.scheduler,
            criteria=criteria or CombinedStopper(),
            stopper=self.stopper,
            seed=SeedSequence(0),
        )

    # The experiment

    def handle(self, event: ExperimentEvent) -> list[Action]:
        handled = self.experiment.handle(event)
        self.experiment.trial_index.validate()
        return handled.actions

    def add(self, **config: Any) -> Trial:
        trial_id = self.experiment.next_trial_id
        self.handle(
            Suggested(
                trial_id=self.experiment.next_trial_id,
                config=config,
                time=self.tick(),
                resources=ONE_CPU,
            )
        )
        return self.experiment.trials[trial_id]

    def no_more(self) -> None:
        self.handle(
            Suggested(trial_id=self.experiment.next_trial_id, config=None, finished=True, time=self.tick())
        )

    def grant(self, trial: Trial) -> StartTrial | RestoreTrial:
        actions = self.handle(ResourcesGranted(trial_id=trial.trial_id, time=self.tick()))
        assert isinstance(actions[-1], StartTrial | RestoreTrial)
        return actions[-1]

    def stop(self, reason: str = "the user wants it") -> list[Action]:
        return self.handle(StopRequested(reason=reason, time=self.tick()))

    def pause(self, trial: Trial) -> list[Action]:
        """Let a trial rest, as the user wants."""
        event = TrialPauseRequested(trial_id=trial.trial_id, reason="a rest", time=self.tick())
        return self.handle(event)

    def exceed_share(self, trial: Trial, **facts: Any) -> list[Action]:
        """Report that the experiment holds more than its share on the trial's worker."""
        given = {"incarnation": trial.incarnation, **facts}
        event = ShareExceeded(trial_id=trial.trial_id, reason="a share", time=self.tick(), **given)
        return self.handle(event)

    def unpause(self, trial: Trial) -> list[Action]:
        return self.handle(TrialUnpauseRequested(trial_id=trial.trial_id, time=self.tick()))

    def add_for_the_user(self, **config: Any) -> Trial:
        trial_id = self.experiment.free_trial_id
        event = TrialAddRequested(trial_id=trial_id, config=config, resources=ONE_CPU, time=self.tick())
        self.handle(event)
        return self.experiment.trials[trial_id]

    def time_passes(self) -> list[Action]:
        return self.handle(TimePassed(time=self.tick()))

    def tick(self) -> float:
        self.now += 1
        return self.now

    # The worker

    def event(self, trial: Trial, kind: Callable[..., TrialEvent], **facts: Any) -> Any:
        """Return what the trial's worker, or the driver in its place, would report next."""
        key = (trial.trial_id, trial.incarnation)
        if kind in NUMBERED:
            self.seqs[key] = self.seqs.get(key, 0) + 1
            facts.setdefault("seq", self.seqs[key])
        return kind(trial_id=trial.trial_id, incarnation=trial.incarnation, time=self.tick(), **facts)

    def tell(self, trial: Trial, kind: Callable[..., TrialEvent], **facts: Any) -> list[Action]:
        return self.handle(self.event(trial, kind, **facts))

    def start(self, trial: Trial) -> Trial:
        """Bring a trial to its worker."""
        self.grant(trial)
        self.tell(trial, TrialStarted, worker="w")
        return trial

    def running(self, **config: Any) -> Trial:
        return self.start(self.add(**config))

    def result(
        self,
        trial: Trial,
        iteration: int,
        *,
        checkpoint: int | None = None,
        awaits: bool = True,
        **metrics: Any,
    ) -> list[Action]:
        record = None
        if checkpoint is not None:
            record = committed(trial, checkpoint, iteration, **metrics)
        return self.tell(
            trial,
            ResultReported,
            metrics={"training_iteration": iteration, **metrics},
            checkpoint=record,
            awaits=awaits,
        )

    def save(self, trial: Trial, index: int, iteration: int, **metrics: Any) -> list[Action]:
        record = committed(trial, index, iteration, **metrics)
        return self.tell(trial, CheckpointCommitted, checkpoint=record)

    def fail(self, trial: Trial, message: str = "ValueError: no such loss") -> list[Action]:
        return self.tell(trial, TrialFailed, error=ErrorInfo(message=message))

    def lose(self, trial: Trial, *, charged: bool = True, shared: bool = False) -> list[Action]:
        reason = "worker w left the cluster"
        return self.tell(trial, TrialLost, reason=reason, charged=charged, shared=shared)

    # What came of it

    def seen_once(self, trial: Trial, how: str) -> bool:
        """Whether scheduler and searcher have heard of the trial's end exactly once, so."""
        searchers = [error for key, _, error in self.search.ends if key == trial.trial_id]
        return self.scheduler.ends(trial) == [how] and searchers == [how == "error"]


def committed(trial: Trial, index: int, iteration: int, **metrics: Any) -> CheckpointRecord:
    path = f"trials/{trial.trial_id}/checkpoint_{index:06d}_i{trial.incarnation:02d}"
    return CheckpointRecord(path=path, index=index, iteration=iteration, metrics=metrics)


def continues(actions: list[Action], trial: Trial) -> bool:
    """Whether all that was decided is that the trial continues from the result it waits at."""
    return [type(action) for action in actions] == [ContinueTraining] and actions[
        0
    ].trial_id == trial.trial_id


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def bring(lab: Lab, status: TrialStatus) -> Trial:
    """Return a new trial that has gone the usual way to `status`."""
    return WAYS[status](lab)


def _restoring(lab: Lab) -> Trial:
    trial = lab.running()
    lab.result(trial, 1, checkpoint=0)
    lab.lose(trial)
    lab.grant(trial)
    return trial


def _starting(lab: Lab) -> Trial:
    trial = lab.add()
    lab.grant(trial)
    return trial


def _decided(decision: Decision) -> Callable[[Lab], Trial]:
    def way(lab: Lab) -> Trial:
        trial = lab.running()
        before, lab.scheduler.decide = lab.scheduler.decide, lambda *_: decision
        lab.result(trial, 1)
        lab.scheduler.decide = before
        return trial

    return way


def _failing(lab: Lab) -> Trial:
    trial = lab.running()
    lab.stopper.breaks = True
    lab.result(trial, 1)
    lab.stopper.breaks = False
    return trial


def _paused(lab: Lab) -> Trial:
    trial = bring(lab, TrialStatus.PAUSING)
    lab.tell(trial, TrialPaused)
    return trial


def _rests(status: TrialStatus) -> Callable[[Lab], Trial]:
    def way(lab: Lab) -> Trial:
        trial = bring(lab, status)
        lab.pause(trial)
        return trial

    return way


def _yielding(lab: Lab) -> Trial:
    trial = lab.running()
    lab.exceed_share(trial)
    return trial


def _terminated(lab: Lab) -> Trial:
    trial = lab.running()
    lab.tell(trial, TrialEnded)
    return trial


def _failed(lab: Lab) -> Trial:
    trial = bring(lab, TrialStatus.STOPPING)
    lab.fail(trial)
    return trial


WAYS: dict[TrialStatus, Callable[[Lab], Trial]] = {
    TrialStatus.PENDING: lambda lab: lab.add(),
    TrialStatus.STARTING: _starting,
    TrialStatus.RESTORING: _restoring,
    TrialStatus.RUNNING: lambda lab: lab.running(),
    TrialStatus.SAVING: _decided(Continue(save=True)),
    TrialStatus.PAUSING: _decided(Pause("not now")),
    TrialStatus.PAUSED: _paused,
    TrialStatus.RESIZING: _decided(Resize(TWO_CPUS, "there is room")),
    TrialStatus.YIELDING: _yielding,
    TrialStatus.SUSPENDING: _rests(TrialStatus.RUNNING),
    TrialStatus.SUSPENDED: _rests(TrialStatus.PENDING),
    TrialStatus.SHELVING: _rests(TrialStatus.PAUSING),
    TrialStatus.SHELVED: _rests(TrialStatus.PAUSED),
    TrialStatus.STOPPING: _decided(Stop("bad")),
    TrialStatus.FAILING: _failing,
    TrialStatus.TERMINATED: _terminated,
    TrialStatus.ERROR: _failed,
}
