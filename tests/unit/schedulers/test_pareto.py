"""Fronts of points that no other dominates, one behind the other."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.schedulers.pareto import ParetoFronts, crowding_distance, hypervolume

#: Few different values, so that many points are equal in one or all.
POINTS = st.integers(2, 3).flatmap(
    lambda m: st.lists(st.tuples(*[st.integers(-3, 3).map(float)] * m), max_size=25)
)


def dominates(one, other):
    return all(a >= b for a, b in zip(one, other, strict=True)) and one != other


def peeled(points):
    """The definition: take the points away that no other dominates, again and again."""
    left, found = list(points), []
    while left:
        front = [p for p in left if not any(dominates(q, p) for q in left)]
        left = [p for p in left if p not in front]
        found.append(sorted(map(list, front)))
    return found


@settings(max_examples=40)
@given(POINTS, st.sampled_from([1, 1_000_000]))
def test_the_fronts_are_those_of_the_definition_in_whatever_order_points_come(points, block):
    fronts = ParetoFronts(block=block)
    for number, point in enumerate(points, 1):
        index = fronts.add(point)
        assert list(point) in fronts.to_lists()[index]
        assert len(fronts) == number
    assert fronts.to_lists() == peeled(points) == ParetoFronts(points[::-1], block=block).to_lists()
    assert fronts.sizes == [len(front) for front in fronts.to_lists()]


@settings(max_examples=30)
@given(POINTS)
def test_a_state_gives_the_same_fronts_back(points):
    fronts = ParetoFronts(points)
    again = ParetoFronts.from_lists(json.loads(json.dumps(fronts.to_lists())))
    assert again.to_lists() == fronts.to_lists()
    for point in points:
        for places in (1, 3, 10):
            index = next(i for i, front in enumerate(fronts.to_lists()) if list(point) in front)
            assert again.count_better(point, index, places) == fronts.count_better(point, index, places)


def test_a_better_front_comes_first_and_then_the_trial_with_the_most_distant_neighbours():
    line = [(0.0, 10.0), (1.0, 9.0), (2.0, 8.0), (6.0, 4.0), (10.0, 0.0)]
    fronts = ParetoFronts([*line, (-1.0, -1.0)])
    assert fronts.count_better((-1.0, -1.0), 1, 3) == 5
    assert fronts.count_better((-1.0, -1.0), 1, 6) == 5
    assert fronts.count_better((1.0, 9.0), 0, 5) == 0
    # Both ends, then the gaps: 0.8 + 0.8, 0.5 + 0.5, 0.2 + 0.2.
    assert [fronts.count_better(point, 0, 3) for point in line] == [0, 4, 3, 2, 0]


def test_of_equal_points_the_loneliest_speaks_for_all():
    fronts = ParetoFronts([(1.0, 1.0)] * 4)
    assert fronts.count_better((1.0, 1.0), 0, 1) == 0


@settings(max_examples=30)
@given(POINTS.filter(len), st.randoms(use_true_random=False))
def test_crowding_needs_no_order(points, random):
    shuffled = list(points)
    random.shuffle(shuffled)

    def told(some):
        return sorted(zip(some, crowding_distance(np.array(some)).tolist(), strict=True))

    assert told(shuffled) == told(points)


def test_crowding_does_not_overflow():
    distances = crowding_distance(np.array([[-1e308, 1e308], [0.0, 0.0], [1e308, -1e308]]))
    assert distances.tolist() == [np.inf, 2.0, np.inf]
    assert crowding_distance(np.array([[1.0, 0.0], [1.0, 0.0]])).tolist() == [0.0, 0.0]


@given(
    st.integers(2, 4).flatmap(
        lambda m: st.lists(st.tuples(*[st.integers(-1, 3).map(float)] * m), min_size=1, max_size=8)
    )
)
@settings(max_examples=60)
def test_the_hypervolume_is_the_number_of_unit_cubes_below_the_points(points):
    sides = len(points[0])
    corners = np.indices((3,) * sides).reshape(sides, -1).T
    is_below = np.all(corners[:, np.newaxis] + 1 <= np.array(points), axis=2)
    cubes = is_below.any(axis=1).sum()
    assert hypervolume(np.array(points), [0.0] * sides) == cubes


def test_no_points_have_no_volume():
    assert hypervolume(np.empty((0, 3)), [0.0] * 3) == 0.0
    assert hypervolume(np.empty((0, 2)), [0.0] * 2) == 0.0
