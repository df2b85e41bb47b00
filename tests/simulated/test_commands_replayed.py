"""Experiments with a restless user: consistent, ended, and replayed to the letter."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from test_replay import LOSE, Recorder, configs, curve, fresh, state
from test_restored_experiments import Lab, once_each

from dasktune.experiment import ExperimentMachine
from dasktune.results.journal_trials import apply_records
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import event_of, replay
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.testing import ManualClock, SimulatedTrialExecutor
from dasktune.trial.actions import SetShare
from dasktune.trial.events import ExecutorEvent, ShareExceeded, TimePassed
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.tuner.saved_setup import setup_of

pytestmark = pytest.mark.usefixtures("quick_bandit")

CASES = [
    ("fifo", "variants"),
    ("fifo", "searcher"),
    ("fifo", "batches"),
    ("asha", "limited"),
    ("hyperband", "variants"),
    ("hyperband", "limited"),
    ("halving", "limited"),
    ("promoting", "variants"),
    ("fronts", "variants"),
    ("soft-median", "limited"),
    ("function", "variants"),
    ("resizing-halving", "variants"),
    ("pbt", "variants"),
    ("synch-pbt", "limited"),
    ("synch-pb2", "variants"),
]


class RestlessUser:
    """Gives commands at random, and resumes all trials where nothing else happens."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)
        self.runner: TrialRunner | None = None
        self.given = 0

    def on_event(self, event: Any, handled: Any, experiment: ExperimentMachine) -> None:
        assert self.runner is not None
        commands, trials = self.runner.commands, list(experiment.trials)
        if isinstance(event, TimePassed):
            commands.release()
            for key in experiment.trial_index.paused_by_user:
                commands.unpause_trial(key)
            return
        if not trials or self.draws.random() > 0.15:
            return
        self.given += 1
        key = self.draws.choice(trials)
        what = self.draws.choice(["pause", "pause", "pause", "unpause", "add", "hold", "stop", "checkpoint"])
        if self.given % 7 == 0:
            commands.set_share(weight=self.given)
        if what == "add" and len(trials) < 20:
            commands.add_trial({"lr": self.draws.random(), "depth": 2, "layers": 3, "layer": "a"})
        elif what == "hold":
            commands.hold()
        elif what == "stop" and self.draws.random() < 0.3:
            commands.stop_trial(key)
        elif what in ("pause", "unpause", "checkpoint"):
            getattr(commands, f"{what}_trial")(key)

    def on_end(self, experiment: ExperimentMachine) -> None:
        pass


class BusyCluster(SimulatedTrialExecutor):
    """A cluster on which the experiment now and then holds more than its share."""

    def __init__(self, experiment: ExperimentMachine, seed: int, **options: Any) -> None:
        super().__init__(curve, **options)
        self.experiment, self.draws, self.clock = experiment, random.Random(seed), options["clock"]

    def next_events(self, timeout: float) -> list[ExecutorEvent]:
        events = [*super().next_events(timeout)]
        running = list(self.experiment.trial_index.active.values())
        if running and self.draws.random() < 0.1:
            trial = self.draws.choice(running)
            key, incarnation = trial.trial_id, trial.incarnation
            now = self.clock.now()
            events.append(ShareExceeded(trial_id=key, incarnation=incarnation, reason="a share", time=now))
        return events


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def lived(request: pytest.FixtureRequest, quick_bandit: None) -> tuple[Any, Recorder, ExperimentMachine]:
    store, user, clock = Recorder(), RestlessUser(len(str(request.param))), ManualClock()
    experiment = fresh(*request.param)
    one_cpu = PlacementGroupFactory([{"CPU": 1}])
    runner = TrialRunner(
        experiment,
        BusyCluster(
            experiment,
            seed=7,
            clock=clock,
            workers=[2, 2],
            start_overhead=1.5,
            lose=LOSE,
            saves_on_demand=True,
        ),
        store=store,
        clock=clock,
        resources_for=lambda config: one_cpu,
        observers=[user],
    )
    user.runner = runner
    runner.run()
    assert user.given > 3
    return request.param, store, experiment


