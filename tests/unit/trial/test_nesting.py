from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from dasktune.errors import ConfigError
from dasktune.trial.nesting import check_nesting


def cyclic() -> tuple[dict[str, Any], str, str]:
    space: dict[str, Any] = {"lr": 0.1, "model": {"layers": [{}]}}
    space["model"]["layers"][0]["parent"] = space["model"]
    return space, r"\['model'\]\['layers'\]\[0\]\['parent'\]", r"\['model'\]"


def test_the_key_at_which_a_value_contains_itself_is_named():
    space, place, ancestor = cyclic()
    message = rf"space{place} must be a value that does not contain itself, got space{ancestor},"
    with pytest.raises(ConfigError, match=message):
        check_nesting(space, "space")


def test_a_list_may_contain_itself_through_a_tuple():
    layers: list[Any] = []
    layers.append((1, layers))
    with pytest.raises(ConfigError, match=r"^x\[0\]\[1\] must .* got x, which contains it"):
        check_nesting(layers, "x")


def test_one_object_may_stand_at_several_places():
    shared = {"a": [1, 2]}
    check_nesting({"x": shared, "y": [shared, (shared,)], "z": MappingProxyType(shared)}, "space")
    # Without a memory of checked containers this would take 2 ** 60 steps.
    nested: Any = 0
    for _ in range(60):
        nested = [nested, nested]
    check_nesting(nested, "space")


def test_a_value_that_is_no_container_passes():
    check_nesting("text", "x")
    check_nesting(None, "x")


@pytest.mark.parametrize("depth", [99, 100])
def test_depth_has_a_limit(depth: int):
    space: Any = {}
    for _ in range(depth):
        space = {"a": space}
    if depth == 99:
        check_nesting(space, "space")
        return
    with pytest.raises(ConfigError, match="space must be nested at most 100 levels deep"):
        check_nesting(space, "space")
