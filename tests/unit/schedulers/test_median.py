"""The median stopping rule: which trials it stops, which ones make room, and what never counts."""

from __future__ import annotations

import json
import logging
from math import inf, isfinite, nan
from statistics import mean, median

import pytest
from halving_kit import ITERATION, trial
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.schedulers import Continue, MedianStoppingRule, Pause, Stop, Waiting
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial


def rule(**changes):
    arguments = {
        "metric": "acc",
        "mode": "max",
        "time_attr": ITERATION,
        "grace_period": 0,
        "min_samples_required": 1,
    }
    return MedianStoppingRule(**(arguments | changes))


def report(scheduler, number, t, score, metric="acc"):
    return scheduler.on_trial_result(trial(number), {ITERATION: t, metric: score})


def stops(scheduler, number, t, score):
    return isinstance(report(scheduler, number, t, score), Stop)


def test_a_trial_stops_if_its_best_is_worse_than_the_median_of_the_others_means():
    scheduler = rule()
    for number, score in enumerate([0.2, 0.6, 0.7]):
        report(scheduler, number, 1, score)
        report(scheduler, number, 2, score + 0.2)
    assert report(scheduler, 3, 1, 0.5) == Stop(
        "acc 0.5 at best, below the median 0.6 of the means of 3 other trials at training_iteration 1"
    )
    assert report(scheduler, 4, 2, 0.65) == Stop(
        "acc 0.65 at best, below the median 0.7 of the means of 3 other trials at training_iteration 2"
    )
    assert report(scheduler, 5, 1, 0.65) == Continue()
    assert scheduler.debug_string() == "Using MedianStoppingRule: num_stopped=2"


def test_a_loss_is_better_the_lower():
    scheduler = rule(metric="loss", mode="min")
    for number in range(3):
        report(scheduler, number, 1, 1.0, "loss")
    assert report(scheduler, 3, 1, 2.0, "loss") == Stop(
        "loss 2 at best, above the median 1 of the means of 3 other trials at training_iteration 1"
    )
    assert report(scheduler, 4, 1, 1.0, "loss") == Continue()


def test_the_best_result_counts_not_the_last():
    scheduler = rule()
    report(scheduler, 0, 1, 0.5)
    report(scheduler, 0, 2, 0.5)
    report(scheduler, 1, 1, 0.6)
    assert report(scheduler, 1, 2, 0.0) == Continue()


def test_none_is_judged_in_the_grace_period_and_its_scores_make_no_mean():
    scheduler = rule(grace_period=3)
    for t, score in [(1, 0.9), (2, 0.9), (3, 0.1)]:
        assert report(scheduler, 0, t, score) == Continue()
    assert report(scheduler, 1, 2, 0.0) == Continue()
    assert report(scheduler, 1, 3, 0.2) == Continue()
    assert stops(scheduler, 2, 3, 0.05)
    assert scheduler.next_milestones(trial(9)) == (Milestone(ITERATION, 3),)


def test_its_best_may_be_from_the_grace_period():
    scheduler = rule(grace_period=2)
    report(scheduler, 0, 2, 0.5)
    report(scheduler, 1, 1, 0.8)
    assert report(scheduler, 1, 2, 0.1) == Continue()


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(-9, 9) | st.sampled_from([nan, inf, -inf])),
        max_size=60,
    ),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_it_does_what_its_definition_says(results, samples, grace):
    """All report at the same times, so that the moments are all of these."""
    scheduler = rule(min_samples_required=samples, grace_period=grace)
    told = {number: [] for number in range(6)}
    for number, score in results:
        told[number].append(score)
        t = len(told[number])
        means = []
        for other, scores in told.items():
            finite = [one for one in scores[max(grace, 1) - 1 : t] if isfinite(one)]
            if other != number and len(scores) >= t and finite:
                means.append(mean(finite))
        best = max(filter(isfinite, told[number]), default=-inf)
        decision = report(scheduler, number, t, score)
        if t < grace or len(means) < samples:
            assert decision == Continue()
        elif abs(median(means) - best) > 1e-9:
            assert isinstance(decision, Stop) == (median(means) > best)


