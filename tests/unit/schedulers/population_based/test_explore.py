"""How a configuration is changed, and that it stays within what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

from dasktune.errors import ConfigError
from dasktune.schedulers.population_based.explore import Mutations, apply_explore_function
from dasktune.space import (
    choice,
    lograndint,
    loguniform,
    qrandint,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)


def mutations(tree: Any, *, resample: float = 0.0, factors: Any = (1.2, 0.8)) -> Mutations:
    return Mutations(tree, resample_probability=resample, perturbation_factors=factors)


def after(how: Any, value: Any, *, times: int = 200, **options: Any) -> set[Any]:
    """Return all that becomes of a value."""
    rng, own = default_rng(0), mutations({"x": how}, **options)
    return {own.explore({"x": value}, rng)["x"] for _ in range(times)}


@pytest.mark.parametrize(
    ("how", "value"),
    [
        (uniform(0, 1), 0.95),
        (uniform(-1, 1), -0.9),
        (loguniform(1e-4, 1e-1), 1.05e-4),
        (quniform(0, 1, 0.25), 0.75),
        (randint(1, 10), 9),
        (randint(1, 10), 1),
        (qrandint(8, 33, 8), 32),
        (lograndint(1, 1000), 999),
        (choice(["a", "b", "c"]), "b"),
        (choice([1, 10, 100]), 10),
    ],
)
@pytest.mark.parametrize("factors", [(1.2, 0.8), (100.0, 0.001, -1)])
@pytest.mark.parametrize("resample", [0.0, 0.5])
def test_a_value_stays_in_its_domain(how: Any, value: Any, factors: Any, resample: float):
    results = after(how, value, factors=factors, resample=resample)
    assert all(how.is_valid(result) for result in results)
    assert len(results) > 1
    assert {type(result) for result in results} == {type(value)}


def test_a_number_is_multiplied_by_one_of_the_factors():
    assert after(uniform(0, 10), 5.0, factors=(2, 0.5)) == {10.0, 2.5}
    assert after(randn(0, 1), 5.0, factors=(2,)) == {10.0}
    assert after(randint(0, 100), 50) == {60, 40}


def test_an_integer_moves_by_one_at_least():
    assert after(randint(0, 100), 2) == {3, 1}
    assert after(randint(-10, 10), -2) == {-3, -1}
    assert after(qrandint(0, 80, 8), 16) == {24, 8}
    assert after(randint(0, 10), 0) == {0}
    assert after(randint(0, 10), 3, factors=(1,)) == {3}


@pytest.mark.parametrize("values", [[1, 2, 3, 4], ("a", "b", "c", "d"), choice("wxyz")])
def test_a_value_of_a_list_becomes_its_neighbour(values: Any):
    listed = list(getattr(values, "categories", values))
    assert after(values, listed[1]) == {listed[0], listed[2]}
    assert after(values, listed[0]) == {listed[0], listed[1]}
    assert after(values, "unheard of") == set(listed)


def test_a_list_is_drawn_from_as_often_as_was_said():
    rng, own = default_rng(0), mutations({"x": list(range(100))}, resample=0.5)
    far = [abs(own.explore({"x": 50}, rng)["x"] - 50) > 1 for _ in range(1000)]
    # Six standard deviations: fails once in 10**9 seeds.
    assert 400 < sum(far) < 590


def test_a_bool_is_only_drawn():
    assert after(lambda: False, True) == {True}
    assert after(lambda: False, True, resample=1.0) == {False}
    assert after(choice([True, False]), True, resample=1.0) == {True, False}


def test_what_is_no_number_is_drawn_from_a_function():
    assert after(lambda: "new", "old") == {"new"}
    assert after(lambda: 1.0, float("nan")) == {1.0}
    assert after(lambda: np.float32(0.5), None) == {0.5}
    assert {type(one) for one in after(lambda: np.int64(3), None)} == {int}


def test_a_number_of_a_function_is_multiplied():
    assert after(lambda: 0.0, 10.0) == {12.0, 8.0}
    assert after(lambda: 0, np.int64(10)) == {12, 8}


def test_nested_configurations_are_walked_through():
    own = mutations({"a": {"b": {"x": [1, 2]}}, "new": {"y": [5]}})
    given = {"a": {"b": {"x": 1, "kept": [1]}, "c": 3}, "d": 4}
    made = own.explore(given, default_rng(1))
    assert made["a"]["b"]["x"] in (1, 2)
    assert (made["a"]["b"]["kept"], made["a"]["c"], made["d"]) == ([1], 3, 4)
    assert made["new"] == {"y": 5}
    assert given == {"a": {"b": {"x": 1, "kept": [1]}, "c": 3}, "d": 4}
    assert made["a"]["b"]["kept"] is not given["a"]["b"]["kept"]


def test_what_is_lacking_is_drawn_and_the_rest_is_left():
    own = mutations({"x": uniform(2, 3), "y": [1, 2], "z": {"f": lambda: 7}})
    made = own.fill_in({"y": 9, "z": {"g": 1}}, default_rng(0))
    assert 2 <= made["x"] < 3
    assert (made["y"], made["z"]) == (9, {"g": 1, "f": 7})


def test_the_same_generator_gives_the_same():
    own = mutations({"x": uniform(0, 1), "y": list("abc")}, resample=0.3)
    one, other = ([own.explore({"x": 0.5, "y": "b"}, rng) for _ in range(20)] for rng in rngs())
    assert one == other


def rngs() -> Any:
    return default_rng(4), default_rng(4)


@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ([1], "hyperparam_mutations must be a dict"),
        ({"x": 1}, r"hyperparam_mutations\['x'\] must be a list of values"),
        ({"x": "abc"}, "must be a list of values"),
        ({"x": []}, "at least one value"),
        ({"x": [uniform(0, 1)]}, "free of domains"),
        ({"x": sample_from(lambda: 1)}, r"\['x'\] must be no sample_from"),
        ({"x": {"y": 1}}, r"hyperparam_mutations\['x'\]\['y'\] must be"),
        ({"x": {"grid_search": [1]}}, "free of grids"),
    ],
)
def test_what_is_no_mutation_is_refused(tree: Any, rule: str):
    with pytest.raises(ConfigError, match=rule):
        mutations(tree)


@pytest.mark.parametrize("factors", [(), 1.2, (1.2, "0.8"), (float("nan"),)])
def test_factors_are_numbers(factors: Any):
    with pytest.raises(ConfigError, match="perturbation_factors must be"):
        mutations({"x": [1]}, factors=factors)


@pytest.mark.parametrize("likely", [-0.1, 1.1, None])
def test_a_probability_is_one(likely: Any):
    with pytest.raises(ConfigError, match="resample_probability must be"):
        mutations({"x": [1]}, resample=likely)


def test_a_function_of_the_user_must_return_a_configuration():
    assert apply_explore_function(lambda config: {**config, "y": 1}, {"x": 1}) == {"x": 1, "y": 1}
    with pytest.raises(ConfigError, match="return value of custom_explore_fn must be"):
        apply_explore_function(lambda config: None, {})  # type: ignore[arg-type, return-value]