def test_it_finishes_and_every_trial_has_ended(lived: Any):
    _, store, experiment = lived
    assert experiment.finished
    assert all(one.status.is_final for one in experiment.trials.values())
    never = {one.reason for one in experiment.trials.values() if "never chose" in one.reason}
    assert not never or lived[0][0] not in ("fifo", "asha"), "a standstill has ended who rested"
    done = {action["do"] for record in store.records for action in record.get("actions", ())}
    assert done & {"RecallTrial", "SuspendTrial"}
    assert {"ResumeTrial", "SetShare", "YieldTrial"} <= done


def test_a_trial_that_rests_is_started_by_the_user(lived: Any):
    resting: set[str] = set()
    for record in lived[1].records:
        for action in record.get("actions", ()):
            key = action.get("trial_id")
            if action["do"] in ("RecallTrial", "SuspendTrial"):
                resting.add(key)
            elif action["do"] in ("ResumeTrial", "FinishTrial", "StopTrial", "GiveUp", "FailTrial"):
                resting.discard(key)
            elif action["do"] in ("StartTrial", "RestoreTrial"):
                assert key not in resting


def test_nothing_starts_while_it_is_held(lived: Any):
    held = False
    for record in lived[1].records:
        held = (held or record["event"] == "HoldRequested") and record["event"] != "ReleaseRequested"
        assert not (held and record["event"] == "ResourcesGranted")
    assert any(record["event"] == "HoldRequested" for record in lived[1].records)


def test_its_journal_leads_to_where_it_was(lived: Any):
    case, store, experiment = lived
    again, done = fresh(*case), 0
    for position, snapshot in sorted(store.snapshots.items()):
        replay(again, store.records[done:position], lambda trial_id: {})
        done = position
        assert decode(encode(again.state_dict())) == decode(snapshot)
    replay(again, store.records[done:], lambda trial_id: {})
    assert state(again) == state(experiment)


def test_a_snapshot_taken_anywhere_replays_alike(lived: Any):
    case, store, _ = lived
    cuts = [n for n, one in enumerate(store.records) if "Requested" in one["event"]][::5]
    live, done = fresh(*case), 0
    for cut in cuts[:6]:
        replay(live, store.records[done : cut + 1], lambda trial_id: {})
        done = cut + 1
        restored = fresh(*case)
        restored.load_state_dict(decode(encode(live.state_dict())))
        assert state(restored) == state(live)
        replay(restored, store.records[done : done + 30], lambda trial_id: {})
        other = fresh(*case)
        replay(other, store.records[: done + 30], lambda trial_id: {})
        assert state(restored) == state(other)


def test_what_the_journal_says_of_the_trials_is_what_the_driver_knew(lived: Any):
    _, store, experiment = lived
    trials: dict[str, Any] = {}
    apply_records(trials, store.records)
    for key, trial in experiment.trials.items():
        told = trials[key]
        assert (told.status, told.reason, told.tag) == (trial.status, trial.reason, trial.tag)
        assert (told.added, told.pause_reason) == (trial.added, trial.pause_reason)
        assert told.status in (TrialStatus.TERMINATED, TrialStatus.ERROR)


def test_each_record_gives_its_event_back(lived: Any):
    for record in lived[1].records:
        assert type(event_of(record)).__name__ == record["event"]


class Dying:
    """Lets one trial rest and holds the others; then the driver dies."""

    def __init__(self) -> None:
        self.runner: TrialRunner | None = None
        self.seen = 0
        self.has_said = False

    def on_event(self, event: Any, handled: Any, experiment: ExperimentMachine) -> None:
        assert self.runner is not None
        self.seen += 1
        if self.seen >= 12 and experiment.trial_index.active and not self.has_said:
            self.has_said = True
            self.runner.commands.pause_trial(next(iter(experiment.trial_index.active)))
            self.runner.commands.hold()
        elif experiment.state.on_hold and experiment.trial_index.paused_by_user:
            self.runner.interrupt()

    def on_end(self, experiment: ExperimentMachine) -> None:
        pass


