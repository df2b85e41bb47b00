"""Hyperparameters as points of a unit cube."""

from __future__ import annotations

from math import inf, nan

import pytest
from numpy.random import default_rng

from dasktune.errors import ConfigError
from dasktune.schedulers.population_based.bounds import Bounds
from dasktune.space import lograndint, loguniform, quniform, randint, randn, uniform


def test_a_point_and_its_configuration_are_the_same_place():
    bounds = Bounds({"lr": loguniform(1e-4, 1e-2), "model": {"drop": uniform(0, 0.5)}})
    config = bounds.config_at({"lr": 1.0, "model": {"drop": 0.1, "depth": 3}}, [0.5, 0.2])
    assert config == {"lr": pytest.approx(1e-3), "model": {"drop": 0.1, "depth": 3}}
    assert bounds.point(config) == pytest.approx((0.5, 0.2))
    assert bounds.names == ["lr", "model/drop"]


@pytest.mark.parametrize(
    ("given", "old", "lowest", "highest"),
    [
        ([2, 9], 5, 2, 9),
        ([0, 1], 0.5, 0.0, 1.0),
        ([0.5, 4.5], 3, 1, 4),
        ([0.2, 0.8], 3, 0.2, 0.8),
        ([3, 3], 3, 3, 3),
        ((1e-4, 1e-2), 1e-3, 1e-4, 1e-2),
        (randint(2, 9), 5, 2, 8),
        (lograndint(1, 1000), 5, 1, 999),
        (loguniform(1e-4, 1e-2), 1e-3, 1e-4, 1e-2),
    ],
)
def test_values_reach_their_bounds_and_keep_their_type(given, old, lowest, highest):
    bounds = Bounds({"x": given})
    ends = [bounds.config_at({"x": old}, [position])["x"] for position in (0.0, 1.0)]
    assert ends == pytest.approx([lowest, highest])
    assert [type(end) for end in ends] == [type(lowest), type(highest)]


def test_an_int_is_rounded():
    assert Bounds({"x": [0, 10]}).config_at({"x": 1}, [0.77])["x"] == 8


def test_what_is_missing_is_drawn_and_whole_where_both_bounds_are():
    bounds = Bounds({"width": [16, 64], "lr": [0.1, 1], "deep": {"x": randint(0, 3)}})
    config = bounds.fill_in({"lr": 0.3}, default_rng(0))
    assert isinstance(config["width"], int)
    assert 16 <= config["width"] <= 64
    assert config["lr"] == 0.3
    assert config["deep"]["x"] in range(3)


def test_a_value_beyond_the_bounds_is_where_it_is():
    assert Bounds({"x": [0, 2]}).point({"x": 5}) == (2.5,)


@pytest.mark.parametrize("config", [{}, {"x": "large"}, {"x": nan}, {"x": inf}, {"x": -1.0}])
def test_what_is_no_number_of_the_scale_is_nowhere(config):
    assert Bounds({"x": loguniform(1, 2)}).point(config) is None


def test_bounds_that_are_equal_leave_one_place():
    bounds = Bounds({"x": [3, 3]})
    assert bounds.point({"x": 3}) == bounds.point({"x": 4}) == (0.0,)


@pytest.mark.parametrize("bad", [None, {}, {"x": {}}, "x", [0, 1]])
def test_something_must_be_bounded(bad):
    with pytest.raises(ConfigError, match=r"hyperparam_bounds.* must be a dict that is not empty"):
        Bounds(bad)


@pytest.mark.parametrize(
    "bad", [[1], [1, 2, 3], 1, "ab", None, quniform(0, 1, 0.5), randn(), ["a", "b"], [nan, 1]]
)
def test_what_is_no_pair_of_numbers_is_refused(bad):
    with pytest.raises(ConfigError, match=r"hyperparam_bounds\['a'\]\['x'\] must be"):
        Bounds({"a": {"x": bad}})


def test_bounds_must_be_in_order():
    with pytest.raises(ConfigError, match=r"must be \[lowest, highest\], in this order, got"):
        Bounds({"x": [2, 1]})
