from __future__ import annotations

from math import inf, nan

import numpy as np
from projection_kit import asha_journal, result, suggested

from dasktune.dashboard.model.density import Density, robust_range
from dasktune.dashboard.model.experiment_projection import ExperimentProjection


def test_without_a_margin_a_range_is_that_of_the_values():
    assert robust_range(np.array([0.91, 0.92]), margin=0.0) == (0.91, 0.92)


def test_a_range_leaves_out_what_lies_far_off_and_what_is_not_finite():
    low, high = robust_range(np.array([*np.linspace(0, 1, 50), 1e30, nan, inf, -inf]))
    assert (round(low, 2), round(high, 2)) == (-0.05, 1.05)


def test_a_range_is_never_empty():
    for values in ([], [nan], [3.0, 3.0], [0.0]):
        low, high = robust_range(np.array(values))
        assert low < high


def test_a_picture_that_is_kept_up_to_date_is_that_of_all_at_once():
    journal = asha_journal()
    projection = ExperimentProjection(metric="loss", mode="min")
    live = Density()
    middle = len(journal) // 3
    for begin in range(0, middle, 17):
        projection.extend(journal[begin : min(begin + 17, middle)])
        live.update(projection)
    before = projection.num_results
    # The borders are new once the results have doubled.
    projection.extend(journal[middle:])
    assert projection.num_results > 2 * before > 0
    live.update(projection)
    at_once = Density()
    at_once.update(projection)
    assert live.counts.sum() > 0
    assert (live.counts == at_once.counts).all()


def test_a_curve_has_no_gaps_where_the_columns_divide_an_iteration():
    projection = ExperimentProjection(metric="loss", mode="min")
    projection.add(suggested("t"))
    for iteration in range(1, 9):
        projection.add(result("t", iteration, 1.0, loss=1.0 / iteration))
    density = Density()
    density.update(projection)
    # 42 columns for each iteration.
    assert density.x_range == (0.0, 10.0)
    drawn = density.counts.any(axis=0)
    assert drawn[42 : 8 * 42].all()
    assert not drawn[:42].any()
    assert not drawn[8 * 42 :].any()


def test_only_what_is_new_is_drawn():
    projection = ExperimentProjection(metric="loss", mode="min")
    for i in range(50):
        projection.add(suggested(f"t{i}"))
        for iteration in (1, 2, 3, 9):
            projection.add(result(f"t{i}", iteration, 1.0, loss=float(i)))
    density = Density()
    assert density.update(projection)
    before = density.counts.copy()
    assert not density.update(projection)
    projection.add(suggested("new"))
    projection.add(result("new", 1, 1.0, loss=7.0))
    assert density.update(projection)
    assert (density.counts - before).sum() == 1


def test_what_outgrows_the_picture_makes_it_wider():
    projection = ExperimentProjection(metric="loss", mode="min")
    projection.add(suggested("a"))
    density = Density()
    for iteration in (1, 2, 50):
        projection.add(result("a", iteration, 1.0, loss=1.0))
        density.update(projection)
    assert density.x_range[1] >= 50
