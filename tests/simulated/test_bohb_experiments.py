"""Whole experiments with the model of BOHB, in virtual time."""

from __future__ import annotations

from collections import Counter
from statistics import median

import pytest
from slope_kit import floor_of, tuned

from dasktune.schedulers import ASHAScheduler, HyperBandForBOHB
from dasktune.search import ConcurrencyLimiter, TuneBOHB


class Watched(TuneBOHB):
    """Lets everybody see what it has learnt, and which trials have waited."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.waited, self.resumed = set(), set()

    def on_pause(self, trial_id):
        self.waited.add(trial_id)
        super().on_pause(trial_id)

    def on_unpause(self, trial_id):
        self.resumed.add(trial_id)
        super().on_unpause(trial_id)

    @property
    def learnt(self):
        """How many results there are at each budget, failures aside."""
        return {budget: len(losses) for budget, losses in self.state_dict()["evidence"]["losses"]}


@pytest.mark.parametrize(
    "wrapped",
    [lambda search: search, lambda search: ConcurrencyLimiter(search, 3)],
    ids=["alone", "limited"],
)
def test_with_hyperband_all_ends_and_what_is_learnt_is_what_rungs_were_judged_by(wrapped):
    search = Watched()
    grid = tuned(wrapped(search), HyperBandForBOHB(max_t=9))
    lengths = Counter(len(result.history) for result in grid if result.error is None)
    assert grid.num_terminated + grid.num_errors == len(grid) == 60
    assert grid.num_errors
    assert set(lengths) == {1, 3, 9}
    # A trial that reached a rung was observed there; brackets begin at different ones.
    assert set(search.learnt) == {1, 3, 9}
    assert search.learnt[9] == lengths[9]
    assert search.waited > search.resumed > set()
    assert not search.state_dict()["open"]


def test_with_asha_all_ends_and_it_learns_at_powers_of_two():
    search = Watched()
    grid = tuned(search, ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3))
    assert grid.num_terminated + grid.num_errors == len(grid) == 60
    assert {1, 2, 4, 8, 9} <= set(search.learnt)
    assert not search.waited
    assert not search.state_dict()["open"]


def late(make_search, make_scheduler, seeds):
    """Return how good the last half of the configurations was, of all these experiments."""
    grids = [tuned(make_search(), make_scheduler(max_t=9), seed=seed) for seed in seeds]
    return [floor_of(one.config) for grid in grids for one in list(grid)[30:]]


@pytest.mark.slow
@pytest.mark.parametrize("make", [HyperBandForBOHB, ASHAScheduler])
def test_what_it_suggests_later_is_better_than_what_random_search_does(make):
    # Of 20 other choices of seeds each, it was so in 20 with HyperBand, in 19 with ASHA.
    learnt, drawn = (late(search, make, range(4)) for search in (TuneBOHB, lambda: "random"))
    assert median(learnt) < median(drawn)
