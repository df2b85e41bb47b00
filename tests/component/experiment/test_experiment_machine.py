"""Whatever happens in whatever order, an experiment stays consistent and ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from experiment_kit import TWO_CPUS, Lab, committed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dasktune.schedulers.decision import (
    Command,
    Continue,
    Exploit,
    ExploitOther,
    Pause,
    Resize,
    ResizeWaiting,
    Stop,
    StopOther,
    Unpause,
)
from dasktune.trial.actions import (
    Action,
    ContinueTraining,
    DeleteCheckpoint,
    PauseTrial,
    RecallTrial,
    ResizeTrial,
    RestoreTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    YieldTrial,
)
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.events import (
    CheckpointCommitted,
    CheckpointLost,
    CheckpointStored,
    HoldRequested,
    OtherEvent,
    ReleaseRequested,
    ResultReported,
    StartFailed,
    Suggested,
    SuggestionAsked,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialReturned,
    TrialStarted,
    TrialStopped,
    TrialStopRequested,
)
from dasktune.trial.retention import Retention
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

ORDERS = {
    PauseTrial: TrialPaused,
    RecallTrial: TrialPaused,
    ResizeTrial: TrialPaused,
    StopTrial: TrialStopped,
    YieldTrial: TrialPaused,
}


#: Where a wish to rest comes too late, or a second time.
LATE = {
    TrialStatus.SUSPENDING,
    TrialStatus.SHELVING,
    TrialStatus.STOPPING,
    TrialStatus.FAILING,
    TrialStatus.TERMINATED,
    TrialStatus.ERROR,
}


@dataclass
class Run:
    """What the worker of one incarnation knows."""

    trial: Trial
    iteration: int
    next_checkpoint: int
    started: bool = False
    #: Stands at a milestone and says nothing before it is answered.
    waits: bool = False
    #: Its last message never arrives, so that it can only be lost.
    silent: bool = False
    order: type[TrialPaused] | type[TrialStopped] | None = None
    #: What it said and was not heard.
    lost: list[TrialEvent] = field(default_factory=list)

    @property
    def speaks(self) -> bool:
        return self.started and not self.waits and not self.silent


@dataclass
class Cluster:
    """Obeys what the experiment wants, and remembers all that was ever said."""

    runs: dict[str, Run] = field(default_factory=dict)
    mail: list[TrialEvent] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)

    def obey(self, lab: Lab, actions: list[Action]) -> None:
        for action in actions:
            trial = lab.experiment.trials[action.trial_id]
            match action:
                case StartTrial():
                    self.runs[action.trial_id] = Run(trial, 0, action.next_checkpoint)
                case RestoreTrial():
                    assert action.checkpoint.path not in self.deleted
                    start = action.checkpoint.iteration
                    self.runs[action.trial_id] = Run(trial, start, action.next_checkpoint)
                case ContinueTraining() | SaveTrial():
                    assert self.runs[action.trial_id].waits
                    self.runs[action.trial_id].waits = False
                case PauseTrial() | ResizeTrial() | RecallTrial() | YieldTrial() | StopTrial():
                    run = self.runs[action.trial_id]
                    run.waits, run.order = False, ORDERS[type(action)]
                case DeleteCheckpoint() if action.checkpoint.kind is CheckpointKind.MEMORY:
                    self.deleted.add(action.checkpoint.path)
                case DeleteCheckpoint():
                    assert trial.checkpoint is not None
                    assert action.checkpoint.index < trial.checkpoint.index
                    self.deleted.add(action.checkpoint.path)


class ExperimentMachine(RuleBasedStateMachine):
    """The experiment against a model of a cluster that may lose, repeat and delay messages."""

    @initialize(
        max_failures=st.sampled_from([0, 2, -1]),
        max_losses=st.integers(0, 3),
        fail_fast=st.sampled_from([False, False, False, True]),
        keep=st.sampled_from([None, 1, 2]),
    )
    def begin(self, max_failures: int, max_losses: int, fail_fast: bool, keep: int | None) -> None:
        self.lab = Lab(
            max_failures=max_failures,
            max_worker_losses=max_losses,
            fail_fast=fail_fast,
            retention=Retention(num_to_keep=keep),
        )
        self.lab.search.lookahead = 3
        self.cluster = Cluster()
        for _ in range(3):
            self.launch()

    # What the driver does

    @rule()
    def launch(self) -> None:
        """Bring another trial, or one that waits, to a worker: most of what happens needs one."""
        if self.lab.experiment.wants_suggestion:
            self.lab.add()
        trial = self.lab.experiment.next_trial()
        if trial is not None:
            self.cluster.obey(self.lab, [self.lab.grant(trial)])
            run = self.cluster.runs[trial.trial_id]
            run.started = True
            self._say(run, TrialStarted, worker="w")

    @precondition(lambda self: self.lab.experiment.wants_suggestion)
    @rule()
    def begin_to_ask(self) -> None:
        trial_id = self.lab.experiment.next_trial_id
        assert not self.lab.handle(SuggestionAsked(trial_id=trial_id, time=self.lab.tick()))

    @precondition(
        lambda self: self.lab.experiment.wants_suggestion or self.lab.experiment.pending_suggestion.is_open
    )
    @rule(answer=st.sampled_from(["config", "config", "config", "wait", "finished"]))
    def ask(self, answer: str) -> None:
        if answer == "config":
            self.lab.add()
        else:
            finished = answer == "finished"
            event = Suggested(
                trial_id=self.lab.experiment.next_trial_id,
                config=None,
                finished=finished,
                time=self.lab.tick(),
            )
            self.cluster.obey(self.lab, self.lab.handle(event))

    @precondition(lambda self: self.lab.experiment.next_trial() is not None)
    @rule()
    def grant(self) -> None:
        trial = self.lab.experiment.next_trial()
        assert trial is not None
        self.cluster.obey(self.lab, [self.lab.grant(trial)])

    @rule()
    def time_passes(self) -> None:
        self.cluster.obey(self.lab, self.lab.time_passes())

    @precondition(lambda self: len(self.lab.experiment.trials) > 2)
    @rule(sure=st.integers(0, 9))
    def stop_everything(self, sure: int) -> None:
        if not sure:
            self.cluster.obey(self.lab, self.lab.stop())

    @precondition(lambda self: self.lab.experiment.trials)
    @rule(data=st.data(), sure=st.integers(0, 3))
    def stop_one(self, data: st.DataObject, sure: int) -> None:
        if sure:
            return
        trial_id = data.draw(st.sampled_from(list(self.lab.experiment.trials)))
        event = TrialStopRequested(trial_id=trial_id, reason="the user", time=self.lab.tick())
        self.cluster.obey(self.lab, self.lab.handle(event))

    @precondition(lambda self: self.lab.experiment.trials)
    @rule(data=st.data(), sure=st.integers(0, 1))
    def let_one_rest_or_resume(self, data: st.DataObject, sure: int) -> None:
        if sure:
            return
        trials = self.lab.experiment.trials
        trial = trials[data.draw(st.sampled_from(list(trials)))]
        heeded = trial.status not in LATE
        actions = self.lab.unpause(trial) if trial.status.is_paused_by_user else self.lab.pause(trial)
        assert len(actions) == heeded, "a wish is heeded, or comes too late"
        self.cluster.obey(self.lab, actions)

    @precondition(lambda self: self.cluster.runs)
    @rule(data=st.data(), is_old=st.booleans())
    def let_one_yield_to_another_experiment(self, data: st.DataObject, is_old: bool) -> None:
        trial = self._draw(data, lambda run: True).trial
        runs = trial.status is TrialStatus.RUNNING
        actions = self.lab.exceed_share(trial, incarnation=trial.incarnation - is_old)
        assert len(actions) == (runs and not is_old), "an event about an earlier start has no effect"
        self.cluster.obey(self.lab, actions)

    @rule(sure=st.integers(0, 3))
    def hold_or_release(self, sure: int) -> None:
        if not sure:
            self._toggle()

    def _toggle(self) -> None:
        kind = ReleaseRequested if self.lab.experiment.state.on_hold else HoldRequested
        assert self.lab.handle(kind(time=self.lab.tick())) == []
        held = self.lab.experiment.state.on_hold
        assert not held or self.lab.experiment.next_trial() is None
        assert not (held and self.lab.experiment.wants_suggestion)

    @rule(sure=st.integers(0, 3))
    def add_one_for_the_user(self, sure: int) -> None:
        if not sure:
            self.lab.add_for_the_user(lr=1.0)

    @rule(strands=st.booleans())
    def change_its_mind(self, strands: bool) -> None:
        self.lab.scheduler.strands = strands

    @precondition(lambda self: self.lab.experiment.trials)
    @rule(data=st.data())
    def prepare_commands_for_an_end(self, data: st.DataObject) -> None:
        trial_id = data.draw(st.sampled_from(list(self.lab.experiment.trials)))
        self.lab.scheduler.commands[trial_id] = self._commands(data)

    # What workers do

    @precondition(lambda self: any(not run.started for run in self.cluster.runs.values()))
    @rule(data=st.data(), takes=st.sampled_from(["yes", "yes", "yes", "no", "not now"]))
    def worker_takes_it(self, data: st.DataObject, takes: str) -> None:
        run = self._draw(data, lambda run: not run.started)
        if takes == "yes":
            run.started = True
            self._say(run, TrialStarted, worker="w")
        elif takes == "no":
            self._say(run, StartFailed, reason="no room")
        else:
            self._say(run, TrialReturned)

    @precondition(lambda self: any(run.speaks for run in self.cluster.runs.values()))
    @rule(
        data=st.data(),
        awaits=st.sampled_from([True, True, False]),
        saves=st.booleans(),
        arrives=st.sampled_from([True, True, True, False]),
        decision=st.sampled_from(["continue", "continue", "save", "pause", "resize", "exploit", "stop"]),
    )
    def report(self, data: st.DataObject, awaits: bool, saves: bool, arrives: bool, decision: str) -> None:
        run = self._draw(data, lambda run: run.speaks)
        run.iteration += 1
        record = self._save(run) if saves else None
        commands = self._commands(data)
        awaits = awaits and run.order is None
        run.waits, run.silent = awaits, awaits and not arrives
        self.lab.scheduler.decide = lambda *_: {
            "continue": Continue(commands=commands),
            "save": Continue(save=True, hold=True, commands=commands),
            "exploit": Exploit(self._any(data), {}, "bad", commands=commands),
            "pause": Pause("not now", commands=commands),
            "resize": Resize(TWO_CPUS, "there is room", commands=commands),
            "stop": Stop("bad", commands=commands),
        }[decision]
        metrics = {"training_iteration": run.iteration, "acc": 1 / run.iteration}
        facts = {"metrics": metrics, "checkpoint": record, "awaits": awaits}
        self._say(run, ResultReported, arrives=arrives, **facts)
        assert run.silent or not run.waits, "a worker waits and has no answer"

    @precondition(lambda self: any(run.speaks for run in self.cluster.runs.values()))
    @rule(data=st.data(), arrives=st.booleans(), kind=st.sampled_from(CheckpointKind))
    def commit_a_checkpoint(self, data: st.DataObject, arrives: bool, kind: CheckpointKind) -> None:
        run = self._draw(data, lambda run: run.speaks)
        record = replace(self._save(run), kind=kind)
        self._say(run, CheckpointCommitted, arrives=arrives, checkpoint=record)

    @precondition(lambda self: any(one.memory for one in self.lab.experiment.trials.values()))
    @rule(data=st.data(), stored=st.booleans())
    def lose_or_store_what_is_in_memory(self, data: st.DataObject, stored: bool) -> None:
        trials = self.lab.experiment.trials
        key = data.draw(st.sampled_from([key for key, one in trials.items() if one.memory]))
        record, now = trials[key].memory, self.lab.tick()
        assert record is not None
        event: CheckpointStored | CheckpointLost
        if stored:
            kept = replace(record, kind=CheckpointKind.PERSISTENT)
            event = CheckpointStored(trial_id=key, checkpoint=kept, time=now)
        else:
            event = CheckpointLost(trial_id=key, path=record.path, reason="gone", time=now)
            self.cluster.deleted.add(record.path)
        actions = self.lab.handle(event)
        assert not self.lab.experiment.trials[key].memory
        # The same path means another thing from now on.
        self.cluster.obey(self.lab, [one for one in actions if one.checkpoint != record])

    @precondition(lambda self: any(run.speaks for run in self.cluster.runs.values()))
    @rule(
        data=st.data(),
        kind=st.sampled_from([TrialEnded, TrialFailed, None, None, None]),
        arrives=st.sampled_from([True, True, True, False]),
    )
    def leave(self, data: st.DataObject, kind: type[TrialEvent] | None, arrives: bool) -> None:
        run = self._draw(data, lambda run: run.speaks)
        kind = kind or run.order
        if kind is None:
            return
        facts: dict[str, Any] = {"error": ErrorInfo(message="no")} if kind is TrialFailed else {}
        run.silent = not arrives
        self._say(run, kind, arrives=arrives, **facts)

    @precondition(lambda self: self.cluster.runs)
    @rule(data=st.data(), charged=st.booleans(), shared=st.booleans())
    def lose_a_worker(self, data: st.DataObject, charged: bool, shared: bool) -> None:
        run = self._draw(data, lambda run: True)
        self._say(run, TrialLost, reason="gone", charged=charged, shared=shared)

    @precondition(lambda self: self.cluster.mail)
    @rule(data=st.data())
    def deliver_old_mail(self, data: st.DataObject) -> None:
        """Something that was said before arrives late, or once more."""
        event = data.draw(st.sampled_from(self.cluster.mail))
        calls = list(self.lab.scheduler.calls)
        assert self.lab.handle(event) == []
        assert self.lab.scheduler.calls == calls

    # What always holds

    @invariant()
    def everything_is_consistent(self) -> None:
        if not hasattr(self, "lab"):
            return
        experiment = self.lab.experiment
        experiment.trial_index.validate()
        active = {key for key, trial in experiment.trials.items() if trial.status.is_active}
        assert active == set(self.cluster.runs)
        for trial in experiment.trials.values():
            iterations = [row["training_iteration"] for row in trial.history]
            assert all(one < next_one for one, next_one in pairwise(iterations))
            assert not (trial.added and self.lab.search.knows(trial)), "no search suggested it"
            ends = [error for key, _, error in self.lab.search.ends if key == trial.trial_id]
            assert len(self.lab.scheduler.ends(trial)) == trial.status.is_final
            # A search that is asked hears of it later.
            hears = not experiment.pending_suggestion.is_open
            due = trial.status.is_final and not trial.added
            assert len(ends) == due or not (ends or hears)
            if ends:
                assert ends == [trial.status is TrialStatus.ERROR]
        shown = self.lab.stopper.shown
        # A clone reaches an iteration once more.
        shown = [one for one in shown if not experiment.trials[one[0]].ancestry]
        assert len(shown) == len(set(shown)), "a result was shown twice"

    def teardown(self) -> None:
        """Let everything run to its end."""
        if not hasattr(self, "lab"):
            return
        self.lab.scheduler.commands.clear()
        self.lab.scheduler.decide = lambda *_: Continue()
        self.lab.no_more()
        if self.lab.experiment.state.on_hold:
            self._toggle()
        for _ in range(3 * len(self.lab.experiment.trials) + 1):
            if self.lab.experiment.next_trial() is not None:
                self.grant()
            for run in list(self.cluster.runs.values()):
                if run.silent or run.waits:
                    self._say(run, TrialLost, reason="gone", charged=False)
                    continue
                if not run.started:
                    run.started = True
                    self._say(run, TrialStarted, worker="w")
                self._say(run, run.order or TrialEnded)
            self.time_passes()
            for trial in list(self.lab.experiment.trial_index.paused_by_user.values()):
                assert not self.lab.experiment.finished, "who rests is not forgotten"
                self.lab.unpause(trial)
        assert self.lab.experiment.finished
        self.everything_is_consistent()
        assert all(trial.status.is_final for trial in self.lab.experiment.trials.values())

    # Helpers

    def _draw(self, data: st.DataObject, fits: Any) -> Run:
        fitting = [key for key, run in self.cluster.runs.items() if fits(run)]
        return self.cluster.runs[data.draw(st.sampled_from(fitting))]

    def _any(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(list(self.lab.experiment.trials)))

    def _commands(self, data: st.DataObject) -> tuple[Command, ...]:
        trial_id = self._any(data)
        kinds = ["", "", "", "unpause", "unpause", "resize", "exploit", "stop"]
        kind = data.draw(st.sampled_from(kinds))
        commands: dict[str, tuple[Command, ...]] = {
            "": (),
            "unpause": (Unpause(trial_id=trial_id),),
            "resize": (ResizeWaiting(trial_id=trial_id, resources=TWO_CPUS),),
            "exploit": (ExploitOther(trial_id=trial_id, donor=self._any(data), config={}, reason="bad"),),
            "stop": (StopOther(trial_id=trial_id, reason="beaten"),),
        }
        return commands[kind]

    def _save(self, run: Run) -> Any:
        run.next_checkpoint += 1
        return committed(run.trial, run.next_checkpoint - 1, run.iteration)

    def _say(self, run: Run, kind: Any, *, arrives: bool = True, **facts: Any) -> None:
        event = self.lab.event(run.trial, kind, **facts)
        if not arrives:
            run.lost.append(event)
            return
        actions = self.lab.handle(event)
        # What was lost before may still come, but now it is too late.
        self.cluster.mail += [event, *run.lost]
        run.lost.clear()
        if not run.trial.status.is_active or kind in (TrialLost, StartFailed):
            del self.cluster.runs[run.trial.trial_id]
        self.cluster.obey(self.lab, actions)


ExperimentMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=50)
TestExperimentMachine = ExperimentMachine.TestCase


def test_an_event_that_nothing_handles_is_an_error():
    class Unknown(OtherEvent):
        time = 0.0

    with pytest.raises(TypeError, match="cannot handle Unknown"):
        Lab().handle(Unknown())