@settings(max_examples=30)
@given(st.floats(-1e300, 1e300), st.integers(2, 9), st.integers(1, 5))
def test_ties_never_stop(value, n, steps):
    scheduler = rule()
    assert not any(stops(scheduler, number, t, value) for t in range(1, steps + 1) for number in range(n))


def test_trials_that_report_at_other_times_are_compared_at_the_last_moment_before():
    scheduler = rule()
    report(scheduler, 0, 1, 0.5)
    report(scheduler, 0, 3, 0.9)
    assert report(scheduler, 1, 2.5, 0.55) == Continue()  # others had 0.5 at 1
    assert stops(scheduler, 2, 3, 0.52)  # means at 3: 0.7
    # At 3 trial 1 had not come so far; at 4 it has a mean for 3, of what it had until then.
    report(scheduler, 1, 4, 0.95)
    assert scheduler.state_dict()["moments"] == [1, 3, 4]
    assert scheduler.state_dict()["means"] == [[0.5], [0.52, 0.55, 0.7], [0.75]]


def test_a_trial_whose_time_stands_still_has_one_mean_for_it():
    scheduler = rule()
    report(scheduler, 0, 1, 0.5)
    report(scheduler, 0, 1, 0.7)
    report(scheduler, 0, 0, nan)  # nor does it run backwards
    assert scheduler.state_dict()["means"] == [[pytest.approx(0.6)]]
    report(scheduler, 1, 1, nan)
    report(scheduler, 1, 1, 0.9)
    assert scheduler.state_dict()["means"] == [[pytest.approx(0.6), 0.9]]


@pytest.mark.parametrize("value", [nan, inf, -inf, None, "good"])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_score_that_is_not_finite_counts_nowhere_and_is_the_worst(value, mode):
    scheduler = rule(mode=mode)
    assert report(scheduler, 0, 1, value) == Continue()
    assert report(scheduler, 1, 1, 0.0) == Continue()
    assert scheduler.state_dict()["means"] == [[0.0]]
    decision = report(scheduler, 2, 1, value)
    assert isinstance(decision, Stop)
    assert decision.reason.startswith("acc is never finite, ")
    report(scheduler, 1, 2, value)
    assert scheduler.state_dict()["means"] == [[0.0], [0.0]]
    json.dumps(scheduler.state_dict(), allow_nan=False)


@pytest.mark.parametrize("t", [None, nan, inf, "late"])
def test_a_result_that_does_not_say_how_far_it_is_changes_nothing(t, caplog):
    scheduler = rule()
    before = scheduler.state_dict()["means"]
    with caplog.at_level(logging.WARNING):
        assert report(scheduler, 0, t, 0.5) == Continue()
        scheduler.on_trial_complete(trial(0), {ITERATION: t, "acc": 0.5})
    assert scheduler.state_dict()["means"] == before
    assert len(caplog.records) == (t is not inf)


def test_the_last_result_of_a_trial_does_not_count_twice():
    scheduler = rule()
    report(scheduler, 0, 1, 0.2)
    report(scheduler, 0, 2, 0.8)
    before = scheduler.state_dict()
    scheduler.on_trial_complete(trial(0), {ITERATION: 2, "acc": 0.8})
    scheduler.on_trial_complete(trial(0), {})
    assert scheduler.state_dict() == before


def test_a_last_result_that_a_stop_criterion_has_kept_from_it_counts_once():
    scheduler = rule()
    report(scheduler, 0, 1, 0.2)
    for _ in range(2):
        scheduler.on_trial_complete(trial(0), {ITERATION: 2, "acc": 0.8})
    assert scheduler.state_dict()["means"] == [[0.2], [0.5]]


def test_a_last_result_without_the_metric_harms_none():
    scheduler = rule()
    report(scheduler, 0, 1, 0.2)
    scheduler.on_trial_complete(trial(0), {ITERATION: 2})
    assert report(scheduler, 1, 2, 0.3) == Continue()
    assert stops(scheduler, 2, 2, 0.1)


