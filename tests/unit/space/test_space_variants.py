"""Resolving search spaces."""

from __future__ import annotations

from collections import namedtuple
from copy import copy
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from dasktune.errors import ConfigError, RecursiveDependencyError
from dasktune.space import (
    Variants,
    choice,
    experiment_tag,
    grid_search,
    overlay,
    randint,
    resolve,
    sample_from,
    uniform,
)
from dasktune.space.tree import PartialConfig


def configs(space: dict[str, Any], seed: int = 0) -> list[dict[str, Any]]:
    variants = Variants(space)
    rng = default_rng(seed)
    return [variants.draw(point, rng).config for point in range(variants.size)]


def test_a_space_without_variables_is_one_variant_of_its_own_containers():
    space = {"a": 1, "b": {"c": [1, (2, 3)]}}
    (config,) = configs(space)
    assert config == space
    assert config["b"] is not space["b"]
    assert config["b"]["c"] is not space["b"]["c"]
    assert Variants(space).draw(0, default_rng(0)).resolved == {}


def test_the_first_axis_in_sorted_order_varies_fastest():
    space = {"b": grid_search([1, 2]), "a": {"x": grid_search("pq")}}
    assert [(c["a"]["x"], c["b"]) for c in configs(space)] == [
        ("p", 1),
        ("q", 1),
        ("p", 2),
        ("q", 2),
    ]
    assert Variants(space).grid_paths == ("a/x", "b")


def test_list_indices_are_sorted_as_numbers():
    space = {"a": [grid_search([0, 1]) for _ in range(11)]}
    assert Variants(space).grid_paths[2] == "a/2"
    assert Variants(space).size == 2**11


def test_a_grid_may_be_written_as_a_plain_dict():
    assert configs({"a": {"grid_search": (1, 2)}}) == [{"a": 1}, {"a": 2}]


def test_a_grid_may_hold_domains_functions_and_grids():
    space = {
        "a": grid_search(
            [
                {"kind": "x", "n": randint(5, 6)},
                sample_from(lambda config: config["c"]),
                {"kind": "y", "m": grid_search([1, 2]), "k": grid_search([3, 4])},
                grid_search(["last", "least"]),
            ]
        ),
        "c": grid_search([8, 9]),
    }
    found = [config["a"] for config in configs(space)]
    grid = [{"kind": "y", "m": m, "k": k} for m in (1, 2) for k in (3, 4)]
    for offset, c in ((0, 8), (8, 9)):
        assert found[offset : offset + 8] == [
            {"kind": "x", "n": 5},
            c,
            *grid,
            "last",
            "least",
        ]


def test_a_huge_grid_is_never_built():
    variants = Variants({f"p{i:02}": grid_search(range(10)) for i in range(30)})
    assert variants.size == 10**30
    config = variants.draw(10**30 - 1, default_rng(0)).config
    assert set(config.values()) == {9}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_the_points_of_a_grid_are_its_cartesian_product(sizes):
    space = {f"p{i}": grid_search(range(size)) for i, size in enumerate(sizes)}
    points = [tuple(config.values()) for config in configs(space)]
    assert len(points) == len(set(points)) == Variants(space).size
    assert points == sorted(points, key=lambda point: point[::-1])


def test_variables_are_found_in_dicts_lists_and_tuples():
    space = {"a": [1, uniform(0, 1)], "b": (randint(0, 9), {"c": choice("xy")})}
    variant = Variants(space).draw(0, default_rng(0))
    assert isinstance(variant.config["a"][1], float)
    assert isinstance(variant.config["b"], tuple)
    assert isinstance(variant.config["b"][1]["c"], str)
    assert list(variant.resolved) == ["a/1", "b/0", "b/1/c"]
    assert variant.resolved["b/1/c"] == variant.config["b"][1]["c"]


def test_other_containers_are_leaves():
    pair = namedtuple("pair", "x y")(1, 2)
    leaf = object()
    config = resolve({"pair": pair, "leaf": leaf, "proxy": MappingProxyType({"a": 1})})
    assert config["pair"] is pair
    assert config["leaf"] is leaf
    assert config["proxy"] == {"a": 1}


def test_trials_do_not_share_containers():
    first, second = configs({"a": {"b": []}, "c": grid_search([1, 2])})
    first["a"]["b"].append(1)
    assert second["a"]["b"] == []


