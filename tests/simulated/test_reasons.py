"""Whatever is done to a trial, the journal and its result say why."""

from __future__ import annotations

from typing import Any

import pytest
from test_replay import SCHEDULERS, configs, curve

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import ManualClock, MemoryStore, SimulatedTrialExecutor, simulate
from dasktune.trial.resources import PlacementGroupFactory

pytestmark = pytest.mark.usefixtures("quick_bandit")

#: Orders that somebody has to have a reason for.
FATEFUL = ("StopTrial", "FinishTrial", "PauseTrial", "ResizeTrial", "ExploitTrial", "GiveUp")

#: What schedulers do to some of their trials in the experiments of these tests, at least.
DEEDS = {
    "asha": {"StopTrial"},
    "promoting": {"PauseTrial", "FinishTrial"},
    "fronts": {"StopTrial"},
    "hyperband": {"PauseTrial", "FinishTrial"},
    "bohb": {"PauseTrial", "FinishTrial"},
    "halving": {"PauseTrial", "FinishTrial"},
    "median": {"StopTrial"},
    "median-at-rungs": {"StopTrial"},
    "soft-median": {"PauseTrial"},
    "function": {"PauseTrial", "FinishTrial"},
    "resizing": {"ResizeTrial"},
    "resizing-halving": {"ResizeTrial", "PauseTrial", "FinishTrial"},
    "pbt": {"ExploitTrial", "PauseTrial"},
    "synch-pbt": {"ExploitTrial", "PauseTrial"},
    "pb2": {"ExploitTrial", "PauseTrial"},
    "synch-pb2": {"ExploitTrial", "PauseTrial"},
}


def orders(store: MemoryStore) -> list[dict[str, Any]]:
    records = (decode(line) for line in store.journal.splitlines())
    actions = (action for record in records for action in record.get("actions", ()))
    return [action for action in actions if action["do"] in FATEFUL]


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "fifo"])
def test_the_journal_tells_the_reason_of_each_order_and_the_result_that_of_its_end(scheduler: str):
    store = MemoryStore()
    place = {"workers": [7]} if "resizing" in scheduler else {"slots": 3}
    results = simulate(curve, store=store, **configs(scheduler, "variants"), **place)
    given = orders(store)
    assert DEEDS[scheduler] <= {order["do"] for order in given}
    assert all(order["reason"].strip() for order in given)
    last = {order["trial_id"]: order for order in given}
    for result in results:
        order = last.get(result.trial_id)
        ended = order is not None and order["do"] in ("StopTrial", "FinishTrial", "GiveUp")
        assert result.reason == (order["reason"] if ended else ""), result
        assert not ended or repr(order["reason"]) in repr(result)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_result_and_dashboard_agree_on_the_trials_that_were_stopped_early(scheduler: str):
    store = MemoryStore()
    place = {"workers": [7]} if "resizing" in scheduler else {"slots": 3}
    results = simulate(curve, store=store, **configs(scheduler, "variants"), **place)
    projection = ExperimentProjection(metric="loss", mode="min")
    projection.extend(decode(line) for line in store.journal.splitlines())
    early = {result.trial_id for result in results if result.stopped_early}
    assert {trial.trial_id for trial in projection.trials if trial.stopped_early} == early
    assert projection.num_stopped_early == len(early)
    assert not early or scheduler != "fifo"


@pytest.mark.parametrize("scheduler", ["hyperband", "promoting", "synch-pbt"])
def test_of_an_experiment_that_was_interrupted_each_paused_trial_says_what_it_waits_for(
    scheduler: str,
):
    store, clock = MemoryStore(), ManualClock()
    experiment = build_experiment(*configs(scheduler, "variants").values())
    executor = SimulatedTrialExecutor(curve, clock=clock, slots=3)
    runner = TrialRunner(
        experiment,
        executor,
        store=store,
        clock=clock,
        resources_for=lambda config: PlacementGroupFactory([{"CPU": 1}]),
    )
    while not experiment.trial_index.paused:
        runner.step()
    runner.interrupt()
    runner.run()
    paused = list(experiment.trial_index.paused.values())
    last = {order["trial_id"]: order["reason"] for order in orders(store)}
    assert paused
    assert all(trial.pause_reason == last[trial.trial_id] for trial in paused)
