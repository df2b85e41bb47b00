"""Asynchronous successive halving that promotes: which trials wait, resume and end."""

from __future__ import annotations

import json
from math import inf, nan

import pytest
from halving_kit import ITERATION, trial
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    Continue,
    Pause,
    PromotingASHAScheduler,
    Stop,
    StopOther,
    Waiting,
)
from dasktune.trial.milestone import Milestone


def trials(*numbers):
    return {trial(number).trial_id: trial(number) for number in numbers}


def asha(**changes):
    arguments = {"metric": "acc", "mode": "max", "max_t": 9, "reduction_factor": 3} | changes
    scheduler = PromotingASHAScheduler(**arguments)
    scheduler.seed(SeedSequence(0))
    return scheduler


def report(scheduler, number, t, score):
    return scheduler.on_trial_result(trial(number), {ITERATION: t, "acc": score})


def paused(scheduler, number, t, score):
    return isinstance(report(scheduler, number, t, score), Pause)


def chosen(scheduler, *names, pending=()):
    return scheduler.choose_trial_to_run(Waiting(trials(*pending), trials(*names)))


def test_none_passes_a_rung_before_there_are_enough_to_be_better_than():
    scheduler = asha()
    assert report(scheduler, 0, 1, 0.5) == Pause(
        "waits for promotion: acc 0.5 is number 1 of 1 at rung 1 of bracket 0, "
        "of which the best 0 may continue"
    )
    assert paused(scheduler, 1, 1, 0.9)
    assert chosen(scheduler, 0, 1) is None
    assert paused(scheduler, 2, 1, 0.1)
    assert chosen(scheduler, 0, 1, 2) is trial(1)


def test_who_is_good_enough_at_once_runs_on_without_a_pause():
    scheduler = asha()
    assert paused(scheduler, 0, 1, 0.5)
    assert paused(scheduler, 1, 1, 0.4)
    assert report(scheduler, 2, 1, 0.9) == Continue()
    assert chosen(scheduler, 0, 1) is None


def test_a_loss_is_better_the_lower():
    scheduler = asha(metric="loss", mode="min")
    for number, loss in enumerate([3.0, 1.0, 2.0]):
        decision = scheduler.on_trial_result(trial(number), {ITERATION: 1, "loss": loss})
    assert decision.reason.startswith("waits for promotion: loss 2 is number 2 of 3 at")
    assert chosen(scheduler, 0, 1, 2) is trial(1)


def test_of_equals_the_earlier_one_is_better_and_no_more_are_promoted_than_should():
    scheduler = asha()
    assert all(paused(scheduler, number, 1, 0.5) for number in range(6))
    names = list(range(6))
    for expected in (0, 1):
        assert chosen(scheduler, *names) is trial(expected)
        scheduler.on_trial_start(trial(expected))
        names.remove(expected)
    assert chosen(scheduler, *names) is None


def test_a_free_place_goes_to_the_highest_rung_then_to_a_promotion_then_to_a_new_trial():
    scheduler = asha()
    for number, score in enumerate([0.9, 0.8, 0.7, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5]):
        report(scheduler, number, 1, score)
    for number in (0, 1, 2):
        scheduler.on_trial_start(trial(number))
        assert report(scheduler, number, 3, 0.9 - number / 10) != Continue()
    report(scheduler, 9, 1, 0.6)
    report(scheduler, 10, 1, 0.65)
    report(scheduler, 11, 1, 0.05)
    everyone = range(12)
    assert chosen(scheduler, *everyone, pending=[20]) is trial(0)
    scheduler.on_trial_start(trial(0))
    assert chosen(scheduler, *everyone, pending=[20]) is trial(10)
    scheduler.on_trial_start(trial(10))
    assert chosen(scheduler, *everyone, pending=[20, 21]) is trial(20)
    assert chosen(scheduler, *everyone) is None


def test_who_is_still_on_the_way_from_its_place_is_passed_over():
    scheduler = asha()
    for number in range(6):
        report(scheduler, number, 1, -number)
    assert chosen(scheduler, 1, 2, 3, 4, 5) is trial(1)


def test_who_failed_while_it_was_paused_waits_for_its_promotion_all_the_same():
    scheduler = asha()
    report(scheduler, 0, 1, 0.5)
    assert chosen(scheduler, pending=[0]) is None
    assert chosen(scheduler, pending=[0, 1]) is trial(1)
    report(scheduler, 1, 1, 0.4)
    report(scheduler, 2, 1, 0.3)
    assert chosen(scheduler, 1, 2, pending=[0]) is trial(0)


def test_a_trial_that_jumps_over_rungs_counts_at_each_and_waits_at_the_highest():
    scheduler = asha(max_t=27)
    assert report(scheduler, 0, 4, 0.5).reason.endswith(
        "number 1 of 1 at rung 3 of bracket 0, of which the best 0 may continue"
    )
    report(scheduler, 1, 1, 0.4)
    report(scheduler, 2, 1, 0.3)
    assert chosen(scheduler, 0, 1, 2) is None  # the best of the first rung is past it
    assert [len(ranking) for ranking in scheduler.state_dict()["rankings"][0]] == [3, 1, 0, 0]


