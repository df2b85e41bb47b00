"""HyperBand: which trials wait for others, which resume, and that none waits for ever."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from math import floor as rounded_down
from math import inf, nan

import pytest
from halving_kit import ITERATION, Floor, result, run_to_the_end, trial
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    Continue,
    HyperBandForBOHB,
    HyperBandScheduler,
    Pause,
    Stop,
    StopOther,
    SuccessiveHalvingScheduler,
    Unpause,
    Waiting,
)
from dasktune.trial.milestone import Milestone


def hyperband(**changes):
    arguments = {"metric": "acc", "mode": "max", "max_t": 9, "reduction_factor": 3} | changes
    return HyperBandScheduler(**arguments)


def nine(scheduler=None):
    """A floor with the bracket of nine trials, all running; those before it have ended."""
    floor = Floor(scheduler or HyperBandForBOHB(metric="acc", mode="max", max_t=9))
    floor.add(*range(9))
    floor.start_all()
    return floor


def at_second_rung():
    """As `nine`, where 6, 7 and 8 are the best and on their way to their second rung."""
    floor = nine()
    floor.report_all(1, {number: number / 10 for number in range(9)})
    floor.start_all()
    assert floor.running == {6, 7, 8}
    return floor


def test_its_defaults_are_those_of_the_paper():
    scheduler = HyperBandScheduler()
    assert (scheduler.time_attr, scheduler.max_t, scheduler.reduction_factor) == (ITERATION, 81, 3)
    assert scheduler.stop_last_trials is True
    assert (scheduler.metric, scheduler.mode) == (None, None)


def test_brackets_are_filled_with_the_longest_trials_first():
    scheduler = hyperband(max_t=81)
    for number in range(5 + 8 + 15 + 34 + 81 + 5 + 1):
        scheduler.on_trial_add(trial(number))
    cohorts = scheduler.state_dict()["cohorts"]
    assert [one["size"] for one in cohorts] == [5, 8, 15, 34, 81, 5, 8]
    assert [one["added"] for one in cohorts] == [5, 8, 15, 34, 81, 5, 1]
    starts = [number for number, one in enumerate([5, 8, 15, 34, 81]) for _ in range(one)]
    first = {0: 81, 1: 27, 2: 9, 3: 3, 4: 1}
    milestones = [scheduler.next_milestones(trial(n))[0].value for n in range(len(starts))]
    assert milestones == [first[bracket] for bracket in starts]


@pytest.mark.parametrize(("max_t", "factor"), [(81, 3), (27, 3), (64, 4), (100, 3), (10, 2.5)])
def test_on_each_rung_there_are_as_many_as_in_the_paper(max_t, factor):
    s = 0
    while factor ** (s + 1) <= max_t:
        s += 1
    n = -int(-(factor**s) // 1)  # rounded up: the bracket s_max of B = (s_max + 1) * R
    scheduler = HyperBandForBOHB(metric="acc", mode="max", max_t=max_t, reduction_factor=factor)
    rungs = run_to_the_end(scheduler, [float(number % 7) for number in range(n)])
    assert [len(rung) for rung in rungs] == [rounded_down(n / factor**i) for i in range(s + 1)]
    for i, rung in enumerate(rungs):
        assert list(rung.values()) == [pytest.approx(max_t / factor ** (s - i))] * len(rung)


def test_a_trial_pauses_until_all_of_its_bracket_are_there():
    floor = nine()
    decisions = [floor.report(number, 1, number / 10) for number in range(8)]
    assert all(isinstance(one, Pause) for one in decisions)
    assert decisions[2] == Pause("waits at rung 1 of bracket 0 (s=2), reached by 3 so far")
    last = floor.report(8, 1, 0.8)
    assert last == Continue(
        commands=(
            *(StopOther(trial_id=f"a_0000{n}", reason=floor.ended[n]) for n in (5, 4, 3, 2, 1, 0)),
            Unpause(trial_id="a_00007"),
            Unpause(trial_id="a_00006"),
        )
    )
    assert floor.ended[0] == "not among the best 3 of 9 by acc at rung 1 of bracket 0 (s=2)"
    assert floor.pending == {6, 7}


def test_the_last_one_at_a_rung_stops_if_it_is_not_good_enough():
    floor = nine()
    for number in range(1, 9):
        floor.report(number, 1, number / 10)
    last = floor.report(0, 1, 0.0)
    assert isinstance(last, Stop)
    assert last.reason == "not among the best 3 of 9 by acc at rung 1 of bracket 0 (s=2)"
    assert floor.pending == {6, 7, 8}


def test_a_loss_is_better_the_lower():
    scheduler = HyperBandForBOHB(metric="acc", mode="min", max_t=9)
    floor = nine(scheduler)
    floor.report_all(1, {number: number / 10 for number in range(9)})
    assert floor.pending == {0, 1, 2}


@settings(max_examples=20)
@given(st.permutations(range(9)))
def test_which_trials_are_kept_does_not_depend_on_which_come_first(order):
    floor = nine()
    scores = [0.5, 0.1, nan, 0.5, 0.9, 0.5, 0.5, 0.2, 0.3]
    for number in order:
        floor.report(number, 1, scores[number])
    assert floor.pending | floor.running == {4, 0, 3}


@pytest.mark.parametrize("value", [nan, None, inf, -inf, "0.9"])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_score_that_is_not_finite_is_the_worst(value, mode):
    floor = nine(HyperBandForBOHB(metric="acc", mode=mode, max_t=9))
    for number in range(9):
        floor.report(number, 1, value if number < 6 else number)
    assert floor.pending | floor.running == {6, 7, 8}


def test_where_no_score_is_finite_the_first_trials_stay():
    floor = nine()
    for number in reversed(range(9)):
        floor.report(number, 1, nan)
    assert floor.pending | floor.running == {0, 1, 2}


def test_a_missing_metric_is_warned_of_once_and_is_the_worst(caplog):
    floor = nine()
    with caplog.at_level(logging.WARNING):
        for number in range(2):
            floor.scheduler.on_trial_result(trial(number), {ITERATION: 1})
    assert [record.getMessage() for record in caplog.records] == [
        "trial a_00000 reports no number 'acc', which HyperBandForBOHB needs; check its spelling"
    ]
    floor.running -= {0, 1}
    floor.paused |= {0, 1}
    floor.report_all(1, dict.fromkeys(range(2, 9), 0.5))
    assert {0, 1} <= set(floor.ended)


@pytest.mark.parametrize("t", [None, nan, "one"])
def test_a_result_that_does_not_say_how_far_it_is_changes_nothing(t, caplog):
    floor = nine()
    before = floor.scheduler.state_dict()
    with caplog.at_level(logging.WARNING):
        assert floor.report(0, t, 0.5) == Continue()
    assert "reports no number 'training_iteration'" in caplog.text
    assert floor.scheduler.state_dict() == before


@pytest.mark.parametrize("how", ["fail", "end", "remove"])
def test_one_that_drops_out_last_on_a_later_rung_strands_none(how):
    floor = at_second_rung()
    for number in (7, 8):
        assert isinstance(floor.report(number, 3, number / 10), Pause)
    getattr(floor, how)(6)
    assert floor.ended[7] == "not among the best 1 of 2 by acc at rung 3 of bracket 0 (s=2)"
    assert floor.pending == {8}
    assert floor.chosen() == 8


@pytest.mark.parametrize("how", ["fail", "end", "remove"])
def test_one_that_drops_out_on_the_first_rung_strands_none(how):
    floor = nine()
    for number in range(1, 9):
        floor.report(number, 1, number / 10)
    getattr(floor, how)(0)
    assert floor.pending == {6, 7, 8}


def test_where_so_many_drop_out_that_there_is_room_for_all_none_is_stopped():
    floor = nine()
    for number in range(7):
        floor.fail(number)
    floor.report(7, 1, 0.1)
    floor.report(8, 1, 0.2)
    assert floor.pending | floor.running == {7, 8}


def test_when_all_have_dropped_out_the_bracket_is_over():
    floor = nine()
    for number in range(9):
        floor.fail(number)
    assert floor.scheduler.state_dict()["cohorts"] == []
    assert floor.scheduler.state_dict()["members"] == {}


def test_an_end_that_comes_twice_is_harmless():
    floor = at_second_rung()
    floor.fail(6)
    before = floor.scheduler.state_dict()
    assert floor.scheduler.on_trial_error(trial(6)) == ()
    assert floor.scheduler.on_trial_complete(trial(6), {}) == ()
    assert floor.scheduler.on_trial_remove(trial(6)) == ()
    assert floor.scheduler.state_dict() == before


def test_a_trial_that_comes_after_a_halving_belongs_to_the_next_bracket():
    floor = nine()
    floor.report_all(1, {number: number / 10 for number in range(9)})
    floor.add(9, 10)
    assert floor.scheduler.next_milestones(trial(9)) == (Milestone(ITERATION, 3),)
    first, second = floor.scheduler.state_dict()["cohorts"]
    assert first["running"] == ["a_00008", "a_00007", "a_00006"]
    assert second["running"] == ["a_00009", "a_00010"]


@pytest.mark.parametrize("how", ["fail", "end", "remove"])
def test_a_place_that_is_free_after_a_halving_is_not_for_a_trial_that_comes_then(how):
    """It would be compared with others that had to be among the best to come there."""
    floor = at_second_rung()
    getattr(floor, how)(6)
    floor.add(9)
    first, second = floor.scheduler.state_dict()["cohorts"]
    assert sorted(first["running"]) == ["a_00007", "a_00008"]
    assert second["running"] == ["a_00009"]


def test_a_trial_that_comes_after_the_search_had_ended_belongs_to_the_next_bracket():
    floor = Floor(HyperBandForBOHB(metric="acc", mode="max", max_t=9))
    floor.add(0, 1)
    assert floor.no_more() == ()
    floor.add(2)
    assert [one["added"] for one in floor.scheduler.state_dict()["cohorts"]] == [2, 1]


def test_a_bracket_that_will_not_be_filled_is_halved_as_if_it_was_so_small():
    floor = Floor(HyperBandForBOHB(metric="acc", mode="max", max_t=9))
    floor.add(*range(6))
    floor.start_all()
    floor.report_all(1, {number: number / 10 for number in range(6)})
    assert len(floor.paused) == 6  # there might come three more
    commands = floor.no_more()
    assert {one.trial_id for one in commands if isinstance(one, Unpause)} == {"a_00004", "a_00005"}
    assert floor.pending == {4, 5}
    assert floor.no_more() == ()


def test_the_end_of_the_search_changes_nothing_where_trials_are_still_on_their_way():
    floor = Floor(HyperBandForBOHB(metric="acc", mode="max", max_t=9))
    assert floor.no_more() == ()
    floor.add(0, 1, 2)
    floor.start_all()
    floor.report(0, 1, 0.1)
    floor.report(1, 1, 0.2)
    assert floor.no_more() == ()
    assert isinstance(floor.report(2, 1, 0.0), Stop)
    assert floor.pending == {1}


def test_a_trial_that_is_added_again_keeps_its_place():
    floor = nine()
    floor.report(0, 1, 0.5)
    before = floor.scheduler.state_dict()
    for number in range(9):
        floor.scheduler.on_trial_add(trial(number))
    assert floor.scheduler.state_dict() == before


def test_a_trial_that_is_opened_again_takes_part_in_the_bracket_that_is_filled_now():
    floor = at_second_rung()
    floor.add(0)
    floor.ended.pop(0)
    assert floor.scheduler.state_dict()["members"]["a_00000"][:2] == [1, 0]
    # It had come to 1 before; so it stands at the rungs that it passes with its next result.
    floor.start(0)
    floor.scheduler.on_search_end()
    assert floor.report(0, 4, 0.9) == Continue()
    assert floor.scheduler.next_milestones(trial(0)) == (Milestone(ITERATION, 9),)


def test_trials_that_jump_over_rungs_stand_at_each_of_them_with_what_they_have():
    scheduler = HyperBandForBOHB(metric="acc", mode="max", max_t=27)
    floor = Floor(scheduler)
    floor.add(*range(27))
    floor.start_all()
    for number in range(26):
        assert isinstance(floor.report(number, 4, number), Pause)
    # 27 -> 9 at rung 1 -> 3 at rung 3, where no trial has to train for it.
    assert floor.report(26, 4, 26) == Continue(
        commands=tuple(
            [StopOther(trial_id=f"a_{n:05d}", reason=floor.ended[n]) for n in range(17, -1, -1)]
            + [StopOther(trial_id=f"a_{n:05d}", reason=floor.ended[n]) for n in range(23, 17, -1)]
            + [Unpause(trial_id="a_00025"), Unpause(trial_id="a_00024")]
        )
    )
    assert scheduler.next_milestones(trial(26)) == (Milestone(ITERATION, 9),)


def test_one_that_jumps_alone_waits_on_the_next_rung_for_the_others():
    floor = nine()
    for number in range(8):
        floor.report(number, 1, number / 10)
    decision = floor.report(8, 5, 0.8)
    assert isinstance(decision, Pause)
    assert decision.reason == "waits at rung 3 of bracket 0 (s=2), reached by 1 so far"
    assert floor.pending == {6, 7}
    floor.start_all()
    floor.report(6, 3, 0.9)
    assert isinstance(floor.report(7, 3, 0.7), Stop)
    assert floor.pending | floor.running == {6}
    assert floor.ended[8] == "not among the best 1 of 3 by acc at rung 3 of bracket 0 (s=2)"


def test_trials_end_at_max_t_without_waiting():
    floor = Floor(hyperband())
    floor.add(0, 1, 2)
    floor.start_all()
    assert floor.scheduler.next_milestones(trial(0)) == (Milestone(ITERATION, 9),)
    assert floor.report(0, 8, 0.1) == Continue()
    assert floor.report(0, 9, 0.1) == Stop("training_iteration 9 has reached max_t=9")
    assert floor.running == {1, 2}
    assert isinstance(floor.report(1, inf, 0.1), Stop)


def test_one_that_jumps_to_the_end_stops_there_and_is_not_waited_for():
    floor = nine()
    for number in range(8):
        floor.report(number, 1, number / 10)
    decision = floor.report(8, 9, 0.8)
    assert decision.reason == "training_iteration 9 has reached max_t=9"
    assert floor.pending == {5, 6, 7}


def test_the_last_trials_may_continue_beyond_max_t():
    scheduler = HyperBandForBOHB(metric="acc", mode="max", max_t=3, stop_last_trials=False)
    floor = Floor(scheduler)
    floor.add(0, 1, 2)
    floor.start_all()
    floor.report_all(1, {0: 0.1, 1: 0.2})
    assert scheduler.next_milestones(trial(2)) == (Milestone(ITERATION, 1),)
    assert isinstance(floor.report(2, 7, 0.3), Continue)
    assert set(floor.ended) == {0, 1}
    assert scheduler.next_milestones(trial(2)) == ()
    assert floor.report(2, 1000, 0.0) == Continue()
    floor.end(2)
    assert scheduler.state_dict()["cohorts"] == []


def test_one_that_stands_and_reports_again_still_waits():
    # It failed while it was being paused, and has come to its rung once more.
    floor = nine()
    floor.report(0, 1, 0.9)
    floor.start(0)
    before = floor.scheduler.state_dict()
    assert floor.scheduler.next_milestones(trial(0)) == (Milestone(ITERATION, 1),)
    assert isinstance(floor.report(0, 2, 0.0), Pause)
    assert floor.scheduler.state_dict() == before


def test_one_that_was_still_on_its_worker_when_it_was_to_resume_resumes_later():
    floor = nine()
    floor.report_all(1, {number: number / 10 for number in range(9)})
    floor.pending = set()  # 6 and 7 have not left theirs yet
    assert floor.chosen() is None
    floor.paused = {6}
    assert floor.chosen() == 6
    floor.start(6)
    assert floor.chosen() is None


def test_the_first_bracket_goes_first():
    floor = nine()
    floor.add(9, 10)
    floor.report_all(1, {number: number / 10 for number in range(9)})
    assert [floor.pending, floor.running] == [{6, 7, 9, 10}, {8}]
    order = []
    while (chosen := floor.chosen()) is not None:
        floor.start(chosen)
        order.append(chosen)
    assert order == [7, 6, 9, 10]  # the best one first


@pytest.mark.parametrize("restored", [False, True])
def test_one_that_comes_back_from_its_worker_goes_before_all_others(restored):
    floor = nine()
    floor.add(*range(9, 12))
    floor.start(9)
    assert floor.chosen() == 10
    if restored:
        state, floor.scheduler = (
            floor.scheduler.state_dict(),
            HyperBandForBOHB(metric="acc", mode="max", max_t=9),
        )
        floor.scheduler.load_state_dict(state)
    back = replace(trial(9), incarnation=1)
    pending = {"a_00009": back, "a_00010": trial(10), "a_00011": trial(11)}
    assert floor.scheduler.choose_trial_to_run(Waiting(pending, {})) is back
    del pending["a_00009"]
    assert floor.scheduler.choose_trial_to_run(Waiting(pending, {})) is trial(10)


def test_those_that_resume_are_not_taken_for_those_that_come_back():
    floor = nine()
    floor.report_all(1, {number: number / 10 for number in range(9)})
    # In the order in which they left their workers.
    going_on = [replace(trial(number), incarnation=1) for number in (6, 7)]
    pending = {one.trial_id: one for one in going_on}
    assert floor.scheduler.choose_trial_to_run(Waiting(pending, {})) is going_on[1]


def test_who_continues_where_it_is_needs_no_new_place():
    floor = nine()
    floor.report_all(1, {number: number / 10 for number in range(9)})
    (cohort,) = floor.scheduler.state_dict()["cohorts"]
    assert cohort["running"] == ["a_00008", "a_00007", "a_00006"]
    assert cohort["ready"] == ["a_00007", "a_00006"]
    before = floor.scheduler.state_dict()
    floor.scheduler.on_trial_start(trial(0))  # was stopped, says this scheduler
    assert floor.scheduler.state_dict() == before


def test_where_none_runs_the_last_bracket_is_halved_though_it_is_not_full():
    floor = Floor(HyperBandForBOHB(metric="acc", mode="max", max_t=9))
    floor.add(0, 1, 2)
    floor.start_all()
    floor.report_all(1, {0: 0.1, 1: 0.3, 2: 0.2})
    paused = {trial(number).trial_id: trial(number) for number in range(3)}
    floor.obey(floor.scheduler.on_standstill(Waiting({}, paused)))
    assert floor.pending == {1}
    assert set(floor.ended) == {0, 2}


def test_one_that_it_does_not_know_is_chosen_when_no_other_waits():
    chosen = hyperband().choose_trial_to_run(Waiting({"a_00007": trial(7)}, {}))
    assert chosen is trial(7)


def test_those_that_wait_at_a_rung_are_not_chosen():
    floor = nine()
    floor.report(0, 1, 0.9)
    assert floor.chosen() is None


def test_what_the_journal_continues_that_was_stopped_here_runs_to_the_end():
    floor = nine()
    floor.report_all(1, {number: number / 10 for number in range(9)})
    for number in (0, 99):
        assert floor.scheduler.next_milestones(trial(number)) == (Milestone(ITERATION, 9),)
        decision = floor.scheduler.on_trial_result(trial(number), result(8, 0.9))
        assert decision == Continue()
        decision = floor.scheduler.on_trial_result(trial(number), result(9, 0.9))
        assert decision == Stop("training_iteration 9 has reached max_t=9")


@settings(max_examples=30)
@given(st.permutations([(number, t) for number in (6, 7, 8) for t in (1, 2)]))
def test_results_between_rungs_commute(order):
    floor = at_second_rung()
    before = floor.scheduler.state_dict()
    for number, t in order:
        assert floor.report(number, t, number + t) == Continue()
    assert floor.scheduler.state_dict() == before


def test_trials_that_wait_let_others_come():
    assert hyperband().waits_for_others is True
    assert hyperband().starts_in_order is False
    assert hyperband().search_info(trial(0), result(1, 0.5)) == {}


def test_its_lines_tell_where_the_brackets_are():
    floor = nine()
    floor.report(0, 1, 0.5)
    floor.add(9)
    assert floor.scheduler.debug_string() == (
        "Using HyperBandForBOHB: num_stopped=0\n"
        "Bracket 0 (s=2) (9 of 9 trials): 1 wait at rung 1, 8 train towards it\n"
        "Bracket 1 (s=1) (1 of 5 trials): 0 wait at rung 3, 1 train towards it"
    )


def test_it_counts_those_that_it_stopped():
    floor = at_second_rung()
    assert floor.scheduler.debug_string().startswith("Using HyperBandForBOHB: num_stopped=6\n")


MAKERS = {
    "hyperband": hyperband,
    "fractions": lambda: hyperband(max_t=7.5, reduction_factor=1.7, mode="min"),
    "bohb": lambda: HyperBandForBOHB(metric="acc", mode="max", max_t=9),
    "beyond": lambda: hyperband(stop_last_trials=False),
    "cohort": lambda: SuccessiveHalvingScheduler(metric="acc", mode="max", max_t=9),
    "cohorts": lambda: SuccessiveHalvingScheduler(
        metric="acc", mode="max", max_t=8, reduction_factor=2, grace_period=2, n_trials=4
    ),
}

#: What may happen, most often a step.
STEPS = st.tuples(
    st.sampled_from(
        ["report"] * 8 + ["start"] * 3 + ["add"] * 3 + ["jump", "fail", "end", "no more", "restore"]
    ),
    st.integers(0, 10**6),
    st.floats(0, 1) | st.just(nan),
)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=15)
@given(steps=st.lists(STEPS, max_size=120))
def test_whatever_happens_no_trial_waits_for_ever(name, steps):
    floor, times = Floor(MAKERS[name]()), {}
    for what, draw, score in steps:
        _step(floor, times, what, draw, score, MAKERS[name])
    for _ in range(500):
        floor.start_all()
        if floor.running:
            _step(floor, times, "report", 0, 0.5, MAKERS[name])
        elif floor.paused:
            assert floor.no_more(), "no trial runs, and none may resume"
        else:
            break
    assert len(floor.ended) == len(times)
    state = floor.scheduler.state_dict()
    assert state["members"] == {}
    assert all(not one["running"] and not one["standing"] for one in state["cohorts"])


def _step(floor, times, what, draw, score, make):
    """Let something happen to a trial, if there is one that it can happen to."""
    if what == "add":
        floor.add(len(times))
        times[len(times)] = 0
    elif what == "no more":
        floor.no_more()
    elif what == "restore":
        state = json.loads(json.dumps(floor.scheduler.state_dict()))
        floor.scheduler = make()
        floor.scheduler.load_state_dict(state)
        assert floor.scheduler.state_dict() == state
    elif what == "start":
        chosen = floor.chosen()
        if chosen is not None:
            floor.start(chosen)
    elif floor.running:
        number = sorted(floor.running)[draw % len(floor.running)]
        if what in ("report", "jump"):
            times[number] += 1 if what == "report" else 3
            floor.report(number, times[number], score)
            if times[number] >= 12 and number in floor.running:
                floor.end(number)
        else:
            getattr(floor, what)(number)


@settings(max_examples=15)
@given(
    scores=st.lists(st.floats(0, 1) | st.just(nan), min_size=24, max_size=24),
    cut=st.integers(0, 30),
)
def test_a_restored_scheduler_decides_like_the_original(scores, cut):
    def live(restored):
        floor, decisions = Floor(hyperband()), []
        floor.add(*range(17))
        for t in range(1, 10):
            for number in range(17):
                if len(decisions) == cut and restored:
                    state = json.loads(json.dumps(floor.scheduler.state_dict()))
                    floor.scheduler = hyperband()
                    floor.scheduler.load_state_dict(state)
                floor.start_all()
                if number in floor.running:
                    decisions.append(floor.report(number, t, scores[number] + t / 10))
        return decisions, floor.scheduler.state_dict()

    assert live(restored=True) == live(restored=False)


def test_a_snapshot_does_not_change_afterwards():
    floor = nine()
    before = floor.scheduler.state_dict()
    text = json.dumps(before)
    floor.report_all(1, {number: number / 10 for number in range(9)})
    assert json.dumps(before) == text


@pytest.mark.parametrize("changes", [{"max_t": 27}, {"reduction_factor": 9}])
def test_the_state_of_other_rungs_is_refused(changes):
    with pytest.raises(ConfigError, match="the rungs must be those of the saved experiment"):
        hyperband(**changes).load_state_dict(hyperband().state_dict())


def test_metric_and_mode_come_from_the_experiment():
    scheduler = HyperBandScheduler()
    scheduler.set_search_properties("acc", "max")
    assert (scheduler.metric, scheduler.mode) == ("acc", "max")
    with pytest.raises(ConfigError, match="Set them in TuneConfig or in HyperBandScheduler"):
        HyperBandScheduler().set_search_properties("acc", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_t": 0}, "max_t must be more than 0, got 0"),
        ({"max_t": True}, "max_t must be a finite number, got True"),
        ({"stop_last_trials": 1}, "stop_last_trials must be True or False, got 1"),
        ({"max_t": inf}, "max_t must be a finite number, got inf"),
        ({"max_t": "9"}, "max_t must be a finite number, got '9'"),
        ({"reduction_factor": 1}, "reduction_factor must be more than 1, got 1"),
        ({"reduction_factor": nan}, "reduction_factor must be a finite number, got nan"),
        ({"max_t": 10, "reduction_factor": 1.001}, "reduction_factor must be large enough"),
        ({"mode": "maximum"}, "mode must be 'min', 'max' or None, got 'maximum'"),
        ({"metric": ""}, "metric must be the name of a metric, got ''"),
        ({"time_attr": 3}, "time_attr must be the name of a metric, got 3"),
    ],
)
def test_an_argument_that_breaks_its_rule_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        hyperband(**changes)


def test_less_than_one_step_is_one_rung():
    scheduler = hyperband(max_t=0.5, time_attr="epochs")
    scheduler.on_trial_add(trial(0))
    assert scheduler.next_milestones(trial(0)) == (Milestone("epochs", 0.5),)


def test_none_is_chosen_where_none_waits():
    assert hyperband().choose_trial_to_run(Waiting({}, {})) is None
