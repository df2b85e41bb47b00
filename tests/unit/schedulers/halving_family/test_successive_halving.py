"""Successive halving of one cohort."""

from __future__ import annotations

from math import inf

import pytest
from halving_kit import ITERATION, Floor, run_to_the_end, trial
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.schedulers import SuccessiveHalvingScheduler
from dasktune.trial.milestone import Milestone


def halving(**changes):
    arguments = {"metric": "acc", "mode": "max", "max_t": 9, "reduction_factor": 3} | changes
    return SuccessiveHalvingScheduler(**arguments)


@pytest.mark.parametrize(
    ("n", "first", "max_t", "factor", "counts", "budgets"),
    [
        # Jamieson and Talwalkar's halving, and the ASHA paper's figure 1: n=9, r=1, R=9, eta=3.
        (9, 1, 9, 3, [9, 3, 1], [1, 3, 9]),
        (256, 1, 256, 4, [256, 64, 16, 4, 1], [1, 4, 16, 64, 256]),
        (81, 1, 81, 3, [81, 27, 9, 3, 1], [1, 3, 9, 27, 81]),
        (34, 3, 81, 3, [34, 11, 3, 1], [3, 9, 27, 81]),
        (100, 1, 64, 2, [100, 50, 25, 12, 6, 3, 1], [1, 2, 4, 8, 16, 32, 64]),
        (20, 5, 100, 4, [20, 5, 1], [6.25, 25, 100]),
        (10, 1, 10, 2.5, [10, 4, 1], [1.6, 4, 10]),
        (2, 1, 27, 3, [2, 1, 1, 1], [1, 3, 9, 27]),
        (5, 9, 9, 3, [5], [9]),
    ],
)
def test_so_many_reach_each_rung(n, first, max_t, factor, counts, budgets):
    scheduler = halving(max_t=max_t, reduction_factor=factor, grace_period=first)
    rungs = run_to_the_end(scheduler, [float(-number) for number in range(n)])
    assert [len(rung) for rung in rungs] == counts
    assert [set(rung.values()) for rung in rungs] == [{budget} for budget in budgets]
    # The best ones, each time.
    assert [sorted(rung) for rung in rungs] == [list(range(count)) for count in counts]


@settings(max_examples=30)
@given(
    n=st.integers(1, 60),
    max_t=st.integers(1, 300) | st.floats(1, 300),
    factor=st.integers(2, 9) | st.floats(1.3, 9),
)
def test_whatever_the_powers_one_reaches_the_end(n, max_t, factor):
    scheduler = halving(max_t=max_t, reduction_factor=factor)
    rungs = run_to_the_end(scheduler, [float(number) for number in range(n)])
    assert set(rungs[-1].values()) == {max_t}
    assert n - 1 in rungs[-1]


def test_all_trials_are_one_cohort():
    floor = Floor(halving())
    floor.add(*range(100))
    floor.start_all()
    floor.report_all(1, {number: float(number) for number in range(100)})
    assert len(floor.paused) == 100
    assert floor.scheduler.debug_string() == (
        "Using SuccessiveHalving: num_stopped=0\n"
        "Cohort 0 (100 of any trials): 100 wait at rung 1, 0 train towards it"
    )
    floor.no_more()
    assert floor.pending == set(range(67, 100))


def test_a_cohort_of_a_given_size_is_halved_as_soon_as_it_is_full():
    floor = Floor(halving(n_trials=6))
    floor.add(*range(8))
    floor.start_all()
    floor.report_all(1, {number: float(number) for number in range(6)})
    assert floor.ended[0] == "not among the best 2 of 6 by acc at rung 1 of cohort 0"
    assert floor.pending | floor.running == {4, 5, 6, 7}
    assert floor.scheduler.next_milestones(trial(5)) == (Milestone(ITERATION, 3),)
    assert floor.scheduler.next_milestones(trial(6)) == (Milestone(ITERATION, 1),)


def test_a_cohort_may_have_another_size_in_a_resumed_experiment():
    before = halving(n_trials=6)
    floor = Floor(before)
    floor.add(*range(8))
    after = halving(n_trials=3)
    after.load_state_dict(before.state_dict())
    for number in range(8, 16):
        after.on_trial_add(trial(number))
    sizes = [(one["added"], one["size"]) for one in after.state_dict()["cohorts"]]
    assert sizes == [(6, 6), (6, 6), (3, 3), (1, 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grace_period": 10}, r"grace_period must be in \(0, max_t=9\], got 10"),
        ({"grace_period": 0}, r"grace_period must be in \(0, max_t=9\], got 0"),
        ({"grace_period": inf}, "grace_period must be a finite number, got inf"),
        ({"n_trials": 0}, "n_trials must be None or an int, at least 1, got 0"),
        ({"n_trials": 2.5}, "n_trials must be None or an int, at least 1, got 2.5"),
        ({"n_trials": True}, "n_trials must be None or an int, at least 1, got True"),
        ({"max_t": -1}, "max_t must be more than 0, got -1"),
    ],
)
def test_an_argument_that_breaks_its_rule_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        halving(**changes)


def test_the_state_of_other_rungs_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="with the max_t, reduction_factor and grace_period of"):
        halving(grace_period=3).load_state_dict(halving().state_dict())
