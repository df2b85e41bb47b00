"""HyperBand and its like in whole experiments: what disturbs them changes no decision."""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streaming_kit import streaming
from test_replay import Descent
from test_restored_experiments import ONE_CPU, Died, Lab, ends, once_each

from dasktune.config import FailureConfig, RunConfig, TuneConfig
from dasktune.config.resume_config import ResumeConfig
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.schedulers import (
    HyperBandForBOHB,
    HyperBandScheduler,
    SuccessiveHalvingScheduler,
)
from dasktune.search import ConcurrencyLimiter, Searcher
from dasktune.space import uniform
from dasktune.storage.fs.storage import Storage
from dasktune.testing import ManualClock, MemoryStore, SimulatedTrialExecutor, simulate

MAKERS = {
    "hyperband": lambda: HyperBandScheduler(max_t=9),
    "bohb": lambda: HyperBandForBOHB(max_t=7, reduction_factor=2.5),
    "cohort": lambda: SuccessiveHalvingScheduler(max_t=9),
    "cohorts": lambda: SuccessiveHalvingScheduler(max_t=8, reduction_factor=2, n_trials=8),
}


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    for step in range(checkpoint or 0, 12):
        if config["x"] > 0.9 and step == 2:
            raise ValueError("diverged")
        # Steps of different length, so that trials overtake each other.
        yield {"loss": config["floor"] + config["x"] / (step + 1)}, 1 + config["x"], step + 1


def forgetful(config: dict[str, Any]) -> Any:
    yield from (step[:2] for step in curve(config, None))


def tune_config(scheduler: Any, n: int = 30, **options: Any) -> TuneConfig:
    return TuneConfig(metric="loss", mode="min", num_samples=n, scheduler=scheduler, seed=3, **options)


SPACE = {"x": uniform(0, 1), "floor": uniform(0, 0.2)}
RETRIES = RunConfig(failure_config=FailureConfig(max_failures=1, max_worker_losses=1000))


def outcome(results: Any) -> list[Any]:
    return [
        (result.trial_id, result.status, result.reason, [row["loss"] for row in result.history])
        for result in results
    ]


@functools.cache
def calm(name: str) -> list[Any]:
    results = simulate(curve, param_space=SPACE, tune_config=tune_config(MAKERS[name]()), run_config=RETRIES)
    return outcome(results)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    slots=st.integers(1, 40),
    lose=st.dictionaries(st.floats(0, 100), st.integers(0, 29), max_size=10),
    limit=st.sampled_from([None, 2, 7]),
    trainable=st.sampled_from([curve, forgetful]),
    streams=st.booleans(),
)
def test_neither_places_nor_losses_nor_limits_change_which_trials_are_kept(
    name: str,
    slots: int,
    lose: dict[float, int],
    limit: int | None,
    trainable: Any,
    streams: bool,
):
    with streaming(streams):
        results = simulate(
            trainable,
            param_space=SPACE,
            tune_config=tune_config(MAKERS[name](), max_concurrent_trials=limit),
            run_config=RETRIES,
            slots=slots,
            lose=lose,
        )
    assert outcome(results) == calm(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(lose=st.dictionaries(st.floats(0, 300), st.integers(0, 29), max_size=12))
def test_neither_do_checkpoints_in_memory_that_are_lost(name: str, lose: dict[float, int]):
    clock = ManualClock()
    experiment = build_experiment(tune_config(MAKERS[name]()), RETRIES, SPACE)
    executor = SimulatedTrialExecutor(
        curve, clock=clock, slots=3, start_overhead=1.0, lose=lose, saves_on_demand=True
    )
    TrialRunner(
        experiment, executor, store=MemoryStore(), clock=clock, resources_for=lambda config: ONE_CPU
    ).run()
    once_each(experiment)
    rows = [[row["loss"] for row in trial.history] for trial in experiment.trials.values()]
    assert rows == [one[-1] for one in calm(name)]


def place(name: str, scheduler: str, n: int = 30) -> Lab:
    storage = Storage(f"memory://halving/{name}")
    storage.remove_tree()
    parts = {
        "tune_config": tune_config(MAKERS[scheduler](), n),
        "run_config": RETRIES,
        "param_space": SPACE,
    }
    return Lab(storage, curve, **parts)


@functools.cache
def undisturbed(name: str) -> dict[str, Any]:
    return ends(place("calm", name).begin())


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives=st.lists(st.integers(0, 200), min_size=1, max_size=3))
def test_neither_does_a_driver_that_dies(name: str, lives: list[int]):
    lab, begun = place("stormy", name), False
    for limit in [*lives, 10**9]:
        try:
            experiment = lab.resume(limit) if begun else lab.begin(limit)
        except Died:
            begun = True
            continue
        break
    once_each(experiment)
    assert ends(experiment) == undisturbed(name)


