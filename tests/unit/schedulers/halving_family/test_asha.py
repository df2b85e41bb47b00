"""Asynchronous successive halving: who stops where, and who never does."""

from __future__ import annotations

import json
import logging
from collections import Counter
from math import inf, nan

import numpy as np
import pytest
from halving_kit import ITERATION, result, trial
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    Continue,
    Stop,
    Waiting,
)
from dasktune.trial.milestone import Milestone


def asha(**changes):
    arguments = {"metric": "acc", "mode": "max", "max_t": 16, "reduction_factor": 2} | changes
    scheduler = ASHAScheduler(**arguments)
    scheduler.seed(SeedSequence(0))
    return scheduler


def report(scheduler, number, t, score):
    return scheduler.on_trial_result(trial(number), result(t, score))


def stops(scheduler, number, t, score):
    return isinstance(report(scheduler, number, t, score), Stop)


def rung(scheduler, i, bracket=0):
    return scheduler.state_dict()["scores"][bracket][i]


def test_it_has_two_names():
    assert ASHAScheduler is AsyncHyperBandScheduler


def test_the_first_at_a_rung_is_kept_and_the_worse_half_of_the_others_stops():
    scheduler = asha()
    assert report(scheduler, 0, 1, 0.5) == Continue()
    assert report(scheduler, 1, 1, 0.6) == Continue()
    assert report(scheduler, 2, 1, 0.54) == Stop("acc 0.54 below cutoff 0.55 at rung 1 of bracket 0")
    assert report(scheduler, 3, 1, 0.55) == Continue()


def test_a_loss_is_better_the_lower():
    scheduler = asha(metric="loss", mode="min")
    assert scheduler.on_trial_result(trial(0), result(1, 1.0, "loss")) == Continue()
    assert scheduler.on_trial_result(trial(2), result(1, 0.0, "loss")) == Continue()
    decision = scheduler.on_trial_result(trial(3), result(1, 0.75, "loss"))
    assert decision == Stop("loss 0.75 above cutoff 0.5 at rung 1 of bracket 0")


@settings(max_examples=30)
@given(st.lists(st.floats(-100, 100), max_size=30), st.floats(1.5, 8))
def test_a_loss_is_treated_as_a_score_upside_down(values, factor):
    up, down = (asha(mode=mode, reduction_factor=factor) for mode in ("max", "min"))
    for number, value in enumerate(values):
        assert stops(up, number, 1, value) == stops(down, number, 1, -value)
    assert up.state_dict()["scores"] == down.state_dict()["scores"]


@settings(max_examples=30)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(1.5, 8))
def test_a_trial_is_measured_by_those_before_it(values, factor):
    scheduler = asha(reduction_factor=factor)
    assert not stops(scheduler, 0, 1, values[0])
    for number, value in enumerate(values[1:], start=1):
        cutoff = np.nanpercentile(values[:number], (1 - 1 / factor) * 100)
        if abs(value - cutoff) > 1e-9:
            assert stops(scheduler, number, 1, value) == (value < cutoff)
        else:
            report(scheduler, number, 1, value)


@settings(max_examples=30)
@given(st.floats(-1e300, 1e300), st.integers(2, 40), st.floats(1.01, 50))
def test_ties_never_stop(value, n, factor):
    scheduler = asha(reduction_factor=factor)
    assert not any(stops(scheduler, number, 1, value) for number in range(n))


def test_between_rungs_nothing_happens():
    scheduler = asha(grace_period=4)
    report(scheduler, 0, 4, 0.9)
    before = scheduler.state_dict()
    assert report(scheduler, 0, 5, 0.0) == Continue()
    assert report(scheduler, 0, 7, nan) == Continue()
    assert report(scheduler, 1, 3, 0.0) == Continue()
    after = scheduler.state_dict()
    assert after["scores"] == before["scores"]
    assert after["trials"]["a_00000"] == before["trials"]["a_00000"]


def test_a_trial_that_jumps_over_rungs_is_recorded_at_each_and_judged_on_the_highest():
    scheduler = asha()
    for t in (1, 2, 4):
        report(scheduler, 0, t, 0.5)
    assert stops(scheduler, 1, 5, 0.3)
    assert [rung(scheduler, i) for i in range(4)] == [[0.3, 0.5], [0.3, 0.5], [0.3, 0.5], []]


