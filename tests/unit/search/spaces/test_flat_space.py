"""Domains as one flat list of parameters, and back."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigError
from dasktune.search.spaces.flat_space import FlatSpace
from dasktune.search.spaces.unit_cube import UnitCube
from dasktune.space import choice, lograndint, quniform, randint, sample_from, uniform

INNER = {"beta": uniform(0, 1), "pair": (1, randint(0, 4)), "twice": sample_from(lambda: 2)}


def test_what_is_inside_an_option_has_it_as_a_condition():
    flat = FlatSpace({"m/opt": choice(["sgd", INNER]), "k": choice([{"x": uniform(0, 1)}])}, "X")
    assert [(one.name, one.condition) for one in flat.parameters] == [
        ("m/opt", None),
        ("m/opt[1]/beta", ("m/opt", 1)),
        ("m/opt[1]/pair/1", ("m/opt", 1)),
        ("k[0]/x", None),
    ]


def test_values_and_points_belong_together():
    flat = FlatSpace({"opt": choice(["sgd", INNER]), "w": quniform(0, 1, 0.25)}, "X")
    values = {"opt": 1, "opt[1]/beta": 0.5, "opt[1]/pair/1": 2, "w": 3}
    point = flat.point(values)
    assert point["opt"]["pair"] == (1, 2)
    assert point["w"] == 0.75
    assert flat.values({**point, "opt": {"beta": 0.5, "pair": [1, 2], "twice": 9}}) == values
    assert flat.values({"opt": "sgd", "w": 0.25}) == {"opt": 0, "w": 1}
    assert flat.values({"opt": "adam", "w": 0.25}) is None


def test_values_are_brought_into_their_bounds():
    flat = FlatSpace({"x": uniform(0, 1), "k": randint(0, 5), "c": choice("ab")}, "X")
    assert flat.point({"x": 7.0, "k": 9.2, "c": 3}) == {
        "x": pytest.approx(1),
        "k": 4,
        "c": "b",
    }
    assert flat.point({}) == {"x": 0, "k": 0, "c": "a"}


def test_a_space_of_single_values_is_refused():
    with pytest.raises(ConfigError, match="param_space must be a dict with at least one domain of"):
        FlatSpace({"k": randint(3, 4)}, "X")


def test_a_cube_has_integers_in_the_middle_of_their_intervals():
    flat = FlatSpace({"k": lograndint(1, 64), "c": choice("abc")}, "X")
    cube = UnitCube(flat.parameters)
    assert cube.options.tolist() == [0, 3]
    for k in (1, 2, 40, 63):
        vector = cube.vector({"k": k, "c": 2})
        assert cube.values(vector) == {"k": k, "c": 2}
