from __future__ import annotations

from math import inf, nan

import pytest

from dasktune.forecast.full_curve import FullCurve
from dasktune.trial.milestone import Milestone


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