@pytest.mark.parametrize(
    ("scheduler", "counts"),
    [
        # 3 of s=0, 5 of s=1, 9 of s=2, and a second time.
        (HyperBandScheduler(max_t=9), {1: 12, 3: 4 * 2 + 4, 9: 2 * 5}),
        (HyperBandForBOHB(max_t=9), {1: 12, 3: 4 * 2 + 4, 9: 2 * 5}),
        (SuccessiveHalvingScheduler(max_t=9), {1: 23, 3: 8, 9: 3}),
    ],
)
def test_so_many_trials_are_stopped_at_each_rung(scheduler: Any, counts: dict[int, int]):
    def straight(config: dict[str, Any]) -> Any:
        for _ in range(20):
            yield {"loss": config["x"]}, 1.0

    results = simulate(straight, param_space=SPACE, tune_config=tune_config(scheduler, n=34), slots=4)
    assert Counter(len(result.history) for result in results) == counts
    longest = {result.config["x"] for result in results if len(result.history) == 9}
    assert min(result.config["x"] for result in results) in longest


class Attentive(Searcher):
    """Draws at random, and writes down what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, str, Any]] = []
        self.unfinished: set[str] = set()
        self.most = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.unfinished.add(trial_id)
        self.most = max(self.most, len(self.unfinished))
        return {"x": (int(trial_id[-2:]) * 7 % 30) / 100, "floor": 0.0}

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        self._hear("result", trial_id, result)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.unfinished.discard(trial_id)
        self._hear("end", trial_id, result)

    def _hear(self, what: str, trial_id: str, result: Any) -> None:
        budget = result.get("hyperband_info/budget")
        if budget is not None:
            self.heard.append((what, trial_id, budget))


def run_limited(scheduler: Any, **options: Any) -> tuple[Any, Attentive]:
    searcher = Attentive()
    limiter = ConcurrencyLimiter(searcher, 3, **options)
    results = simulate(curve, tune_config=tune_config(scheduler, n=17, search_alg=limiter), slots=8)
    assert {result.status.value for result in results} == {"TERMINATED"}
    return results, searcher


@pytest.mark.parametrize("make", [HyperBandForBOHB, HyperBandScheduler])
def test_a_searcher_that_is_limited_fills_brackets_with_more_trials_than_its_limit(make: Any):
    results, searcher = run_limited(make(max_t=9))
    assert Counter(len(result.history) for result in results) == {1: 6, 3: 6, 9: 5}
    assert searcher.most > 3


def test_the_searcher_learns_at_which_budget_each_result_was_judged():
    results, searcher = run_limited(HyperBandForBOHB(max_t=9))
    for result in results:
        budgets = [b for what, key, b in searcher.heard if key == result.trial_id]
        # The searcher gets the last result once more at the end.
        assert max(budgets) == len(result.history)
        assert set(budgets) <= {1, 3, 9}
    assert "hyperband_info/budget" not in results[0].history[-1]


def test_without_it_the_searcher_gets_nothing_about_budgets():
    _, searcher = run_limited(HyperBandScheduler(max_t=9))
    assert searcher.heard == []


def test_a_searcher_that_wants_whole_batches_ended_makes_the_brackets_smaller():
    results, _ = run_limited(HyperBandForBOHB(max_t=9), batch=True)
    assert len(results) == 17
    # Each batch is a bracket: of three trials, and the last of two. Where s=0 all come to the end.
    assert sum(len(result.history) == 9 for result in results) == 1 + 1 + 3 + 1 + 1 + 2


def test_a_trial_that_fails_last_on_a_later_rung_leaves_none_waiting():
    def fragile(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range(checkpoint or 0, 12):
            if config["x"] == 8 and step == 2:
                raise ValueError("diverged")
            yield {"loss": -config["x"]}, 1.0 + (config["x"] == 8), step + 1

    store = MemoryStore()
    results = simulate(
        fragile,
        param_space={"x": {"grid_search": list(range(9))}},
        tune_config=TuneConfig(metric="loss", mode="min", scheduler=HyperBandForBOHB(max_t=9)),
        slots=9,
        store=store,
    )
    assert [len(result.history) for result in results] == [1] * 6 + [3, 9, 2]
    assert results[6].reason == "not among the best 1 of 2 by loss at rung 3 of bracket 0 (s=2)"
    waits = [
        action["reason"]
        for line in store.journal.splitlines()
        for action in json.loads(line).get("actions", ())
        if action["do"] == "PauseTrial"
    ]
    assert waits[0] == "waits at rung 1 of bracket 0 (s=2), reached by 1 so far"


@pytest.mark.parametrize("wish", ["skip", "resume", "restart"])
def test_only_trials_that_are_opened_again_take_part_in_a_bracket_which_then_ends(wish: str):
    lab = place(f"opened-{wish}", "hyperband")
    before = lab.begin()
    after = lab.resume(
        tune_config=tune_config(MAKERS["hyperband"](), n=36),
        resume=ResumeConfig(finished=wish, errored=wish),
    )
    once_each(after)
    assert len(after.trials) == 36
    assert not any("never chose" in trial.reason for trial in after.trials.values())
    assert sum(len(one.history) for one in after.trials.values()) > sum(
        len(one.history) for one in before.trials.values()
    )


def test_a_searcher_that_learns_works_with_hyperband():
    results = simulate(
        learnable,
        tune_config=TuneConfig(
            metric="loss",
            mode="min",
            num_samples=40,
            seed=0,
            scheduler=HyperBandForBOHB(max_t=9),
            search_alg=ConcurrencyLimiter(Descent(), 4),
        ),
        slots=4,
    )
    assert {len(result.history) for result in results} == {1, 3, 9}


def learnable(config: dict[str, Any]) -> Any:
    for step in range(12):
        yield {"loss": abs(config["lr"]) / (step + 1)}, 1.0
