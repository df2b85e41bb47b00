"""Configurations that people write, against the search space."""

from __future__ import annotations

from typing import Any

import pytest

from dasktune.errors import ConfigError
from dasktune.space import choice, grid_search, randint, uniform
from dasktune.space.inspection import check_config

SPACE = {
    "lr": uniform(0, 1),
    "layers": randint(1, 9),
    "kind": choice(["a", "b"]),
    "depth": grid_search([1, 2]),
    "net": {"width": randint(1, 9)},
    "path": "/data",
}
GOOD: dict[str, Any] = {
    "lr": 0.5,
    "layers": 3,
    "kind": "a",
    "depth": 2,
    "net": {"width": 3},
    "path": "/data",
}


@pytest.mark.parametrize("change", [{}, {"lr": 7}, {"lr": -1e9}, {"kind": None}, {"more": [1]}])
def test_one_with_all_names_and_numbers_fits(change: dict[str, Any]):
    check_config(SPACE, {**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lr": "fast"}, r"config\['lr'\] must be a finite number, got 'fast'"),
        ({"lr": True}, "a finite number"),
        ({"lr": float("nan")}, "a finite number"),
        ({"layers": 2.5}, r"config\['layers'\] must be an int, got 2.5"),
        ({"layers": True}, "an int"),
        ({"net": 3}, r"config\['net'\] must be a mapping, got 3"),
        ({"net": {}}, r"config\['net'\] must be a complete configuration"),
        ({"net": {"width": "wide"}}, r"config\['net'\]\['width'\] must be an int"),
    ],
)
def test_others_raise_with_the_reason(change: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told):
        check_config(SPACE, {**GOOD, **change})


def test_a_name_that_is_missing_is_named():
    config = {name: value for name, value in GOOD.items() if name != "path"}
    with pytest.raises(ConfigError, match=r"Missing: \['path'\]"):
        check_config(SPACE, config)