@pytest.mark.parametrize("value", [nan, inf, None, "best"])
def test_a_trial_without_a_finite_score_stops_and_makes_room_for_the_others(value):
    scheduler = asha(max_t=27)
    assert report(scheduler, 0, 3, value) == Stop(
        f"acc is {None if value == 'best' else value} at rung 3 of bracket 0"
    )
    report(scheduler, 1, 1, value)
    assert report(scheduler, 2, 1, 0.1) == Continue()
    assert scheduler.debug_string() == (
        "Using PromotingASHA: num_stopped=2\n"
        "Bracket: Iter 27.000: 0 of 0 wait | Iter 9.000: 0 of 0 wait | Iter 3.000: 0 of 1 wait | "
        "Iter 1.000: 0 of 3 wait"
    )


def test_trials_end_at_max_t_and_wait_there_no_more():
    scheduler = asha(max_t=10)
    assert report(scheduler, 0, 10, 0.5) == Stop("training_iteration 10 has reached max_t=10")
    scheduler.on_trial_complete(trial(0), {ITERATION: 10, "acc": 0.5})
    assert scheduler.state_dict()["held"] == {}
    assert scheduler.next_milestones(trial(1)) == (
        Milestone(ITERATION, 1),
        Milestone(ITERATION, 10),
    )


@pytest.mark.parametrize("way", ["complete", "error", "remove"])
def test_who_has_ended_is_promoted_no_more_and_what_it_left_stays(way):
    scheduler = asha()
    for number in range(3):
        report(scheduler, number, 1, -number)
    if way == "complete":
        scheduler.on_trial_complete(trial(0), {})
    else:
        getattr(scheduler, f"on_trial_{way}")(trial(0))
    assert chosen(scheduler, 0, 1, 2) is None
    assert len(scheduler.state_dict()["rankings"][0][0]) == 3


def test_a_trial_that_ends_by_itself_is_recorded_at_its_last():
    scheduler = asha()
    scheduler.on_trial_complete(trial(0), {ITERATION: 5, "acc": 0.5})
    assert [len(ranking) for ranking in scheduler.state_dict()["rankings"][0]] == [1, 1, 0]
    assert scheduler.state_dict()["held"] == {}


def test_at_a_standstill_the_worse_half_ends_with_a_reason():
    scheduler = asha(max_t=27)
    for number, (t, score) in enumerate([(1, 0.3), (3, 0.1), (1, 0.2), (1, 0.25), (3, 0.15)]):
        assert paused(scheduler, number, t, score)
    waiting = Waiting(trials(0), trials(1, 2, 3, 4))
    commands = scheduler.on_standstill(waiting)
    assert [command.trial_id for command in commands] == ["a_00002", "a_00003", "a_00000"]
    assert commands[0] == StopOther(
        trial_id="a_00002",
        reason="was not promoted: acc 0.2 is number 3 of 5 at rung 1 of bracket 0, of which the "
        "best 1 may continue",
    )
    assert [one.trial_id for one in scheduler.on_standstill(Waiting({}, trials(1)))] == ["a_00001"]


@settings(max_examples=30)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=60), st.sampled_from([2, 2.5, 3, 4]))
def test_the_best_of_a_rung_continue_as_in_the_paper(scores, factor):
    scheduler = asha(reduction_factor=factor)
    going: set[int] = set()
    for number, score in enumerate(scores):
        if report(scheduler, number, 1, score) == Continue():
            going.add(number)
        waits = [one for one in range(number + 1) if one not in going]
        while (best := chosen(scheduler, *waits)) is not None:
            scheduler.on_trial_start(best)
            promoted = int(best.trial_id[-5:])
            going.add(promoted)
            waits.remove(promoted)
        ranked = sorted(range(number + 1), key=lambda one: (-scores[one], one))
        assert going.issuperset(ranked[: int((number + 1) / factor)])


def test_a_restored_scheduler_has_the_same_trials_waiting():
    scheduler = asha(brackets=2)
    for number in range(20):
        scheduler.on_trial_add(trial(number))
        report(scheduler, number, 1 + 2 * (number % 2), (number * 7) % 20)
    restored = asha(brackets=2)
    restored.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert restored.state_dict() == scheduler.state_dict()
    assert restored.debug_string() == scheduler.debug_string()
    for _ in range(5):
        best = chosen(scheduler, *range(20))
        assert chosen(restored, *range(20)) is best
        if best is not None:
            scheduler.on_trial_start(best)
            restored.on_trial_start(best)


def test_the_state_of_other_rungs_is_refused():
    with pytest.raises(ConfigError, match="the rungs of the brackets must be those of the saved"):
        asha(max_t=27).load_state_dict(asha().state_dict())


def test_a_start_of_one_that_did_not_wait_changes_nothing():
    scheduler = asha()
    report(scheduler, 0, 1, 0.5)
    scheduler.on_trial_add(trial(1))
    before = scheduler.state_dict()
    scheduler.on_trial_start(trial(1))
    assert scheduler.state_dict() == before


def test_its_trials_do_not_start_in_order():
    assert not asha().starts_in_order


def test_a_trial_that_another_paused_does_not_wait_for_ever():
    scheduler = asha()
    report(scheduler, 0, 1, 0.5)
    assert [one.trial_id for one in scheduler.on_standstill(Waiting({}, trials(0, 1)))] == ["a_00000"]
    assert scheduler.on_standstill(Waiting({}, trials(1))) == (
        StopOther(trial_id="a_00001", reason="PromotingASHAScheduler never chose it to run again"),
    )
