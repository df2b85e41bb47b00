"""Trials that are paused with their checkpoints in memory, which may be lost at any time."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dasktune.config import FailureConfig, RunConfig, TuneConfig
from dasktune.experiment import ExperimentMachine
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import replay
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Continue, Exploit, Pause
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.testing import ManualClock, MemoryStore, SimulatedTrialExecutor
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.milestone import EVERY_RESULT
from dasktune.trial.resources import PlacementGroupFactory

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])
STEPS = 8

#: Virtual seconds -> number of the trial that loses its worker, or its checkpoint if it is paused.
LOSSES = st.dictionaries(st.floats(0, 300), st.integers(0, 4), max_size=12)


class Pausing(FIFOScheduler):
    """Pauses every trial at every third of its steps, and counts what it is shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int]] = []

    def on_trial_result(self, trial: Any, result: Any) -> Any:
        step = result["training_iteration"]
        self.shown.append((trial.trial_id, step))
        return Continue() if step % 3 else Pause("it is the others' turn")

    def next_milestones(self, trial: Any) -> Any:
        return EVERY_RESULT

    def state_dict(self) -> dict[str, Any]:
        return {"shown": [list(one) for one in self.shown]}

    def load_state_dict(self, state: Any) -> None:
        self.shown = [tuple(one) for one in state["shown"]]


def train(config: dict[str, Any], done: int | None) -> Any:
    for step in range((done or 0) + 1, STEPS + 1):
        yield {"square": step * step}, 7.0, step


class Cloning(Pausing):
    """Clones the first trial into the second one at its fourth step."""

    def on_trial_result(self, trial: Any, result: Any) -> Any:
        decision = super().on_trial_result(trial, result)
        number = int(trial.trial_id[-5:])
        if number == 1 and result["training_iteration"] == 4 and not trial.ancestry:
            first = min(key for key, _ in self.shown)
            return Exploit(donor=first, config=trial.config, reason="it is better")
        return decision


class Lab:
    """An experiment of five trials on two slots, and what outlives its drivers."""

    def __init__(self, scheduler: type[Pausing] = Pausing) -> None:
        self.scheduler = scheduler
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.checkpoints: dict[str, Any] = {}

    def build(self) -> ExperimentMachine:
        failures = FailureConfig(max_worker_losses=1000)
        return build_experiment(
            TuneConfig(num_samples=5, seed=0, scheduler=self.scheduler()),
            RunConfig(failure_config=failures),
            {},
        )

    def runner(self, experiment: ExperimentMachine, **options: Any) -> TrialRunner:
        executor = SimulatedTrialExecutor(
            train,
            clock=self.clock,
            slots=2,
            start_overhead=1.0,
            checkpoints=self.checkpoints,
            saves_on_demand=True,
            **options,
        )
        return TrialRunner(
            experiment,
            executor,
            store=self.store,
            clock=self.clock,
            resources_for=lambda config: ONE_CPU,
        )

    def drive(self, **options: Any) -> ExperimentMachine:
        experiment = self.build()
        self.runner(experiment, **options).run()
        return experiment

    def records(self, event: str = "") -> list[dict[str, Any]]:
        records = map(decode, self.store.journal.splitlines())
        return [one for one in records if event in ("", one["event"])]


def assert_complete(experiment: ExperimentMachine) -> None:
    """Assert that every trial has every row once, and that no policy has seen one twice."""
    for trial in experiment.trials.values():
        assert [row["square"] for row in trial.history] == [n * n for n in range(1, STEPS + 1)]
        assert trial.status.is_final
    expected = [(key, step) for key in experiment.trials for step in range(1, STEPS + 1)]
    assert sorted(experiment.scheduler.shown) == sorted(expected)


def test_a_pause_costs_no_step_and_nothing_in_the_storage():
    lab = Lab()
    experiment = lab.drive()
    assert_complete(experiment)
    assert len(lab.records("ResultReported")) == 5 * STEPS
    assert lab.checkpoints == {}
    kinds = [one["checkpoint"]["kind"] for one in lab.records("CheckpointCommitted")]
    assert kinds == ["memory"] * 5 * (STEPS // 3)


def test_a_checkpoint_in_memory_that_is_lost_costs_time_and_not_the_answer():
    lab = Lab()
    experiment = lab.drive(lose={40.0: 0})
    assert_complete(experiment)
    [loss] = lab.records("CheckpointLost")
    assert loss["status"] == "PAUSED"
    assert len(lab.records("ResultReported")) == 5 * STEPS + 3


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(lose=LOSSES)
def test_whatever_is_lost_every_history_is_complete_and_the_journal_tells_why(lose):
    lab = Lab()
    experiment = lab.drive(lose=lose)
    assert_complete(experiment)
    again = lab.build()
    replay(again, lab.records(), lambda key: {})
    assert encode(again.state_dict()) == encode(experiment.state_dict())


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(lose=LOSSES, steps=st.integers(1, 60), asked=st.booleans())
def test_a_driver_that_leaves_stores_what_is_in_memory_and_one_that_dies_loses_it(lose, steps, asked):
    lab = Lab()
    first = lab.build()
    runner = lab.runner(first, lose=lose)
    for _ in range(steps):
        if not first.finished:
            runner.step()
    paused = {key: trial.memory for key, trial in first.trials.items() if trial.memory}
    if asked and not first.finished:
        runner.interrupt()
        runner.run()
    else:
        paused = {}
    second = lab.build()
    replay(second, lab.records(), lambda key: {})
    assert encode(second.state_dict()) == encode(first.state_dict())
    for key, record in paused.items():
        assert second.trials[key].checkpoint.index >= record.index
    runner = lab.runner(second)
    runner.resume()
    assert not any(trial.memory for trial in second.trials.values())
    runner.run()
    assert_complete(second)


def test_a_driver_that_leaves_stores_what_only_a_clone_needs():
    lab = Lab(Cloning)
    first = lab.build()
    runner = lab.runner(first)
    while not any(record.kind is CheckpointKind.MEMORY for t in first.trials.values() for record in t.lent):
        runner.step()
    runner.interrupt()
    runner.run()
    [clone] = [trial for trial in first.trials.values() if trial.origin is not None]
    second = lab.build()
    replay(second, lab.records(), lambda key: {})
    runner = lab.runner(second)
    runner.resume()
    origin = second.trials[clone.trial_id].origin
    assert origin == clone.origin
    assert origin.path in lab.checkpoints
    runner.run()
    assert all(trial.status.is_final for trial in second.trials.values())
    assert [row["square"] for row in second.trials[clone.trial_id].history][-1] == STEPS * STEPS
