"""Asynchronous successive halving by several metrics: who is in front, and who is worst."""

from __future__ import annotations

import json
from math import inf, nan

import pytest
from halving_kit import ITERATION, trial
from numpy.random import SeedSequence, default_rng

from dasktune.errors import ConfigError
from dasktune.schedulers import Continue, MultiObjectiveASHAScheduler, Stop, Waiting


def asha(**changes):
    arguments = {
        "metrics": ["acc", "seconds"],
        "modes": ["max", "min"],
        "max_t": 9,
        "reduction_factor": 3,
    }
    scheduler = MultiObjectiveASHAScheduler(**(arguments | changes))
    scheduler.set_search_properties("loss", "min")
    scheduler.seed(SeedSequence(0))
    return scheduler


def report(scheduler, number, t, acc, seconds):
    result = {ITERATION: t, "acc": acc, "seconds": seconds}
    return scheduler.on_trial_result(trial(number), result)


def test_a_dominated_trial_stops_and_the_others_stay():
    scheduler = asha()
    assert report(scheduler, 0, 1, 0.5, 10) == Continue()
    assert report(scheduler, 1, 1, 0.4, 20) == Stop(
        "in front 2 of 2, number 2 of 2 at rung 1 of bracket 0, of which the best 1 continue"
    )
    assert report(scheduler, 2, 1, 0.9, 10) == Continue()
    assert scheduler.debug_string() == (
        "Using MultiObjectiveASHA: num_stopped=1\n"
        "Bracket: Iter 9.000: 0 of 0 in front | Iter 3.000: 0 of 0 in front | "
        "Iter 1.000: 1 of 3 in front"
    )


def test_of_a_front_that_does_not_fit_the_crowded_ones_stop():
    scheduler = asha(reduction_factor=2)
    line = [(0.0, 0.0), (1.0, 10.0), (0.5, 5.0), (0.6, 6.0)]
    decisions = [report(scheduler, number, 1, *point) for number, point in enumerate(line)]
    assert decisions[:2] == [Continue()] * 2
    assert isinstance(decisions[2], Stop)
    assert decisions[3] == Stop(
        "in front 1 of 1, number 4 of 4 at rung 1 of bracket 0, of which the best 2 continue"
    )


@pytest.mark.parametrize("value", [nan, inf, -inf, None, "much"])
def test_a_trial_without_all_scores_is_worse_than_those_that_have_them(value):
    scheduler = asha()
    assert report(scheduler, 0, 1, value, 1) == Continue()
    assert report(scheduler, 1, 1, 0.1, 99) == Continue()
    assert report(scheduler, 2, 1, value, 1) == Stop(
        f"acc {value}, seconds 1 at rung 1 of bracket 0, where others are finite"
    )
    assert scheduler.state_dict()["fronts"][0][0] == [[[0.1, -99.0]]]


def test_a_missing_metric_is_warned_of_once(caplog):
    scheduler = asha()
    for number in range(2):
        scheduler.on_trial_result(trial(number), {ITERATION: 1, "acc": 0.5})
    assert [record.getMessage() for record in caplog.records] == [
        "trial a_00000 reports no number 'seconds', which MultiObjectiveASHAScheduler needs; "
        "check its spelling"
    ]


def test_a_trial_that_jumps_over_rungs_is_recorded_at_each_and_judged_on_the_highest():
    scheduler = asha()
    report(scheduler, 0, 1, 0.9, 1)
    assert report(scheduler, 1, 4, 0.1, 9) == Continue()
    assert [len(rung) for rung in scheduler.state_dict()["fronts"][0]] == [2, 1, 0]
    scheduler.on_trial_complete(trial(0), {ITERATION: 5, "acc": 0.9, "seconds": 1})
    assert len(scheduler.state_dict()["fronts"][0][1]) == 2


def test_a_restored_scheduler_decides_like_the_original():
    whole, first = asha(brackets=2), asha(brackets=2)
    rng = default_rng(0)
    events = [(int(rng.integers(20)), int(rng.integers(1, 9)), *rng.random(2)) for _ in range(80)]
    for event in events[:40]:
        assert report(whole, *event) == report(first, *event)
    second = asha(brackets=2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for event in events[40:]:
        assert report(whole, *event) == report(second, *event)
    assert second.state_dict() == whole.state_dict()


def test_trials_run_in_the_order_in_which_they_come():
    pending, paused = {"a_00001": trial(1)}, {"a_00000": trial(0)}
    assert asha().choose_trial_to_run(Waiting(pending, paused)) is trial(1)
    assert asha().starts_in_order


def test_one_mode_is_for_all_metrics_and_the_experiments_metric_is_left_alone():
    scheduler = asha(modes="min")
    assert scheduler.modes == ("min", "min")
    assert scheduler.metric is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": "acc"}, "metrics must be a list of at least two different names, got 'acc'"),
        ({"metrics": None}, "metrics must be a list of at least two different names, got None"),
        ({"metrics": ["acc", ["loss"]]}, r"each of metrics must be .*, got \['loss'\]"),
        ({"modes": None}, "modes must be 'min' or 'max' for each metric, got None"),
        ({"metrics": ["acc"]}, "metrics must be a list of at least two different names"),
        ({"metrics": ["acc", "acc"]}, "metrics must be a list of at least two different names"),
        ({"metrics": ["acc", ""]}, "each of metrics must be the name of a metric, got ''"),
        ({"modes": ["max"]}, "modes must be one mode, or one for each metric"),
        ({"modes": ["max", None]}, "modes must be 'min' or 'max' for each metric"),
        ({"modes": "best"}, "mode must be 'min', 'max' or None, got 'best'"),
        ({"max_t": 0}, "grace_period must be in"),
    ],
)
def test_an_argument_that_breaks_its_rule_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        asha(**changes)