def test_a_trial_that_jumped_is_never_judged_on_a_lower_rung_again():
    scheduler = asha()
    report(scheduler, 0, 4, 0.5)
    for number in range(1, 5):
        report(scheduler, number, 2, 0.9)
    assert report(scheduler, 0, 5, 0.4) == Continue()
    assert rung(scheduler, 1) == [0.5, 0.9, 0.9, 0.9, 0.9]


@pytest.mark.parametrize("value", [nan, None, inf, -inf, "0.9"])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_score_that_is_not_finite_is_the_worst_and_poisons_nothing(value, mode):
    scheduler = asha(mode=mode)
    assert report(scheduler, 0, 1, value) == Continue()
    assert report(scheduler, 1, 1, value) == Continue()
    assert rung(scheduler, 0) == []
    assert report(scheduler, 2, 1, 0.5) == Continue()
    decision = report(scheduler, 3, 1, value)
    assert isinstance(decision, Stop)
    assert decision.reason.endswith("at rung 1 of bracket 0, where others are finite")
    assert report(scheduler, 4, 1, 0.5) == Continue()
    assert len(rung(scheduler, 0)) == 2
    assert stops(scheduler, 0, 2, value) is False  # no finite score has reached that rung
    report(scheduler, 4, 2, 0.5)
    assert stops(scheduler, 1, 2, value) is True


def test_a_missing_metric_is_the_worst_and_warned_of_once(caplog):
    scheduler = asha()
    with caplog.at_level(logging.WARNING):
        assert scheduler.on_trial_result(trial(0), {ITERATION: 1}) == Continue()
        scheduler.on_trial_result(trial(1), {ITERATION: 1})
    assert [record.getMessage() for record in caplog.records] == [
        "trial a_00000 reports no number 'acc', which AsyncHyperBandScheduler needs; check its spelling"
    ]
    report(scheduler, 2, 1, 0.1)
    decision = scheduler.on_trial_result(trial(3), {ITERATION: 1})
    assert decision == Stop("acc is None at rung 1 of bracket 0, where others are finite")


def test_a_nan_is_not_warned_of_as_missing(caplog):
    with caplog.at_level(logging.WARNING):
        report(asha(), 0, 1, nan)
    assert not caplog.records


@pytest.mark.parametrize("t", [None, nan, "one"])
def test_a_result_that_does_not_say_how_far_it_is_changes_nothing(t, caplog):
    scheduler = asha()
    with caplog.at_level(logging.WARNING):
        assert report(scheduler, 0, t, 0.5) == Continue()
        scheduler.on_trial_complete(trial(0), result(t, 0.5))
    assert "reports no number 'training_iteration'" in caplog.text
    assert len(caplog.records) == 1
    assert scheduler.state_dict()["scores"] == [[[], [], [], [], []]]


def test_nested_metrics_are_found():
    scheduler = asha(metric="eval/acc", time_attr="time/epochs")
    assert scheduler.on_trial_result(trial(0), {"time/epochs": 1, "eval/acc": 0.5}) == Continue()
    nested = {"time": {"epochs": 1}, "eval": {"acc": 0.25}}
    assert isinstance(scheduler.on_trial_result(trial(1), nested), Stop)


def test_trials_end_at_max_t_even_the_best():
    scheduler = asha(max_t=10)
    assert report(scheduler, 0, 9, 0.9) == Continue()
    assert report(scheduler, 0, 10, 0.9) == Stop("training_iteration 10 has reached max_t=10")
    assert stops(scheduler, 1, inf, 0.9)
    assert scheduler.debug_string().startswith("Using AsyncHyperBand: num_stopped=2\n")


def test_the_last_rung_is_recorded_though_trials_end_there():
    scheduler = asha(max_t=4)
    report(scheduler, 0, 4, 0.9)
    assert [rung(scheduler, i) for i in range(3)] == [[0.9]] * 3


def test_trials_may_continue_beyond_max_t():
    scheduler = asha(max_t=4, stop_last_trials=False)
    assert report(scheduler, 0, 4, 0.9) == Continue()
    assert stops(scheduler, 1, 4, 0.1)
    assert report(scheduler, 0, 1000, 0.0) == Continue()
    assert scheduler.next_milestones(trial(0)) == ()


