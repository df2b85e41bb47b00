"""What of a configuration was searched for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dasktune.space import choice, grid_search, resolve, uniform
from dasktune.space.inspection import varied_parameters


@pytest.mark.parametrize(
    ("space", "config", "expected"),
    [
        ({"lr": uniform(0, 1), "depth": 3}, {"lr": 0.5, "depth": 3}, {"lr": 0.5}),
        ({"a": {"b": uniform(0, 1), "c": 1}}, {"a": {"b": 0.5, "c": 1}}, {"a/b": 0.5}),
        ({"layers": [8, choice([1])]}, {"layers": [8, 1]}, {"layers/1": 1}),
        ({"x": grid_search([1, 2])}, {"x": 2}, {"x": 2}),
        ({"x": choice([{"y": 1}])}, {"x": {"y": 1}}, {"x": {"y": 1}}),
        # A searcher with a space of its own.
        ({"data": "mnist"}, {"data": "mnist", "net": {"lr": 0.1}}, {"net/lr": 0.1}),
        # A scheduler that changes what was the same in all trials.
        ({"lr": 0.1, "seed": 1}, {"lr": 0.2, "seed": 1}, {"lr": 0.2}),
        ({"layers": [1, 2]}, {"layers": [1]}, {"layers": [1]}),
        ({"data": {"x": 1}}, {"data": 3}, {"data": 3}),
        ({}, {}, {}),
    ],
)
def test_constants_are_left_out(space: dict[str, Any], config: dict[str, Any], expected: dict[str, Any]):
    assert varied_parameters(space, config) == expected


def test_values_that_cannot_be_compared_count_as_constant():
    space = {"weights": np.array([1, 2]), "lr": uniform(0, 1)}
    assert list(varied_parameters(space, resolve(space))) == ["lr"]


def test_what_cannot_be_compared_is_no_difference():
    class Stubborn:
        def __ne__(self, other):
            raise ValueError("ask me something else")

    assert varied_parameters({"lr": uniform(0, 1), "data": Stubborn()}, {"lr": 0.5, "data": 3}) == {"lr": 0.5}