@pytest.mark.parametrize("releases", [True, False])
def test_what_was_paused_or_held_resumes_only_if_a_person_releases_it(releases: bool):
    storage = Storage(f"memory://commands/releases-{releases}")
    storage.remove_tree()
    place = Lab(storage, **configs("fifo", "variants"))
    user, one_cpu = Dying(), PlacementGroupFactory([{"CPU": 1}])
    experiment = build_experiment(*place.parts.values())
    setup_of(**place.parts).write(storage)
    runner = TrialRunner(
        experiment,
        SimulatedTrialExecutor(curve, clock=place.clock, slots=3, checkpoints=place.checkpoints),
        store=ExperimentStore(storage),
        clock=place.clock,
        resources_for=lambda config: one_cpu,
        observers=[user],
    )
    user.runner = runner
    runner.run()
    assert experiment.state.on_hold
    assert len(experiment.trial_index.paused_by_user) == 1
    session = place.restore()
    assert session.experiment.state.on_hold
    session.releases = releases
    if releases:
        once_each(place.drive(session.experiment, session=session))
        return
    store = ExperimentStore(storage)
    store.begin(after=session.end)
    next_runner = TrialRunner(
        session.experiment,
        SimulatedTrialExecutor(curve, clock=place.clock, slots=3, checkpoints=place.checkpoints),
        store=store,
        clock=place.clock,
        resources_for=lambda config: one_cpu,
    )
    session.begin(next_runner)
    with next_runner.running():
        for _ in range(5):
            next_runner.step()
    assert session.experiment.state.on_hold
    assert len(session.experiment.trial_index.paused_by_user) == 1
    assert not session.experiment.trial_index.active


class SetsShare(Dying):
    """Sets the share of the cluster twice; then the driver is interrupted."""

    def on_event(self, event: Any, handled: Any, experiment: ExperimentMachine) -> None:
        assert self.runner is not None
        self.seen += 1
        if self.seen == 12:
            self.runner.commands.set_share(weight=2, priority=1)
            self.runner.commands.set_share(yields_after=60)
            self.runner.commands.set_share(weight=3)
        elif experiment.state.weight == 3:
            self.runner.interrupt()


class SharingExecutor(SimulatedTrialExecutor):
    """Keeps the share that it was given last."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.share: dict[str, float] = {}

    def set_share(self, action: SetShare) -> None:
        given = {
            "weight": action.weight,
            "priority": action.priority,
            "yields_after": action.yields_after,
        }
        self.share |= {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("given", "share"),
    [
        (None, {"weight": 3.0, "priority": 1.0, "yields_after": 60.0}),
        # The same as at the start: what was set at run time is the later decision.
        ({"weight": 1.5}, {"weight": 3.0, "priority": 1.0, "yields_after": 60.0}),
        ({"weight": 4}, {"weight": 4.0, "priority": 1.0, "yields_after": 60.0}),
        (
            {"weight": 1.5, "priority": -2, "yields_after": 5},
            {"weight": 3.0, "priority": -2.0, "yields_after": 5.0},
        ),
    ],
)
def test_a_restored_experiment_keeps_the_share_that_was_set_last(given: Any, share: dict[str, float]):
    storage = Storage("memory://commands/share")
    storage.remove_tree()
    parts = configs("fifo", "variants")
    place = Lab(storage, **{**parts, "run_config": replace(parts["run_config"], weight=1.5)})
    user, one_cpu = SetsShare(), PlacementGroupFactory([{"CPU": 1}])
    executors: list[SharingExecutor] = []

    def runner_of(experiment: ExperimentMachine, store: ExperimentStore, *observers: Any) -> TrialRunner:
        executor = SharingExecutor(curve, clock=place.clock, slots=3, checkpoints=place.checkpoints)
        executors.append(executor)
        return TrialRunner(
            experiment,
            executor,
            store=store,
            clock=place.clock,
            resources_for=lambda config: one_cpu,
            observers=observers,
        )

    setup_of(**place.parts).write(storage)
    user.runner = runner_of(build_experiment(*place.parts.values()), ExperimentStore(storage), user)
    user.runner.run()
    for _ in range(2):
        # A second driver of the same configuration changes nothing more.
        session = place.restore(run_config=given and replace(place.parts["run_config"], **given))
        store = ExperimentStore(storage)
        store.begin(after=session.end)
        runner = runner_of(session.experiment, store)
        session.begin(runner)
        with runner.running():
            runner.step()
        assert executors[-1].share == share