def added(n, **changes):
    scheduler = rule(**changes)
    for number in range(n):
        scheduler.on_trial_add(trial(number))
    return scheduler


def test_where_too_few_have_come_as_far_a_trial_makes_room_for_those_that_wait():
    scheduler = added(3, min_samples_required=2)
    scheduler.on_trial_start(trial(0))
    assert report(scheduler, 0, 1, 0.5) == Pause(
        "makes room: 0 of 2 other trials have reached training_iteration 1"
    )
    scheduler.on_trial_start(trial(1))
    assert isinstance(report(scheduler, 1, 1, 0.5), Pause)
    scheduler.on_trial_start(trial(2))
    assert report(scheduler, 2, 1, 0.5) == Continue()


def test_it_makes_no_room_if_there_are_too_few_to_be_compared_with_anyway():
    scheduler = added(3, min_samples_required=3)
    scheduler.on_trial_start(trial(0))
    assert report(scheduler, 0, 1, 0.5) == Continue()


@pytest.mark.parametrize("way", ["complete", "error", "remove", "start"])
def test_it_makes_no_room_unless_a_trial_waits(way):
    scheduler = added(2)
    scheduler.on_trial_start(trial(0))
    arguments = [trial(1), *([{}] if way == "complete" else [])]
    getattr(scheduler, f"on_trial_{way}")(*arguments)
    assert report(scheduler, 0, 1, 0.5) == Continue()


def test_between_two_times_that_it_makes_room_it_trains_for_a_while():
    scheduler = added(2, min_time_slice=2)
    scheduler.on_trial_start(trial(0))
    assert isinstance(report(scheduler, 0, 1, 0.5), Pause)
    for t in (2, 3):
        scheduler.on_trial_start(trial(0))
        assert report(scheduler, 0, t, 0.5) == Continue()
    assert isinstance(report(scheduler, 0, 4, 0.5), Pause)


def test_a_soft_stop_is_a_pause_and_a_resumed_trial_is_judged_no_more():
    scheduler = rule(hard_stop=False)
    report(scheduler, 0, 1, 0.5)
    report(scheduler, 0, 2, 0.5)
    decision = report(scheduler, 1, 1, 0.1)
    assert isinstance(decision, Pause)
    assert decision.reason.startswith("acc 0.1 at best, below the median 0.5")
    assert scheduler.next_milestones(trial(1)) == ()
    before = scheduler.state_dict()["means"]
    assert report(scheduler, 1, 2, 0.0) == Continue()
    scheduler.on_trial_complete(trial(1), {ITERATION: 3, "acc": 0.0})
    assert scheduler.state_dict()["means"] == before
    assert scheduler.next_milestones(trial(0)) != ()


def test_a_trial_that_restarts_is_judged_as_a_new_one():
    scheduler = rule()
    report(scheduler, 0, 1, 0.9)
    scheduler.on_trial_add(trial(0))
    report(scheduler, 1, 1, 0.5)
    assert stops(scheduler, 0, 1, 0.1)


