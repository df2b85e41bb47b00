"""Whole experiments on a cluster that trials share out again as trials end and workers change."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_restored_experiments import ONE_CPU, Died, Lab, driven, once_each

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError, PreflightError
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.schedulers import (
    ASHAScheduler,
    DistributeResources,
    DistributeResourcesToTopJob,
    FIFOScheduler,
    HyperBandScheduler,
    ResourceChangingScheduler,
)
from dasktune.space import grid_search
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import ManualClock, MemoryStore, SimulatedTrialExecutor, simulate
from dasktune.trial.status import PublicStatus


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    for epoch in range(checkpoint or 0, config["epochs"]):
        if config.get("fails") == epoch:
            raise ValueError("diverged")
        yield {"loss": config["epochs"] + 1 / (epoch + 1)}, 1.0, epoch + 1


class Journal(MemoryStore):
    """Keeps no snapshots, and tells who held how much when."""

    def save_snapshot(self, state: Any) -> None:
        pass

    @property
    def records(self) -> list[dict[str, Any]]:
        return [decode(line) for line in self.journal.splitlines()]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == kind]

    def orders(self, kind: str) -> list[dict[str, Any]]:
        actions = (one for record in self.records for one in record.get("actions", ()))
        return [action for action in actions if action["do"] == kind]

    def cpus(self) -> dict[int, list[int]]:
        """What each trial held, one start after the other."""
        held: dict[int, list[int]] = {}
        for record in self.records:
            for action in record.get("actions", ()):
                if action["do"] in ("StartTrial", "RestoreTrial"):
                    number = int(action["trial_id"][-5:])
                    amounts = [one.get("CPU", 0) for one in action["resources"]["bundles"]]
                    held.setdefault(number, []).append(sum(amounts))
        return held


def run(store: Journal | None = None, **options: Any) -> tuple[Any, Journal]:
    store = store or Journal()
    space = options.pop("space", {"epochs": grid_search([6, 10, 14, 20])})
    scheduler = options.pop("scheduler", None) or ResourceChangingScheduler()
    results = simulate(
        options.pop("trainable", curve),
        param_space=space,
        tune_config=TuneConfig(
            metric="loss", mode="min", seed=1, scheduler=scheduler, **options.pop("tune", {})
        ),
        run_config=options.pop("run_config", RunConfig()),
        store=store,
        **{"workers": [8], **options},
    )
    for result in results:
        iterations = [row["training_iteration"] for row in result.history]
        assert iterations == list(range(1, len(iterations) + 1))
    return results, store


def test_all_of_a_cluster_is_in_use_to_the_end():
    results, journal = run()
    assert [len(result.history) for result in results] == [6, 10, 14, 20]
    assert journal.cpus() == {0: [1, 2], 1: [1, 2, 3], 2: [1, 2, 3, 4], 3: [1, 2, 4, 8]}
    # From wherever it was: nothing is computed twice.
    assert len(journal.events("ResultReported")) == 6 + 10 + 14 + 20
    [told] = journal.events("ClusterChanged")
    assert told["workers"]["worker-0"]["CPU"] == 8


def test_a_freed_place_is_taken_by_no_other():
    def modest(view: Any, trial: Any, result: Any, scheduler: Any) -> Any:
        return {"CPU": 2} if result["training_iteration"] == 2 else None

    scheduler = ResourceChangingScheduler(None, modest)
    space = {"epochs": grid_search([4] * 6)}
    _, journal = run(scheduler=scheduler, space=space, workers=[3], resources={"CPU": 3})
    assert journal.cpus() == {number: [3, 2] for number in range(6)}
    story = [
        (one["event"], one["trial_id"])
        for one in journal.records
        if one["event"] in ("TrialPaused", "ResourcesGranted")
    ]
    for (event, who), (following, whose) in pairwise(story):
        assert event != "TrialPaused" or (following, whose) == ("ResourcesGranted", who)


def test_what_failed_trials_had_goes_to_the_others():
    """Ray Tune counts them as alive for ever."""
    space = {"epochs": grid_search([6, 12]), "fails": grid_search([2, None])}
    results, journal = run(space=space)
    failed = {int(one.trial_id[-5:]) for one in results if one.status is PublicStatus.ERROR}
    assert len(failed) == 2
    longest = max(set(journal.cpus()) - failed)
    assert journal.cpus()[longest][-1] == 8


def test_the_best_gets_it_all():
    scheduler = ResourceChangingScheduler(None, DistributeResourcesToTopJob())
    _, journal = run(scheduler=scheduler)
    assert journal.cpus() == {0: [1, 5], 1: [1, 6], 2: [1, 7], 3: [1, 8]}


def test_a_lost_worker_costs_a_trial_nothing_of_what_it_has():
    results, journal = run(lose={8.5: 3, 12.5: 2, 16.5: 3})
    assert {result.status for result in results} == {PublicStatus.TERMINATED}
    for number, amounts in journal.cpus().items():
        # It starts once more with what it had, and never with less.
        assert amounts == sorted(amounts), number
    assert journal.cpus()[3] == [1, 2, 2, 4, 4, 4, 8]


def test_trials_adapt_to_a_cluster_that_grows_and_shrinks():
    workers = {0.0: [2, 2], 5.0: [4, 4, 4], 9.0: [2], 15.0: [6]}
    space = {"epochs": grid_search([30, 30])}
    results, journal = run(space=space, workers=workers)
    assert [len(result.history) for result in results] == [30, 30]
    assert len(journal.events("ClusterChanged")) == 4
    amounts = journal.cpus()
    for held in amounts.values():
        assert held[:3] == [1, 2, 4]
        assert 3 in held
        assert max(held) <= 6
    # Those that were lost with their workers went back to a CPU each, as no more was there.
    assert sum(1 in held[3:] for held in amounts.values()) == 2


@pytest.mark.parametrize("base", [FIFOScheduler, lambda: HyperBandScheduler(max_t=9)])
@pytest.mark.parametrize("function", [DistributeResources, DistributeResourcesToTopJob])
def test_none_waits_for_ever_however_the_cluster_changes(base: Any, function: Any):
    workers = {0.0: [4, 4]} | {7.0 * turn: [3, 1] if turn % 3 else [1, 2, 5] for turn in range(1, 60)}
    for more in ({"CPU": 1}, {"CPU": 2}):
        scheduler = ResourceChangingScheduler(base(), function(increase_by=more))
        results, _ = run(
            scheduler=scheduler,
            space={"epochs": grid_search([3, 9, 9, 20, 5])},
            tune={"num_samples": 4},
            workers=workers,
            lose={5.0 * n: n % 5 for n in range(1, 40)},
            run_config=RunConfig(failure_config=FailureConfig(max_worker_losses=99)),
        )
        assert {result.status for result in results} == {PublicStatus.TERMINATED}


def test_what_waits_for_more_than_there_is_asks_for_its_base_on_record():
    # Lost alone, and no other trial is left to report anything.
    workers = {0.0: [2, 8], 5.5: [2]}
    results, journal = run(space={"epochs": grid_search([9])}, workers=workers)
    assert len(results[0].history) == 9
    assert journal.cpus() == {0: [1, 8, 1, 2]}
    [change] = journal.orders("ChangeRequest")
    assert change["resources"]["bundles"] == [{"CPU": 1}]


def test_further_bundles_are_added_and_given_back():
    scheduler = ResourceChangingScheduler(None, DistributeResources(add_bundles=True))
    _, journal = run(scheduler=scheduler, workers=[2, 2, 4])
    assert {number: held[-1] for number, held in journal.cpus().items()} == {0: 2, 1: 3, 2: 4, 3: 8}


def test_where_there_are_only_slots_nothing_changes():
    _, journal = run(workers=None, slots=2)
    assert journal.events("ClusterChanged") == []
    assert journal.cpus() == {number: [1] for number in range(4)}


def test_no_cluster_event_if_the_scheduler_ignores_it():
    _, journal = run(scheduler=FIFOScheduler(), workers={0.0: [2], 3.0: [4]})
    assert journal.events("ClusterChanged") == []
    # The journal still records the sums.
    told = journal.events("CapacityChanged")
    assert [one["capacity"] for one in told] == [{"CPU": 2}, {"CPU": 4}]
    assert [one["num_workers"] for one in told] == [1, 1]


def test_with_the_class_api_it_is_saved_when_it_leaves():
    """As simulated: nothing is saved but on demand."""
    store, clock = Journal(), ManualClock()
    config = TuneConfig(seed=1, scheduler=ResourceChangingScheduler())
    experiment = build_experiment(config, RunConfig(), {"epochs": grid_search([6, 10])})
    executor = SimulatedTrialExecutor(curve, clock=clock, workers=[4], saves_on_demand=True)
    TrialRunner(experiment, executor, store=store, clock=clock, resources_for=lambda config: ONE_CPU).run()
    assert store.cpus() == {0: [1, 2], 1: [1, 2, 4]}
    assert len(store.events("ResultReported")) == 16
    once_each(experiment)


@pytest.mark.parametrize("workers", [[], {}, {1.0: [1]}, {0.0: [1], 2.0: []}, {0.0: 3}, ["large"]], ids=str)
def test_a_cluster_is_one_that_can_be(workers: Any):
    with pytest.raises(ConfigError, match="workers must be a list"):
        run(workers=workers)


def test_a_request_that_will_be_met_may_wait_for_it():
    results, _ = run(resources={"CPU": 4}, workers={0.0: [2], 50.0: [4]}, scheduler=FIFOScheduler())
    assert {result.status for result in results} == {PublicStatus.TERMINATED}
    with pytest.raises(PreflightError):
        run(resources={"CPU": 8}, workers={0.0: [2], 50.0: [4]}, scheduler=FIFOScheduler())


# Another driver


def place_of(name: str) -> Lab:
    storage = Storage(f"memory://resizing/{name}")
    storage.remove_tree()
    base = ASHAScheduler(max_t=20, grace_period=4, reduction_factor=3)
    place = Lab(
        storage,
        curve,
        tune_config=TuneConfig(metric="loss", mode="min", seed=1, scheduler=ResourceChangingScheduler(base)),
        run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=1)),
        param_space={"epochs": grid_search([20, 14, 10, 6, 18])},
    )
    place.places = {"workers": [4, 4]}
    # Often, so that some resume from a snapshot and some from the journal.
    place.checkpoint_period = 5.0
    return place


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives=st.lists(st.integers(0, 90), max_size=4))
def test_however_often_its_driver_dies_it_finishes(lives: list[int]):
    experiment = driven(place_of("mortal"), lives)
    once_each(experiment)
    assert len(experiment.trials) == 5
    assert Counter(trial.public_status for trial in experiment.trials.values()) == {
        PublicStatus.TERMINATED: 5
    }
    assert max(trial.resources.head_cpus for trial in experiment.trials.values()) == 4


def test_a_driver_that_resumes_knows_which_trial_has_how_much():
    for limit in range(25, 60, 7):
        place = place_of(f"knows-{limit}")
        with pytest.raises(Died):
            place.begin(limit)
        session = place.restore()
        trials = session.experiment.trials.values()
        assert any(trial.resources != ONE_CPU for trial in trials)
        assert all(trial.base_resources == ONE_CPU for trial in trials)
        assert session.experiment.state_dict()["policies"]["workers"]
