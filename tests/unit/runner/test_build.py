"""From a configuration to an experiment."""

from __future__ import annotations

from threading import Lock
from typing import Any

import pytest
from numpy.random import SeedSequence

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.experiment import ExperimentMachine
from dasktune.runner.build import build_experiment, first_config
from dasktune.schedulers import ASHAScheduler, FIFOScheduler
from dasktune.search import BasicVariantGenerator, Searcher
from dasktune.stopper import CriteriaStopper, MaximumIterationStopper

SPACE = {"x": tune.uniform(0, 1), "y": tune.choice([1, 2, 3])}


def build(space: dict[str, Any] | None = None, stop: Any = None, **options: Any) -> ExperimentMachine:
    config = tune.TuneConfig(**{"metric": "loss", "mode": "min", **options})
    return build_experiment(config, tune.RunConfig(stop=stop), SPACE if space is None else space)


class Countdown(Searcher):
    asked = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.asked += 1
        return {"x": self.asked}

    def set_search_properties(self, *args: Any, **options: Any) -> bool:
        return False


def test_by_default_trials_come_at_random_and_run_in_their_order():
    experiment = build()
    assert isinstance(experiment.search, BasicVariantGenerator)
    assert isinstance(experiment.scheduler, FIFOScheduler)


def test_policies_may_be_objects_or_names():
    search, scheduler = BasicVariantGenerator(), ASHAScheduler(max_t=7)
    assert build(search_alg=search).search is search
    assert build(scheduler=scheduler).scheduler.max_t == 7
    assert isinstance(build(search_alg="random").search, BasicVariantGenerator)
    assert isinstance(build(scheduler="asha").scheduler, ASHAScheduler)


def test_experiments_that_are_given_the_same_scheduler_do_not_share_what_it_learns():
    scheduler = ASHAScheduler()
    first, second = build(scheduler=scheduler), build(scheduler=scheduler, metric="acc")
    assert first.scheduler is not second.scheduler
    assert (first.scheduler.metric, second.scheduler.metric) == ("loss", "acc")
    assert scheduler.metric is None


def test_a_scheduler_that_cannot_be_copied_is_good_for_one_experiment(
    caplog: pytest.LogCaptureFixture,
):
    class Locked(FIFOScheduler):
        def __init__(self) -> None:
            self.lock = Lock()

    scheduler = Locked()
    assert build(scheduler=scheduler).scheduler is scheduler
    [record] = caplog.records
    assert record.getMessage().startswith("Locked cannot be copied (TypeError: ")
    assert record.getMessage().endswith("create a new one for each experiment")


@pytest.mark.parametrize("name", ["search_alg", "scheduler"])
@pytest.mark.parametrize("policy", [3, {"type": "asha"}, "no such policy"])
def test_a_policy_that_is_none_is_named(name: str, policy: Any):
    with pytest.raises(ConfigError, match=rf"({name}|searcher) must be .*, got "):
        build(**{name: policy})


def test_a_scheduler_that_compares_needs_to_know_what():
    with pytest.raises(ConfigError, match="metric and mode must be set, got metric=None"):
        build(scheduler="asha", metric=None, mode=None)


def test_metric_and_mode_stand_in_one_place():
    with pytest.raises(ConfigError, match=r"\(metric=...\) must be equal to TuneConfig"):
        build(scheduler=ASHAScheduler(metric="acc", mode="max"))


def test_the_same_seed_gives_the_same_trials_even_as_one_object():
    seed = SeedSequence(7)
    first, second, third = build(seed=seed), build(seed=seed), build(seed=7)
    names = {experiment.next_trial_id for experiment in (first, second, third)}
    configs = [e.search.next_trial("t").config for e in (first, second, third)]
    assert len(names) == 1
    assert configs[0] == configs[1] == configs[2]


def test_the_first_configuration_can_be_seen_without_being_used_up():
    experiment = build(seed=1)
    seen = first_config(experiment)
    assert seen is not None
    assert seen == first_config(experiment) == experiment.search.next_trial("t").config


def test_a_grid_is_seen_from_its_first_point():
    assert first_config(build({"a": tune.grid_search([5, 6])})) == {"a": 5}


def test_a_searcher_is_not_asked_before_its_time():
    searcher = Countdown()
    assert first_config(build({}, search_alg=searcher)) is None
    assert searcher.asked == 0


def test_criteria_are_parted_from_stoppers_that_have_a_state():
    experiment = build(stop=[MaximumIterationStopper(4), CriteriaStopper({"loss": 1})], time_budget_s=60)
    state = experiment.state_dict()["policies"]
    assert state["criteria"] == {}
    # Of the iterations and of the time.
    assert state["stopper"] == {"stoppers": [{"results": {}}, {"used": 0.0}]}


def test_without_stoppers_there_is_no_state_of_one():
    state = build().state_dict()["policies"]
    assert state["criteria"] == state["stopper"] == {}
