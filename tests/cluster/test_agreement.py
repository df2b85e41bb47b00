"""A real cluster and a simulation decide alike: the same order of arrival, the same ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import journal, run_config
from distributed import LocalCluster
from numpy.random import SeedSequence, default_rng

import dasktune as tune
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    Pause,
    Stop,
    StopOther,
    SuccessiveHalvingScheduler,
    TrialScheduler,
)
from dasktune.testing import ManualClock, MemoryStore, SimulatedTrialExecutor
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

pytestmark = pytest.mark.cluster

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])

TRIALS, EPOCHS = 18, 9

_rng = default_rng(0)

#: Losses by trial and epoch, falling and noisy.
CURVES: list[list[float]] = [
    [floor + (1 - floor) / epoch + 0.1 * float(_rng.random()) for epoch in range(1, EPOCHS + 1)]
    for floor in map(float, _rng.random(TRIALS))
]

SCHEDULERS: dict[str, Callable[[], TrialScheduler]] = {
    "asha": lambda: ASHAScheduler(max_t=EPOCHS, reduction_factor=3),
    "hyperband": lambda: HyperBandScheduler(max_t=EPOCHS),
    "halving": lambda: SuccessiveHalvingScheduler(max_t=EPOCHS, n_trials=9),
    "median": lambda: MedianStoppingRule(
        time_attr="training_iteration", grace_period=2, min_samples_required=3
    ),
}

#: Trial -> its last epoch, and why it ended there.
Ends = dict[str, tuple[int, str]]


def network(config: dict[str, Any], curves: list[list[float]]) -> None:
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["epoch"] if checkpoint else 0
    saves = tune.get_context().get_world_rank() == 0
    for epoch in range(done, EPOCHS):
        saved = tune.Checkpoint.from_dict({"epoch": epoch + 1}) if saves else None
        tune.report({"loss": curves[config["number"]][epoch]}, checkpoint=saved)


def settings(name: str) -> dict[str, Any]:
    """Return what both experiments are made of."""
    tune_config = tune.TuneConfig(metric="loss", mode="min", scheduler=SCHEDULERS[name](), seed=0)
    return {
        "param_space": {"number": tune.grid_search(list(range(TRIALS)))},
        "tune_config": tune_config,
    }


def ends(trials: Any) -> Ends:
    return {one.trial_id: (one.history[-1]["training_iteration"], one.reason) for one in trials}


@dataclass
class Retold:
    """A scheduler on its own that hears what a journal says in that order."""

    scheduler: TrialScheduler
    trials: dict[str, Trial] = field(default_factory=dict)
    last: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Why each trial ended, as this scheduler says.
    reasons: dict[str, str] = field(default_factory=dict)
    #: What it said of results, by kind.
    decisions: Counter[str] = field(default_factory=Counter)

    def tell(self, record: dict[str, Any]) -> None:
        key = record.get("trial_id", "")
        match record["event"]:
            case "Suggested" if record["finished"]:
                self._obey(self.scheduler.on_search_end())
            case "Suggested":
                trial = Trial(trial_id=key, config=record["config"], resources=ONE_CPU)
                self.trials[key] = trial
                self.scheduler.on_trial_add(trial)
            case "ResourcesGranted":
                self.scheduler.on_trial_start(self.trials[key])
            case "ResultReported":
                self._compare(key, record)
            case "TrialStopped" | "TrialEnded":
                trial, result = self.trials[key], self.last[key]
                self._obey(self.scheduler.on_trial_complete(trial, result))
        for action in record.get("actions", ()):
            if action["do"] == "FinishTrial":
                trial = self.trials[action["trial_id"]]
                self._obey(self.scheduler.on_trial_remove(trial))

    def _compare(self, key: str, record: dict[str, Any]) -> None:
        """Ask the scheduler for a decision, which must be the one in the journal."""
        self.last[key] = record["metrics"]
        decision = self.scheduler.on_trial_result(self.trials[key], record["metrics"])
        own: list[tuple[str, str]] = []
        if isinstance(decision, Stop | Pause):
            own = [(f"{type(decision).__name__}Trial", decision.reason)]
        told = [
            (action["do"], action["reason"])
            for action in record.get("actions", ())
            if action["trial_id"] == key and action["do"] in ("StopTrial", "PauseTrial")
        ]
        assert own == told
        self.decisions[type(decision).__name__] += 1
        self._obey(decision.commands)
        if isinstance(decision, Stop):
            self.reasons[key] = decision.reason
        elif record["awaits"]:
            self.scheduler.next_milestones(self.trials[key])

    def _obey(self, commands: tuple[Any, ...]) -> None:
        stopped = (command for command in commands if isinstance(command, StopOther))
        self.reasons.update({command.trial_id: command.reason for command in stopped})


def simulated(name: str, records: list[dict[str, Any]]) -> Ends:
    """Simulate the experiment so that results arrive in the order of a journal."""
    numbers = {
        record["trial_id"]: record["config"]["number"]
        for record in records
        if record["event"] == "Suggested" and not record["finished"]
    }
    order = [
        (numbers[record["trial_id"]], record["metrics"]["training_iteration"])
        for record in records
        if record["event"] == "ResultReported"
    ]
    arrival = {result: float(when) for when, result in enumerate(order, 1)}
    clock = ManualClock()

    def trial(config: dict[str, Any], checkpoint: int | None) -> Any:
        number = config["number"]
        for epoch in range(checkpoint or 0, EPOCHS):
            seconds = arrival[number, epoch + 1] - clock.now()
            yield {"loss": CURVES[number][epoch]}, seconds, epoch + 1

    parts = settings(name)
    experiment = build_experiment(parts["tune_config"], tune.RunConfig(), parts["param_space"])
    TrialRunner(
        experiment,
        # Room for all: who starts when is in the times of arrival already.
        SimulatedTrialExecutor(trial, clock=clock, slots=TRIALS),
        store=MemoryStore(),
        clock=clock,
        resources_for=lambda config: ONE_CPU,
    ).run()
    return ends(experiment.trials.values())


#: Trials of two ranks take longer, because each rank is a process.
RANKS = [(name, 2) for name in ("asha", "hyperband")]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [*((name, 1) for name in SCHEDULERS), *(pytest.param(*case, marks=pytest.mark.slow) for case in RANKS)],
)
def test_a_cluster_and_a_simulation_stop_the_same_trials_at_the_same_epochs(
    pair: LocalCluster, tmp_path: Path, name: str, ranks: int
):
    trainable = tune.with_parameters(network, curves=CURVES)
    results = tune.Tuner(
        trainable if ranks == 1 else tune.with_ranks(trainable, ranks),
        **settings(name),
        run_config=run_config(tmp_path),
        client=pair,
    ).fit()
    records = journal(tmp_path)

    scheduler = SCHEDULERS[name]()
    scheduler.set_search_properties("loss", "min")
    scheduler.seed(SeedSequence(0))
    retold = Retold(scheduler)
    for record in records:
        retold.tell(record)
    # A trial that no scheduler ends trains to the end of its curve.
    told = {key: reason for key, (_, reason) in ends(results).items() if reason}
    assert told == retold.reasons
    assert retold.decisions["Stop"] > 0
    assert retold.decisions.total() == sum(len(result.history) for result in results)

    if name != "median":  # which trial it lets start first depends on free places, too
        assert simulated(name, records) == ends(results)