def test_a_trial_that_resumes_after_its_end_keeps_what_it_had():
    scheduler = rule()
    old = Trial(trial_id="a_old", config={}, resources=trial(0).resources)
    old.history.append({ITERATION: 1, "acc": 0.9})
    scheduler.on_trial_result(old, old.last_result)
    scheduler.on_trial_add(old)
    report(scheduler, 1, 1, 0.5)
    report(scheduler, 1, 2, 0.5)
    assert scheduler.on_trial_result(old, {ITERATION: 2, "acc": 0.1}) == Continue()


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 9), st.floats(0, 1) | st.just(nan)),
        max_size=40,
    ),
    st.integers(0, 40),
)
def test_a_restored_rule_decides_like_the_original(events, cut):
    whole, first = (added(6, min_samples_required=2, min_time_slice=1) for _ in range(2))
    for number, t, score in events[:cut]:
        assert report(whole, number, t, score) == report(first, number, t, score)
    second = rule(min_samples_required=2, min_time_slice=1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for number, t, score in events[cut:]:
        assert report(whole, number, t, score) == report(second, number, t, score)
    assert second.state_dict() == whole.state_dict()


def test_the_state_of_another_grace_period_is_refused():
    with pytest.raises(ConfigError, match="grace_period must be 0 as in the saved experiment"):
        rule(grace_period=2).load_state_dict(rule().state_dict())


# Milestones


def at_rungs(**changes):
    return rule(**{"check_at": [3, 9, 27], **changes})


def reported(scheduler, number, scores):
    """Report the scores from epoch 1 on, and return the epochs at which a decision was to stop."""
    return [t for t, score in enumerate(scores, 1) if stops(scheduler, number, t, score)]


def test_with_milestones_a_trial_is_compared_at_these_only():
    scheduler = at_rungs()
    for number in range(3):
        assert reported(scheduler, number, [0.5] * 30) == []
    assert reported(scheduler, 3, [0.4] * 2 + [0.6] * 25) == []
    assert reported(scheduler, 4, [0.4] * 8) == [3]
    assert reported(scheduler, 5, [0.4] * 2 + [0.55] * 6 + [0.5]) == []
    assert scheduler.state_dict()["moments"] == [3, 9, 27]


def test_the_milestones_of_a_reduction_factor_have_no_end():
    scheduler = rule(grace_period=2, reduction_factor=3, min_samples_required=1)
    reported(scheduler, 0, [0.5] * 20)
    assert scheduler.state_dict()["moments"] == [2, 6, 18]
    assert reported(scheduler, 1, [0.6] * 17 + [0.6]) == []
    assert isinstance(report(scheduler, 2, 18, 0.1), Stop)
    # As long as a float can say.
    assert report(scheduler, 0, 1e308, 0.5) == Continue()
    assert scheduler.state_dict()["moments"][-1] <= 1e308


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(-9, 9) | st.sampled_from([nan, inf, -inf])),
        max_size=80,
    ),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_with_milestones_it_does_what_its_definition_says(results, samples, start):
    milestones = (2, 5)
    scheduler = rule(check_at=milestones, mean_start=start, min_samples_required=samples)
    told = {number: [] for number in range(6)}
    for number, score in results:
        told[number].append(score)
        t = len(told[number])
        decision = report(scheduler, number, t, score)
        if t not in milestones:
            assert decision == Continue()
            continue
        means = []
        for other, scores in told.items():
            finite = [one for one in scores[max(start, 1) - 1 : t] if isfinite(one)]
            if other != number and len(scores) >= t and finite:
                means.append(mean(finite))
        best = max(filter(isfinite, told[number]), default=-inf)
        if len(means) < samples:
            assert decision == Continue()
        elif abs(median(means) - best) > 1e-9:
            assert isinstance(decision, Stop) == (median(means) > best)


def test_a_mean_may_start_before_the_first_comparison():
    late, early = rule(grace_period=3), rule(grace_period=3, mean_start=2)
    for scheduler in (late, early):
        for t, score in [(1, 0.9), (2, 0.6), (3, 0.2)]:
            assert report(scheduler, 0, t, score) == Continue()
    assert report(late, 1, 3, 0.3) == Continue()  # 0.2
    assert stops(early, 1, 3, 0.3)  # 0.4
    assert early.state_dict()["means"] == [[0.3, pytest.approx(0.4)]]


def test_early_scores_of_a_trial_that_trains_again_from_the_start_do_not_count_either():
    scheduler = at_rungs(mean_start=2)
    for t, score in [(1, 0.1), (2, 0.5), (3, 0.5), (1, 0.1), (2, 0.5), (3, 0.5), (9, 0.5)]:
        assert report(scheduler, 0, t, score) == Continue()
    assert scheduler.state_dict()["means"] == [[0.5], [0.5]]


