from __future__ import annotations

from math import inf, nan

import pytest

from dasktune.errors import ConfigError
from dasktune.forecast.recorded_trial import FullCurve, RecordedTrial, busy_workers, select_full
from dasktune.trial.milestone import Milestone
from dasktune.trial.status import PublicStatus

DONE = PublicStatus.TERMINATED


def trial(iterations, status=DONE, loss=1.0, **facts):
    rows = [{"training_iteration": n, "loss": loss / n} for n in range(1, iterations + 1)]
    return RecordedTrial(rows=rows, status=status, **facts)


def select(*trials, **options):
    return select_full(list(trials), "loss", "min", **options)


def test_a_curve_is_full_if_it_reaches_the_end_whatever_ended_it_there():
    ends = [
        trial(9),
        trial(9, reason="it has reached max_t=9"),
        trial(9, PublicStatus.ERROR),
    ]
    found = select(*ends, *([trial(9)] * 20))
    assert (len(found.curves), found.max_t, found.censored) == (23, 9, {})


def test_a_trial_whose_code_returned_ends_there_under_any_scheduler():
    found = select(trial(4), *([trial(9)] * 20))
    assert [len(curve) for curve in found.curves][:2] == [4, 9]


def test_whatever_else_ends_a_trial_censors_its_curve():
    cut = [
        trial(3, reason="loss 0.3 above cutoff 0.1", stopped_early=True),
        trial(3, reason="loss 0.3 above cutoff 0.1", stopped_early=True),
        trial(3, reason="the plateau stopper"),
        trial(3, PublicStatus.ERROR),
        trial(3, PublicStatus.PAUSED),
        trial(3, PublicStatus.RUNNING),
        trial(0, PublicStatus.PENDING),
    ]
    found = select(*cut, *([trial(9)] * 20))
    assert len(found.curves) == 20
    assert found.censored == {
        "stopped by the scheduler": 2,
        "ended by a stop criterion": 1,
        "failed": 1,
        "paused": 1,
        "unfinished": 2,
    }


def test_a_trial_that_returned_without_a_result_has_no_curve():
    assert select(trial(0), *([trial(9)] * 20)).censored == {"ended without a result": 1}


def test_a_curve_without_a_finite_value_is_left_out():
    assert select(trial(9, loss=nan), *([trial(9)] * 20)).censored == {"without a finite loss": 1}


def test_a_lower_end_makes_more_curves_full_and_cuts_them():
    cut = [trial(5, stopped_early=True, reason="worse")] * 15
    found = select(*cut, *([trial(9)] * 6), max_t=5)
    assert (len(found.curves), found.max_t, found.censored) == (21, 5, {})
    assert {len(curve) for curve in found.curves} == {5}


def test_too_few_full_curves_are_refused_with_what_to_do():
    cut = [trial(3, stopped_early=True, reason="worse")] * 30
    message = (
        r"at least 20 full learning curves, got 7 of 37 trials .* training_iteration 9 .*"
        r"\(30 stopped by the scheduler\).* without a scheduler, or replay up to max_t=3, which 37 trials"
    )
    with pytest.raises(ConfigError, match=message):
        select(*cut, *([trial(9)] * 7))


def test_where_no_lower_end_helps_none_is_proposed():
    with pytest.raises(ConfigError, match=r"got 19 of 19 trials .*without a scheduler\.$"):
        select(*([trial(9)] * 19))
    with pytest.raises(ConfigError, match=r"got 0 of 0 trials"):
        select()


@pytest.mark.parametrize("status", list(PublicStatus))
def test_every_status_has_a_reason(status):
    assert RecordedTrial(rows=[], status=status).censoring


def test_moments_in_which_more_trials_ran_do_not_count():
    # Two at a time; each of the later ones starts a moment before an earlier one ends.
    times = [(0, 10), (0, 10), (9.999, 20), (9.999, 20)]
    trials = [RecordedTrial(rows=[], status=DONE, stays=[stay]) for stay in times]
    assert busy_workers(trials) == 2
    assert busy_workers([*trials, RecordedTrial(rows=[], status=DONE)]) == 2
    assert busy_workers([]) is None
    assert busy_workers([RecordedTrial(rows=[], status=DONE)]) is None


def test_a_paused_trial_does_not_count_as_running():
    # Two trials take turns on one worker.
    turns = [[(0, 5), (10, 15)], [(5, 10), (15, 20)]]
    assert busy_workers([RecordedTrial(rows=[], status=DONE, stays=stays) for stays in turns]) == 1


# Full curves


def curve(*losses, mode="min", **columns):
    rows = [
        {"training_iteration": n + 1, "loss": loss, **{name: values[n] for name, values in columns.items()}}
        for n, loss in enumerate(losses)
    ]
    return FullCurve(rows, "loss", mode)


def test_the_best_score_so_far_ignores_what_is_not_finite():
    assert curve(nan, 3.0, -inf, 2.0, 4.0).best == [-inf, -inf, -3.0, -3.0, -2.0, -2.0]
    assert curve(1.0, 3.0, inf, 2.0, mode="max").best == [-inf, 1.0, 3.0, 3.0, 3.0]
    assert curve("diverged", 2.0).best == [-inf, -inf, -2.0]


def test_the_seconds_are_those_of_all_runs_of_the_trial():
    assert curve(1, 1, time_total_s=[2.0, 5.0], time_this_iter_s=[2.0, 3.0]).seconds == [0.0, 2.0, 5.0]


@pytest.mark.parametrize("totals", [[5.0, 2.0], [2.0, None], [-1.0, 2.0], [2.0, inf]])
def test_without_a_growing_total_the_seconds_are_summed(totals):
    assert curve(1, 1, time_total_s=totals, time_this_iter_s=[2.0, 3.0]).seconds == [0.0, 2.0, 5.0]


def test_an_invalid_length_of_an_iteration_counts_as_none():
    steps = [2.0, None, nan, -1.0]
    assert curve(1, 1, 1, 1, time_this_iter_s=steps).seconds == [0.0, 2.0, 2.0, 2.0, 2.0]


def test_iterations_may_skip_numbers():
    rows = [{"training_iteration": n, "loss": 1.0} for n in (5, 10)]
    assert FullCurve(rows, "loss", "min").iterations == [0, 5, 10]


def test_the_next_row_is_the_first_at_any_milestone_or_the_last():
    one = curve(1, 1, 1, 1, 1, epoch=[2, 4, 6, 8, 10])
    by_iteration, by_epoch = Milestone("training_iteration", 3), Milestone("epoch", 4)
    assert one.next_row((by_iteration,), 0) == 2
    assert one.next_row((by_iteration, by_epoch), 0) == 1
    assert one.next_row((by_epoch,), 2) == 2
    assert one.next_row((), 1) == 4
    assert one.next_row((Milestone("epoch", 99),), 0) == 4


def test_a_row_without_the_time_is_a_milestone_unless_it_is_not_required():
    one = curve(1, 1, 1, 1, epoch=[1, None, 2, 9])
    assert one.next_row((Milestone("epoch", 5),), 0) == 1
    assert one.next_row((Milestone("epoch", 5, required=False),), 0) == 3
    assert curve(1, 1, 1, epoch=[1, nan, 9]).next_row((Milestone("epoch", 5),), 0) == 1


def test_times_that_decrease_are_searched_one_by_one():
    assert curve(1, 1, 1, 1, epoch=[1, 7, 2, 9]).next_row((Milestone("epoch", 5),), 0) == 1