def test_the_order_in_which_a_space_is_written_changes_nothing():
    one = {"a": uniform(0, 1), "b": {"c": randint(0, 100), "d": choice("xyz")}}
    other = {"b": {"d": choice("xyz"), "c": randint(0, 100)}, "a": uniform(0, 1)}
    assert resolve(one, 3) == resolve(other, 3)


def test_a_choice_may_hold_whole_spaces():
    space = {"model": choice([{"kind": "svm", "c": [uniform(0, 1), choice([choice([4])])]}])}
    model = resolve(space, 0)["model"]
    assert model["kind"] == "svm"
    assert 0 <= model["c"][0] < 1
    assert model["c"][1] == 4


def test_dependent_values_wait_for_what_they_need():
    space = {
        "a": sample_from(lambda config: config["b"] + 1),
        "b": sample_from(lambda spec: spec.config.n.d * 2),
        "n": {"d": randint(3, 4)},
    }
    assert resolve(space) == {"a": 7, "b": 6, "n": {"d": 3}}


def test_a_default_does_not_hide_that_a_value_is_not_yet_known():
    def careful(config):
        try:
            return config.get("b", "absent")
        except Exception:
            return "swallowed"

    assert resolve({"a": sample_from(careful), "b": randint(1, 2)}) == {"a": 1, "b": 1}


def test_dependent_values_see_finished_lists_as_they_are_and_unfinished_ones_item_by_item():
    space = {
        "done": (1, 2),
        "list": [
            randint(3, 4),
            sample_from(lambda c: c["list"][0] + c["done"][1]),
            sample_from(lambda c: sum(c["list"][:2])),
            sample_from(lambda c: len(c["list"])),
        ],
        "kind": sample_from(lambda c: type(c["done"]).__name__),
    }
    assert resolve(space)["list"] == [3, 5, 8, 4]
    assert resolve(space)["kind"] == "tuple"


def test_what_a_function_returns_is_copied_and_resolved_in_turn():
    space = {
        "a": sample_from(lambda config: {"sub": config["n"], "new": randint(1, 2)}),
        "b": sample_from(lambda config: config["mixed"]),
        "mixed": [randint(2, 3), {"x": 1}],
        "n": {"x": 1},
    }
    config = resolve(space)
    assert config["a"] == {"sub": {"x": 1}, "new": 1}
    assert config["b"] == [2, {"x": 1}]
    assert type(config["a"]["sub"]) is dict
    assert config["a"]["sub"] is not config["n"]


def test_a_function_may_return_a_list_that_is_not_finished_when_it_is_first_asked():
    space = {
        "a": sample_from(lambda config: config["b"]),
        "b": [sample_from(lambda config: config["c"]), 1],
        "c": randint(5, 6),
    }
    assert resolve(space)["a"] == [5, 1]


def test_values_that_wait_for_each_other_are_named():
    space = {
        "a": {"x": sample_from(lambda config: config["b"])},
        "b": sample_from(lambda config: config["a"]["x"]),
        "c": randint(0, 2),
    }
    with pytest.raises(RecursiveDependencyError, match="got 'a/x', 'b'"):
        resolve(space)


def chain(length: int) -> dict[str, Any]:
    space: dict[str, Any] = {
        f"p{i:02}": sample_from(lambda config, name=f"p{i + 1:02}": config[name]) for i in range(length - 1)
    }
    return {**space, f"p{length - 1:02}": randint(1, 2)}


def test_a_chain_of_twenty_is_followed_and_a_longer_one_is_not():
    assert set(resolve(chain(20)).values()) == {1}
    with pytest.raises(RecursiveDependencyError, match="'p00'"):
        resolve(chain(21))


def test_a_function_that_returns_itself_raises():
    endless = sample_from(lambda: endless)
    with pytest.raises(RecursiveDependencyError, match="'a'"):
        resolve({"a": endless})