def test_workers_wait_only_at_the_next_rung_and_at_the_end():
    scheduler = asha(max_t=10)
    scheduler.on_trial_add(trial(0))

    def milestones():
        found = scheduler.next_milestones(trial(0))
        assert all(milestone.time_attr == ITERATION for milestone in found)
        return [milestone.value for milestone in found]

    assert milestones() == [1, 10]
    report(scheduler, 0, 1, 0.5)
    assert milestones() == [2, 10]
    report(scheduler, 0, 5, 0.5)
    assert milestones() == [8, 10]
    report(scheduler, 0, 8, 0.5)
    assert milestones() == [10]
    assert asha(max_t=4, grace_period=4).next_milestones(trial(0)) == (Milestone(ITERATION, 4),)


@settings(max_examples=20)
@given(st.permutations([(number, t) for number in range(3) for t in (3, 5, 6, 7)]))
def test_results_between_milestones_commute(order):
    scheduler = asha(grace_period=2, reduction_factor=4, max_t=100)
    for number in range(3):
        scheduler.on_trial_add(trial(number))
        report(scheduler, number, 2, 0.5)
    before = scheduler.state_dict()
    for number, t in order:
        assert report(scheduler, number, t, number + t) == Continue()
    assert scheduler.state_dict() == before


def test_a_trial_that_ends_by_itself_is_recorded_at_its_last():
    scheduler = asha()
    report(scheduler, 0, 1, 0.5)
    for _ in range(2):
        assert scheduler.on_trial_complete(trial(0), result(5, 0.7)) == ()
    assert [rung(scheduler, i) for i in range(4)] == [[0.5], [0.7], [0.7], []]


def test_an_end_without_a_result_is_harmless_however_often_it_comes():
    scheduler = asha()
    report(scheduler, 0, 1, 0.5)
    before = scheduler.state_dict()
    for _ in range(2):
        assert scheduler.on_trial_complete(trial(0), {}) == ()
        assert scheduler.on_trial_remove(trial(0)) == ()
        assert scheduler.on_trial_error(trial(0)) == ()
    assert scheduler.state_dict() == before


def test_a_trial_keeps_its_bracket_for_life():
    scheduler = asha(brackets=3)
    for number in range(50):
        scheduler.on_trial_add(trial(number))
    before = scheduler.state_dict()
    for number in range(50):
        scheduler.on_trial_add(trial(number))
    assert scheduler.state_dict() == before


def brackets_of(scheduler, n):
    for number in range(n):
        scheduler.on_trial_add(trial(number))
    return [bracket for bracket, _ in scheduler.state_dict()["trials"].values()]


def test_brackets_are_drawn_from_the_seed():
    one, same, other = asha(brackets=3), asha(brackets=3), asha(brackets=3)
    other.seed(SeedSequence(1))
    drawn = brackets_of(one, 100)
    assert brackets_of(same, 100) == drawn
    assert brackets_of(other, 100) != drawn


def test_brackets_with_more_rungs_are_drawn_more_often_each_by_a_factor_of_e():
    # The seed is fixed. Over seeds, one share in twenty would be off by more than 0.03.
    share = {bracket: count / 1000 for bracket, count in Counter(brackets_of(asha(brackets=2), 1000)).items()}
    assert share[0] == pytest.approx(np.e / (1 + np.e), abs=0.03)


def test_each_bracket_starts_a_rung_later_and_the_last_may_have_none():
    scheduler = asha(max_t=4, brackets=4)
    assert scheduler.state_dict()["rungs"] == [[1, 2, 4], [2, 4], [4], []]
    brackets = brackets_of(scheduler, 200)
    free = brackets.index(3)
    assert report(scheduler, free, 3, nan) == Continue()
    assert scheduler.next_milestones(trial(free)) == (Milestone(ITERATION, 4),)
    assert stops(scheduler, free, 4, 1.0)


