"""Sequences that are more even than chance."""

from __future__ import annotations

import sys
from statistics import mean

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import QuasiRandomSearch, SearchGenerator
from dasktune.search.search_algorithm import SearchSpec
from dasktune.space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qrandint,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)


def searching(searcher, space, seed=0, num_samples=-1):
    search = SearchGenerator(searcher)
    search.setup(
        SearchSpec(space=space, num_samples=num_samples, metric=None, mode=None, seed=SeedSequence(seed))
    )
    return search


def drawn(search, number):
    return [search.next_trial(f"t{i}").config for i in range(number)]


@pytest.mark.parametrize("method", ["sobol", "halton"])
@pytest.mark.parametrize("scramble", [True, False])
def test_every_part_of_every_axis_gets_its_share(method, scramble):
    space = {
        "x": uniform(-1, 1),
        "lr": loguniform(1e-4, 1e4),
        "n": randint(0, 4),
        "act": choice(["a", "b"]),
    }
    configs = drawn(searching(QuasiRandomSearch(method=method, scramble=scramble), space), 64)
    assert abs(sum(c["x"] < 0 for c in configs) - 32) <= 3
    assert abs(sum(c["lr"] < 1 for c in configs) - 32) <= 3
    assert abs(sum(c["act"] == "a" for c in configs) - 32) <= 3
    assert all(abs(sum(c["n"] == k for c in configs) - 16) <= 3 for k in range(4))


def test_values_are_those_that_could_be_drawn_at_random():
    space = {
        "q": quniform(0, 1, 0.25),
        "i": qrandint(0, 10, 5),
        "k": lograndint(1, 1000),
        "wide": randint(-(2**63), 2**63 - 1),
        "z": randn(3, 2),
    }
    configs = drawn(searching(QuasiRandomSearch(), space), 256)
    for name in ("q", "i", "k", "wide"):
        assert all(space[name].is_valid(config[name]) for config in configs)
    assert {config["q"] for config in configs} == {0, 0.25, 0.5, 0.75, 1}
    assert mean(config["z"] for config in configs) == pytest.approx(3, abs=0.05)


def test_the_first_point_of_all_is_finite_without_scrambling():
    [config] = drawn(searching(QuasiRandomSearch(scramble=False), {"z": randn()}), 1)
    assert -7 < config["z"] < 7


def test_what_is_inside_a_choice_and_functions_are_drawn_at_random():
    space = {
        "model": choice([{"depth": randint(1, 9)}, {"width": uniform(0, 1)}]),
        "double": sample_from(lambda config: 2 * config["n"]),
        "layers": [randint(1, 3), 7],
        "n": randint(0, 9),
        "constant": 5,
    }
    for config in drawn(searching(QuasiRandomSearch(), space), 20):
        assert config["double"] == 2 * config["n"]
        assert list(config["model"]) in (["depth"], ["width"])
        assert config["layers"][0] in (1, 2)
        assert config["layers"][1] == 7
        assert config["constant"] == 5


def test_presets_come_first_and_shift_the_sequence():
    space = {"x": uniform(0, 1), "y": uniform(0, 1)}
    plain = drawn(searching(QuasiRandomSearch(), space), 3)
    shifted = searching(QuasiRandomSearch(points_to_evaluate=[{"x": 0.5}]), space)
    first, *others = drawn(shifted, 4)
    assert first["x"] == 0.5
    assert others == plain


def test_its_own_seed_counts_more_than_the_experiments():
    space = {"x": uniform(0, 1)}
    assert drawn(searching(QuasiRandomSearch(), space, seed=1), 2) != drawn(
        searching(QuasiRandomSearch(), space, seed=2), 2
    )
    assert drawn(searching(QuasiRandomSearch(seed=7), space, seed=1), 2) == drawn(
        searching(QuasiRandomSearch(seed=7), space, seed=2), 2
    )


def test_a_tag_names_what_was_searched_only():
    search = searching(QuasiRandomSearch(), {"x": randint(3, 4), "constant": 5})
    assert search.next_trial("a").tag == "0_x=3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "sobel"}, "method must be 'sobol' or 'halton', got 'sobel'"),
        ({"scramble": 1}, "scramble must be a bool, got 1"),
        ({"points_to_evaluate": 3}, "points_to_evaluate must be a list of dicts, got 3"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"space": {"x": grid_search([1])}}, "space must be without grid_search, got 'x'"),
        ({"space": {"x": 1}}, "space must be a dict with at least one domain, got {'x': 1}"),
        ({"space": [1]}, r"must be a dict, got \[1\]"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        QuasiRandomSearch(**arguments)


@pytest.mark.parametrize("space", [{}, {"x": 3}, {"f": sample_from(lambda: 3)}])
def test_a_space_with_nothing_to_search_is_refused(space):
    with pytest.raises(ConfigError, match="param_space must be a dict with at least one domain"):
        searching(QuasiRandomSearch(), space)


def test_a_grid_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"param_space\['m/x'\] must be a domain or a plain"):
        searching(QuasiRandomSearch(), {"m": {"x": grid_search([1, 2])}, "y": uniform(0, 1)})


def test_a_space_that_is_given_twice_is_refused():
    with pytest.raises(ConfigError, match="QuasiRandomSearch has its own search space"):
        searching(QuasiRandomSearch({"x": uniform(0, 1)}), {"x": uniform(0, 1)})


def test_a_range_without_end_is_refused():
    from dasktune.space import Float

    with pytest.raises(ConfigError, match=r"\['m/x'\] must be a domain that can .* finite"):
        searching(QuasiRandomSearch(), {"m": {"x": Float(0, None)}})


def test_scipy_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ConfigError, match="pip install scipy"):
        QuasiRandomSearch()
