from __future__ import annotations

from itertools import pairwise
from math import isnan, nan

from dasktune.dashboard.model.curve import Curve


def filled(count, max_points=512):
    curve = Curve(max_points)
    for iteration in range(1, count + 1):
        curve.add(iteration, float(iteration), time=10.0 * iteration)
    return curve


def test_a_short_curve_is_kept_as_it_is():
    curve = filled(5)
    assert curve.iterations.tolist() == [1, 2, 3, 4, 5]
    assert curve.values.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert curve.times.tolist() == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert curve.last == (5, 5.0)


def test_a_long_curve_keeps_its_ends_its_order_and_the_bound():
    for count in (*range(1, 70), 1_000, 4_097):
        curve = filled(count, max_points=16)
        kept = curve.iterations.tolist()
        assert len(kept) <= 16
        assert (kept[0], kept[-1]) == (1, count)
        assert kept == sorted(set(kept))
        assert curve.values.tolist() == kept
        assert len({b - a for a, b in pairwise(kept[:-1])}) <= 1


def test_a_value_that_is_computed_again_replaces_the_first_one():
    curve = filled(3)
    curve.add(2, 7.0, time=99.0)
    assert curve.values.tolist() == [1.0, 7.0, 3.0]
    assert curve.times.tolist() == [10.0, 99.0, 30.0]


def test_a_curve_that_is_cut_grows_from_there():
    curve = filled(5)
    curve.discard_after(3)
    curve.add(4, 0.5, time=1.0)
    assert curve.iterations.tolist() == [1, 2, 3, 4]
    curve.discard_after(9)
    assert len(curve) == 4


def test_the_best_point_is_one_that_has_a_value():
    curve = Curve()
    assert isnan(curve.best(lambda value, than: isnan(than) or value < than)[1])
    for iteration, value in enumerate([nan, 2.0, 1.0, nan, 3.0], start=1):
        curve.add(iteration, value, time=0.0)
    assert curve.best(lambda value, than: isnan(than) or value < than) == (3, 1.0)


def test_what_is_new_begins_at_the_point_before():
    xs, ys = filled(5).since(3)
    assert xs.tolist() == [3.0, 4.0, 5.0]
    assert ys.tolist() == [3.0, 4.0, 5.0]
    assert filled(5).since(-1)[0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
