"""Whole experiments with the Gaussian process over learning curves, in virtual time."""

from __future__ import annotations

import json
from statistics import median

import pytest
from slope_kit import SLOTS
from slope_kit import tuned as tuned_on_slopes

from dasktune.schedulers import ASHAScheduler, HyperBandScheduler, PromotingASHAScheduler
from dasktune.search import ConcurrencyLimiter, GaussianProcessSearch
from dasktune.search.gp.rung_losses import RungLosses


class Watched(GaussianProcessSearch):
    """Records how many trials it expects results of."""

    def __init__(self, **arguments):
        super().__init__(reduction_factor=3, **arguments)
        self.expected = []

    def _pending(self):
        pending = super()._pending()
        self.expected.append(len(pending[1]))
        return pending

    @property
    def observed(self):
        """How many results there are at each resource."""
        losses = RungLosses(1, 3)
        losses.load_state_dict(self.state_dict()["evidence"])
        resources = losses.table().resources.tolist()
        return {resource: resources.count(resource) for resource in sorted({*resources})}


def tuned(search_alg, scheduler, *, num_samples=50, seed=1, **more):
    return tuned_on_slopes(search_alg, scheduler, num_samples=num_samples, seed=seed, **more)


@pytest.mark.parametrize(
    "scheduler",
    [PromotingASHAScheduler, ASHAScheduler, HyperBandScheduler],
    ids=["promoting", "stopping", "hyperband"],
)
def test_it_learns_at_the_rungs_and_expects_only_trials_that_run(scheduler):
    search = Watched()
    results = tuned(search, scheduler(max_t=9, reduction_factor=3))
    assert len(results) == 50
    observed = search.observed
    assert list(observed) == [0.0, 0.25, 0.5]
    assert observed[0.0] == 50
    assert observed[0.0] > observed[0.25] > observed[0.5]
    # One trial is suggested ahead, and a trial that has just been resumed may not be known to run.
    assert 1 <= max(search.expected) <= SLOTS + 1


def test_without_a_scheduler_the_last_results_count():
    best = []
    for seed in range(5):
        search = Watched()
        results = tuned(search, None, num_samples=30, seed=seed)
        finished = sum(result.error is None for result in results)
        assert search.observed[0.5] == finished
        best.append(results.get_best_result().metrics["loss"] - 0.5 / 9)
    # Of 20 seeds random search found as good ones in 4, this searcher in 6 of 8. At these rates the
    # median of five is not as good once in 10 choices of seeds, and that of random search 9 times.
    assert median(best) < 0.05


def test_with_a_limit_it_suggests_what_it_would_with_as_many_places():
    def configs(search, slots=SLOTS):
        return [json.dumps(result.config) for result in tuned(search, None, num_samples=20, slots=slots)]

    few, many = (configs(ConcurrencyLimiter(Watched(), SLOTS), slots) for slots in (SLOTS, 2 * SLOTS))
    assert few == many
    assert len({*configs(Watched())}) == 20