def test_a_function_that_raises_is_named():
    with pytest.raises(ConfigError, match=r"sample_from at 'a/b' must not raise, got KeyError: 'x'"):
        resolve({"a": {"b": sample_from(lambda config: config["x"])}})
    with pytest.raises(ConfigError, match="the configuration has no 'x'"):
        resolve({"a": sample_from(lambda spec: spec.config.x)})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([1], "param_space must be a dict"),
        ({"grid_search": [1]}, "param_space must be more than a grid or a domain"),
        ({"a": {"b": {"grid_search": []}}}, "grid_search at 'a/b' must be at least one value"),
        ({"a": {"grid_search": {1, 2}}}, "grid_search at 'a' must be a list of values"),
        ({"a": [{"eval": "1 + 1"}]}, r"param_space at 'a/0' must be written with sample_from"),
        ({"a": choice([{"b": grid_search([1])}])}, "drawn value at 'a/b' must be without grid"),
        ({"a": {"b": uniform}}, r"param_space at 'a/b' must be .* Call it: uniform\(...\)"),
        ({"a": sample_from(lambda: grid_search([1]))}, "drawn value at 'a' must be without grid"),
        ({"x": {"a/b": uniform(0, 1)}}, "keys of param_space at 'x' must be strings without '/'"),
        ({"x": {1: grid_search([1])}}, "keys of param_space at 'x' must be strings without '/'"),
        ({"x": grid_search([1])}, "param_space must be without grid_search, got .'x'"),
    ],
)
def test_a_bad_space_names_the_path(space, message):
    with pytest.raises(ConfigError, match=message):
        resolve(space)


def test_keys_that_lead_to_no_variable_may_be_anything():
    space = {"paths": {"/data": 1, 3: "x"}, "eval": {"eval": 5}, "a": randint(1, 2)}
    assert resolve(space) == {**space, "a": 1}


def test_constants_are_drawn_once_and_the_rest_at_each_point():
    space = {
        "g": grid_search([10, 20]),
        "r": uniform(0, 1),
        "d": sample_from(lambda config: config["g"] + config["r"]),
        "m": choice([{"u": uniform(0, 1), "v": sample_from(lambda config: config["g"])}]),
    }
    variants = Variants(space)
    start = variants.draw_constants(default_rng(0))
    first, second = (variants.draw(p, default_rng(p), start=start).config for p in range(2))
    assert first["r"] == second["r"]
    assert first["m"]["u"] == second["m"]["u"]
    assert (first["m"]["v"], second["m"]["v"]) == (10, 20)
    assert first["d"] == 10 + first["r"]
    assert second["d"] == 20 + first["r"]


def test_a_preset_takes_the_place_of_grids_domains_and_constants():
    space = {
        "a": grid_search([1, 2]),
        "b": {"c": uniform(0, 1), "d": {"e": 1}},
        "f": choice([{"x": 1}]),
        "g": [uniform(0, 1)],
    }
    preset = {"a": {"x": 1}, "b": {"d": {"e": 2}}, "f": {"x": 2}, "g": [1, 2]}
    assert overlay(space, preset) == {
        "a": {"x": 1},
        "b": {"c": uniform(0, 1), "d": {"e": 2}},
        "f": {"x": 2},
        "g": [1, 2],
    }
    assert overlay(space, {"b": "all of it"})["b"] == "all of it"
    assert space["b"]["d"] == {"e": 1}


def test_a_preset_with_an_unknown_key_is_refused():
    with pytest.raises(ConfigError, match=r"got 'b/x'. param_space has no 'b/x' there"):
        overlay({"b": {"c": 1}}, {"b": {"x": 1}})
    with pytest.raises(ConfigError, match="points_to_evaluate must be a list of dicts, got 3"):
        overlay({}, 3)


def test_a_view_is_a_mapping_with_attributes():
    view = PartialConfig({"a": 1, "_b": 2, "get": 3})
    assert dict(view) == {"a": 1, "_b": 2, "get": 3}
    assert len(view) == 3
    assert repr(view) == "View({'a': 1, '_b': 2, 'get': 3})"
    assert view.a == 1
    assert not hasattr(view, "_b")
    assert not hasattr(view, "missing")
    assert copy(view) == view


def test_a_tag_is_short_and_can_be_part_of_a_file_name():
    assert experiment_tag(0, {}) == "0"
    assert experiment_tag(1, {"a/lr": 1e-5, "b": True}) == "1_lr=1e-05,b=True"
    assert experiment_tag(2, {"m": {"k": "x/y", "n": None}, "l": [1, 2]}) == "2_l=1_2,k=x_y,n=None"
    assert experiment_tag(3, {"a/0/1": 1, "0": 2}) == "3_0=2,a_0_1=1"
    long = experiment_tag(4, {f"parameter{i:02}": "x" * 20 for i in range(20)})
    assert len(long) <= 100
    assert long.endswith("x" * 20)