def test_a_result_that_passes_several_milestones_counts_at_each_and_is_compared_at_the_last():
    scheduler = at_rungs()
    report(scheduler, 0, 10, 0.5)
    assert scheduler.state_dict()["means"] == [[0.5], [0.5]]
    decision = report(scheduler, 1, 11, 0.4)
    assert decision.reason.endswith("1 other trials at training_iteration 9")
    assert scheduler.state_dict()["means"] == [[0.4, 0.5], [0.4, 0.5]]
    # No trial has been compared at 27; what comes again changes nothing that is recorded.
    assert report(scheduler, 0, 10, 0.0) == Continue()
    assert report(scheduler, 0, 4, 0.0) == Continue()
    assert scheduler.state_dict()["means"] == [[0.4, 0.5], [0.4, 0.5]]


def test_a_trial_waits_at_its_next_milestone():
    scheduler = at_rungs(hard_stop=False)
    assert scheduler.next_milestones(trial(0)) == (Milestone(ITERATION, 3),)
    reported(scheduler, 0, [0.5] * 4)
    assert scheduler.next_milestones(trial(0)) == (Milestone(ITERATION, 9),)
    report(scheduler, 0, 27, 0.5)
    assert scheduler.next_milestones(trial(0)) == ()
    assert isinstance(report(scheduler, 1, 3, 0.1), Pause)
    assert scheduler.next_milestones(trial(1)) == ()
    growing = rule(grace_period=2, reduction_factor=3)
    assert growing.next_milestones(trial(0)) == (Milestone(ITERATION, 2),)
    report(growing, 0, 7, 0.5)
    assert growing.next_milestones(trial(0)) == (Milestone(ITERATION, 18),)
    assert growing.next_milestones(trial(1)) == (Milestone(ITERATION, 2),)


def test_with_milestones_a_trial_makes_room_there_only():
    scheduler = added(3, check_at=[2], min_samples_required=2)
    scheduler.on_trial_start(trial(0))
    assert report(scheduler, 0, 1, 0.5) == Continue()
    assert isinstance(report(scheduler, 0, 2, 0.5), Pause)
    scheduler.on_trial_start(trial(0))
    assert report(scheduler, 0, 3, 0.5) == Continue()


def test_the_last_result_may_reach_a_milestone():
    scheduler = at_rungs()
    scheduler.on_trial_complete(trial(0), {ITERATION: 3, "acc": 0.5})
    assert stops(scheduler, 1, 3, 0.4)


def test_without_a_finite_score_it_is_the_worst_at_a_milestone():
    scheduler = at_rungs()
    assert reported(scheduler, 0, [nan] * 3) == []
    assert reported(scheduler, 1, [0.5] * 3) == []
    assert reported(scheduler, 2, [nan] * 3) == [3]
    assert scheduler.state_dict()["means"] == [[0.5]]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 30), st.floats(0, 1) | st.just(nan)),
        max_size=40,
    ),
    st.integers(0, 40),
    st.sampled_from([{"check_at": [2, 5]}, {"grace_period": 1, "reduction_factor": 2.5}]),
)
def test_a_restored_rule_with_milestones_decides_like_the_original(events, cut, how):
    arguments = {**how, "mean_start": 1, "min_samples_required": 2}
    whole, first = (added(6, **arguments) for _ in range(2))
    for number, t, score in events[:cut]:
        assert report(whole, number, t, score) == report(first, number, t, score)
    second = rule(**arguments)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for number, t, score in events[cut:]:
        assert report(whole, number, t, score) == report(second, number, t, score)
    assert second.state_dict() == whole.state_dict()


@pytest.mark.parametrize(
    ("saved", "own", "message"),
    [
        ({"check_at": [3, 9]}, {"check_at": [3, 27]}, r"check_at must be \[3, 9\] as in"),
        ({"check_at": [3]}, {"grace_period": 3}, r"check_at must be \[3\] as in"),
        (
            {"grace_period": 3, "reduction_factor": 3},
            {"grace_period": 3, "reduction_factor": 4},
            "reduction_factor must be 3 as in the saved experiment, got 4",
        ),
        ({"grace_period": 3}, {"grace_period": 3, "mean_start": 1}, "mean_start must be 3 as in"),
    ],
)
def test_the_state_of_other_milestones_is_refused(saved, own, message):
    with pytest.raises(ConfigError, match=message):
        rule(**own).load_state_dict(json.loads(json.dumps(rule(**saved).state_dict())))


