"""Whole experiments with the searchers of dasktune, in virtual time."""

from __future__ import annotations

import pytest
from numpy.random import default_rng

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.schedulers import ASHAScheduler, HyperBandScheduler
from dasktune.search import AskTell, AskTellSearch, ConcurrencyLimiter, QuasiRandomSearch, Repeater
from dasktune.testing import simulate

SPACE = {"x": tune.uniform(-2, 2), "y": tune.uniform(-2, 2)}


def bowl(config):
    for step in range(1, 10):
        yield {"loss": config["x"] ** 2 + config["y"] ** 2 + 1 / step, "steps": step}, 1.0


class Climbing(AskTell):
    """Tries the neighbourhood of the best point so far."""

    def __init__(self, domains, seed):
        self.domains = domains
        self.rng = default_rng(seed)
        self.best = None

    def ask(self):
        if self.best is None:
            return {path: one.sample(random_state=self.rng) for path, one in self.domains.items()}
        near = {path: value + self.rng.normal(0, 0.3) for path, value in self.best[1].items()}
        return {path: min(max(value, -2.0), 2.0) for path, value in near.items()}

    def tell(self, params, loss):
        if loss is not None and (self.best is None or loss < self.best[0]):
            self.best = loss, params


def tuned(search_alg, num_samples=32, **changes):
    goals = {"metric": "loss", "mode": "min"} | changes
    config = tune.TuneConfig(search_alg=search_alg, num_samples=num_samples, seed=1, **goals)
    return simulate(bowl, param_space=SPACE, tune_config=config, slots=4)


def test_what_learns_is_better_than_what_does_not():
    learnt = tuned(AskTellSearch(Climbing), 128).get_best_result()
    even = tuned("quasi_random", 128).get_best_result()
    assert learnt.metrics["loss"] < even.metrics["loss"]


@pytest.mark.parametrize("scheduler", [ASHAScheduler(max_t=9), HyperBandScheduler(max_t=9)])
def test_repeats_go_with_schedulers_that_stop_and_pause(scheduler):
    search = ConcurrencyLimiter(Repeater(AskTellSearch(Climbing), repeat=3), 6)
    grid = tuned(search, num_samples=30, scheduler=scheduler)
    assert grid.num_terminated == 30
    groups = [[one.config for one in grid][i : i + 3] for i in range(0, 30, 3)]
    for group in groups:
        assert [config["__trial_index__"] for config in group] == [0, 1, 2]
        assert len({config["x"] for config in group}) == 1


def test_several_goals_go_all_the_way_from_the_configuration_to_the_front():
    grid = tuned(AskTellSearch(Climbing2), metric=["loss", "steps"], mode=["min", "max"])
    front = grid.get_pareto_front()
    assert [one.metrics["loss"] for one in front] == [min(one.metrics["loss"] for one in grid)] * len(front)
    assert grid.get_hypervolume([10.0, 0.0]) > 0


class Climbing2(Climbing):
    def tell(self, params, loss):
        super().tell(params, None if loss is None else loss[0])


def test_a_scheduler_needs_a_metric_of_its_own_where_there_are_several():
    goals = {"metric": ["loss", "steps"], "mode": ["min", "max"]}
    with pytest.raises(ConfigError, match="metric and mode must be set"):
        tuned(QuasiRandomSearch(), scheduler=ASHAScheduler(max_t=9), **goals)
    own = ASHAScheduler(metric="loss", mode="min", max_t=9)
    assert tuned(QuasiRandomSearch(), scheduler=own, **goals).num_terminated == 32


def test_a_searcher_learns_from_the_results_of_an_earlier_experiment():
    search = AskTellSearch(Climbing, metric="loss", mode="min")
    search.add_evaluated_trials(tuned("quasi_random"))
    assert tuned(search, num_samples=1).get_best_result().metrics["loss"] < 1
