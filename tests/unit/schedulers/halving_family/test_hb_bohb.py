"""What HyperBand for BOHB tells the searcher."""

from __future__ import annotations

import pytest
from halving_kit import Floor, result, trial

from dasktune.schedulers import HyperBandForBOHB, Pause, Stop


@pytest.fixture
def floor():
    floor = Floor(HyperBandForBOHB(metric="acc", mode="max", max_t=9))
    floor.add(*range(9))
    floor.start_all()
    return floor


def info(floor, number, t):
    return floor.scheduler.search_info(trial(number), result(t, 0.5))


def test_the_bracket_with_the_most_trials_comes_first():
    scheduler = HyperBandForBOHB(metric="acc", mode="max", max_t=81)
    for number in range(81 + 34 + 15 + 8 + 5 + 81):
        scheduler.on_trial_add(trial(number))
    sizes = [one["size"] for one in scheduler.state_dict()["cohorts"]]
    assert sizes == [81, 34, 15, 8, 5, 81]


def test_the_budget_goes_with_the_result_that_reached_the_rung(floor):
    assert info(floor, 0, 1) == {}
    assert isinstance(floor.report(0, 1, 0.5), Pause)
    assert info(floor, 0, 1) == {"hyperband_info/budget": 1}
    assert info(floor, 0, 2) == {}


def test_the_budget_is_known_of_the_one_that_came_last_too(floor):
    floor.report_all(1, {number: number / 10 for number in range(9)})
    assert 8 in floor.running
    assert info(floor, 8, 1) == {"hyperband_info/budget": 1}


def test_the_budget_is_known_of_one_that_stops_until_its_end_has_come(floor):
    for number in range(1, 9):
        floor.report(number, 1, number / 10)
    decision = floor.scheduler.on_trial_result(trial(0), result(1, 0.0))
    assert isinstance(decision, Stop)
    assert info(floor, 0, 1) == {"hyperband_info/budget": 1}
    floor.scheduler.on_trial_complete(trial(0), result(1, 0.0))
    assert info(floor, 0, 1) == {}


def test_one_that_jumps_has_reached_the_highest_rung_that_it_passed(floor):
    floor.report(0, 5, 0.5)
    assert info(floor, 0, 5) == {"hyperband_info/budget": 3}
    floor.scheduler.on_trial_result(trial(1), result(12, 0.5))
    assert info(floor, 1, 12) == {"hyperband_info/budget": 9}


def test_of_an_unknown_trial_it_says_nothing(floor):
    assert info(floor, 99, 1) == {}