def test_its_line_shows_the_cutoffs():
    scheduler = asha(max_t=4, brackets=2, metric="loss", mode="min")
    scheduler.on_trial_result(trial(0), result(1, 0.5, "loss"))
    assert scheduler.debug_string() == (
        "Using AsyncHyperBand: num_stopped=0\n"
        "Bracket: Iter 4.000: None | Iter 2.000: None | Iter 1.000: -0.5\n"
        "Bracket: Iter 4.000: None | Iter 2.000: None"
    )


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 20), st.floats(0, 1) | st.just(nan)),
        max_size=40,
    ),
    st.integers(0, 40),
)
def test_a_restored_scheduler_decides_like_the_original(events, cut):
    whole, first = asha(brackets=3), asha(brackets=3)
    for number, t, score in events[:cut]:
        assert report(whole, number, t, score) == report(first, number, t, score)
    second = asha(brackets=3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for number, t, score in events[cut:]:
        assert report(whole, number, t, score) == report(second, number, t, score)
    assert second.state_dict() == whole.state_dict()


def test_a_snapshot_does_not_change_afterwards():
    scheduler = asha()
    before = scheduler.state_dict()
    text = json.dumps(before)
    report(scheduler, 0, 1, 0.5)
    assert json.dumps(before) == text


@pytest.mark.parametrize("changes", [{"max_t": 32}, {"brackets": 2}, {"reduction_factor": 3}])
def test_the_state_of_other_rungs_is_refused(changes):
    with pytest.raises(ConfigError, match="the rungs of the brackets must be those of the saved"):
        asha(**changes).load_state_dict(asha().state_dict())


def test_pending_trials_go_before_paused_ones():
    pending, paused = {"a_00001": trial(1)}, {"a_00000": trial(0)}
    assert asha().choose_trial_to_run(Waiting(pending, paused)) is pending["a_00001"]
    assert asha().starts_in_order


def test_metric_and_mode_come_from_the_experiment():
    scheduler = ASHAScheduler()
    scheduler.set_search_properties("acc", "max")
    assert (scheduler.metric, scheduler.mode) == ("acc", "max")
    assert report(scheduler, 0, 1, 0.5) == Continue()


@pytest.mark.parametrize(("metric", "mode"), [(None, None), ("acc", None), (None, "max")])
def test_it_cannot_judge_without_a_metric_and_a_mode(metric, mode):
    with pytest.raises(ConfigError, match="metric and mode must be set, got metric="):
        ASHAScheduler().set_search_properties(metric, mode)
    with pytest.raises(ConfigError, match="Set them in TuneConfig or in AsyncHyperBandScheduler"):
        report(ASHAScheduler(metric=metric, mode=mode), 0, 1, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_t": 0}, r"grace_period must be in \(0, max_t=0\], got 1"),
        ({"max_t": 3, "grace_period": 4}, r"grace_period must be in \(0, max_t=3\], got 4"),
        ({"grace_period": 0}, "grace_period must be in .* got 0"),
        ({"grace_period": "1"}, "grace_period must be a finite number, got '1'"),
        ({"max_t": True}, "max_t must be a finite number, got True"),
        ({"stop_last_trials": 1}, "stop_last_trials must be True or False, got 1"),
        ({"max_t": inf}, "max_t must be a finite number, got inf"),
        ({"max_t": nan}, "max_t must be a finite number, got nan"),
        ({"reduction_factor": 1}, "reduction_factor must be more than 1, got 1"),
        ({"reduction_factor": None}, "reduction_factor must be a finite number, got None"),
        ({"brackets": 0}, "brackets must be an int, at least 1, got 0"),
        ({"brackets": 1.5}, "brackets must be an int, at least 1, got 1.5"),
        ({"mode": "maximum"}, "mode must be 'min', 'max' or None, got 'maximum'"),
        ({"metric": ""}, "metric must be the name of a metric, got ''"),
        ({"metric": 3}, "metric must be the name of a metric, got 3"),
        ({"time_attr": None}, "time_attr must be the name of a metric, got None"),
    ],
)
def test_an_argument_that_breaks_its_rule_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        asha(**changes)


def test_whole_and_fractional_arguments_are_allowed():
    assert asha(max_t=np.float64(16), reduction_factor=np.int64(2)).state_dict()["rungs"] == [
        [1, 2, 4, 8, 16]
    ]
    scheduler = asha(max_t=1.5, grace_period=0.25, reduction_factor=2.5, time_attr="epochs")
    assert scheduler.max_t == 1.5
    assert scheduler.state_dict()["rungs"] == [[0.25, 0.625]]