def test_a_start_of_the_means_that_is_the_default_is_the_same():
    rule(grace_period=3, mean_start=3).load_state_dict(rule(grace_period=3).state_dict())


def test_new_trials_go_before_paused_ones():
    pending, paused = {"a_00001": trial(1)}, {"a_00000": trial(0)}
    assert rule().choose_trial_to_run(Waiting(pending, paused)) is trial(1)
    assert rule().choose_trial_to_run(Waiting({}, paused)) is trial(0)


def test_who_has_made_room_resumes_before_those_that_were_paused_for_being_bad():
    scheduler = added(4, hard_stop=False)
    for number, (t, score) in enumerate([(1, 0.9), (1, 0.1), (2, 0.5)]):
        scheduler.on_trial_start(trial(number))
        assert isinstance(report(scheduler, number, t, score), Pause)
    everyone = {trial(number).trial_id: trial(number) for number in (1, 2, 0)}
    for expected in (0, 2, 1):
        assert scheduler.choose_trial_to_run(Waiting({}, everyone)) is trial(expected)
        scheduler.on_trial_start(everyone.pop(trial(expected).trial_id))


def test_its_defaults_are_those_of_the_contract():
    scheduler = MedianStoppingRule()
    assert (scheduler.time_attr, scheduler.grace_period) == ("time_total_s", 60)
    assert (scheduler.min_samples_required, scheduler.min_time_slice) == (3, 0)
    assert scheduler.hard_stop
    with pytest.raises(ConfigError, match="metric and mode must be set"):
        scheduler.set_search_properties("acc", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grace_period": -1}, "grace_period must be at least 0, got -1"),
        ({"grace_period": nan}, "grace_period must be a finite number, got nan"),
        ({"min_samples_required": 0}, "min_samples_required must be an int, at least 1, got 0"),
        ({"min_samples_required": 1.5}, "min_samples_required must be an int, at least 1, got"),
        ({"min_time_slice": -1}, "min_time_slice must be at least 0, got -1"),
        ({"hard_stop": "no"}, "hard_stop must be True or False, got 'no'"),
        ({"mode": "best"}, "mode must be 'min', 'max' or None, got 'best'"),
        ({"metric": ""}, "metric must be the name of a metric, got ''"),
        ({"time_attr": 3}, "time_attr must be the name of a metric, got 3"),
        ({"check_at": 3}, "check_at must be a list of at least one number, got 3"),
        ({"check_at": []}, r"check_at must be a list of at least one number, got \[\]"),
        ({"check_at": [3, "9"]}, "each value of check_at must be a finite number, got '9'"),
        ({"check_at": [3, 3]}, r"check_at must be ascending, from at least 0, got \[3, 3\]"),
        ({"check_at": [-1, 3]}, r"check_at must be ascending, from at least 0, got \[-1, 3\]"),
        ({"check_at": [3], "reduction_factor": 3}, "reduction_factor must be None with check_at, got 3"),
        ({"grace_period": 1, "reduction_factor": 1}, "reduction_factor must be at least 1.1, got 1"),
        ({"grace_period": 1, "reduction_factor": nan}, "reduction_factor must be a finite number"),
        ({"reduction_factor": 3}, "grace_period must be more than 0 with reduction_factor, got 0"),
        ({"grace_period": 5e-324, "reduction_factor": 1.2}, "grace_period must be more than 0"),
        ({"grace_period": 3, "mean_start": 4}, "mean_start must be from 0 to the first comparison, at 3"),
        ({"mean_start": -1}, "mean_start must be from 0 to the first comparison, at 0, got -1"),
        ({"check_at": [3], "mean_start": 3.5}, "mean_start must be from 0 to the first comparison"),
    ],
)
def test_an_argument_that_breaks_its_rule_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        rule(**changes)
