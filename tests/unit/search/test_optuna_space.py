from __future__ import annotations

from math import nextafter
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.random import SeedSequence
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from dasktune.errors import ConfigError
from dasktune.search.optuna.optuna_space import make_space
from dasktune.search.spaces.parameters import nest
from dasktune.space import (
    Float,
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)

SEED = SeedSequence(1)


def study_of() -> Any:
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))


def drawn(space: Any, count: int = 1) -> list[Any]:
    study, asked = study_of(), make_space(space)
    return [asked.draw(study.ask(), SEED) for _ in range(count)]


@pytest.mark.parametrize(
    "domain",
    [
        uniform(-1, 2),
        Float(0, 1),
        loguniform(1e-4, 1),
        quniform(0, 1, 0.1),
        quniform(-1, 1, 1 / 3),
        qloguniform(0.5, 8, 0.5),
        randint(-3, 4),
        randint(7, 8),
        qrandint(7, 33, 8),
        qrandint(1, 4),
        lograndint(1, 100),
        lograndint(2**61, 2**63 - 1),
        qlograndint(8, 64, 8),
        choice(["a", None, 2, 0.5]),
        choice([1, True, 1.0, 0, False]),
        choice([float("nan"), 2.0]),
        choice([(64,), (64, 64), [1]]),
        choice([{"a": 1}, {"a": 2}]),
        choice([np.arange(2), np.arange(3)]),
        choice(["only"]),
    ],
)
def test_every_value_is_one_of_the_domain_and_leads_back_to_its_parameter(domain: Any):
    asked, study = make_space({"v": domain}), study_of()
    seen = []
    for _ in range(60):
        trial = study.ask()
        value = asked.draw(trial, SEED)["v"]
        seen.append(value)
        back = asked.params_of({"v": value})
        assert list(back) == ["v"]
        fixed = optuna.trial.FixedTrial(back)
        again = asked.draw(fixed, SEED)["v"]
        assert type(again) is type(value)
        assert again is value or again == value
        if isinstance(value, int | float | str | None) and value == value:
            assert domain.is_valid(value)
    if isinstance(domain, Float):
        assert min(seen) >= domain.lower
        assert max(seen) <= domain.upper


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (qrandint(7, 33, 8), {8, 16, 24, 32}),
        (qrandint(1, 4), {1, 2, 3}),
        (randint(1, 4), {1, 2, 3}),
        (quniform(0, 0.3, 0.1), {0.0, 0.1, 0.2, 0.3}),
        (qlograndint(8, 32, 8), {8, 16, 24, 32}),
    ],
)
def test_all_of_a_small_domain_is_reached(domain: Any, values: set[Any]):
    assert {config["v"] for config in drawn({"v": domain}, 200)} == values


def test_bounds_that_are_not_included_are_not_reached():
    study = study_of()
    trial = study.ask()
    make_space({"v": uniform(0, 1)}).draw(trial, SEED)
    assert trial.distributions["v"].high == nextafter(1, 0)


def test_options_that_are_plain_are_shown_as_such_and_others_by_number():
    trial = study_of().ask()
    make_space({"a": choice(["x", "y"]), "b": choice([(1,), (2,)])}).draw(trial, SEED)
    assert trial.distributions["a"].choices == ("x", "y")
    assert trial.distributions["b"].choices == (0, 1)


def test_spaces_have_levels_lists_tuples_and_plain_values():
    space = {"net": {"layers": [randint(1, 2), 5], "pair": (randint(3, 4), "z")}, "epochs": 3}
    assert drawn(space) == [{"net": {"layers": [1, 5], "pair": (3, "z")}, "epochs": 3}]
    params = make_space(space).params_of({"net": {"layers": [1, 5], "pair": (3, "z")}})
    assert params == {"net/layers/0": 1, "net/pair/0": 3}


BRANCHES = {
    "optimizer": choice(
        [
            {"kind": "sgd", "lr": uniform(0, 1)},
            {"kind": "adam", "lr": loguniform(1e-4, 1), "betas": [uniform(0, 1), 0.999]},
            None,
        ]
    )
}


def test_what_is_asked_for_depends_on_what_was_answered():
    asked, study = make_space(BRANCHES), study_of()
    assert asked.conditional
    seen = set()
    for _ in range(30):
        trial = study.ask()
        optimizer = asked.draw(trial, SEED)["optimizer"]
        branch = trial.params["optimizer"]
        own = {name for name in trial.params if name != "optimizer"}
        assert all(name.startswith(f"optimizer[{branch}]/") for name in own)
        assert len(own) == {0: 1, 1: 2, 2: 0}[branch]
        assert asked.params_of({"optimizer": optimizer}) == trial.params
        seen.add(branch)
    assert seen == {0, 1, 2}


def test_a_part_of_a_branch_is_enough_to_know_it():
    params = make_space(BRANCHES).params_of({"optimizer": {"kind": "adam"}})
    assert params == {"optimizer": 1}


def test_functions_are_computed_of_what_was_asked_for():
    space = {
        "a": randint(2, 3),
        "constant": 10,
        "sum": sample_from(lambda config: config["a"] + config["constant"]),
        "random": sample_from(lambda: uniform(0, 1)),
    }
    asked, study = make_space(space), study_of()
    trial = study.ask()
    config = asked.draw(trial, SEED)
    assert config["sum"] == 12
    assert trial.params == {"a": 2}
    assert asked.params_of(config) == {"a": 2}
    again = asked.draw(study.ask(), SEED)
    assert again["random"] == config["random"]
    assert asked.draw(study.ask(), SeedSequence(2))["random"] != config["random"]


def test_functions_in_options_are_computed_where_they_are_chosen():
    space = {"a": randint(2, 3), "b": choice([{"c": sample_from(lambda config: config["a"])}])}
    assert drawn(space) == [{"a": 2, "b": {"c": 2}}]


def test_distributions_of_optuna_may_stand_for_domains():
    space = {
        "x": FloatDistribution(0, 1, step=0.5),
        "deep": {"n": IntDistribution(1, 9, log=True)},
        "c": CategoricalDistribution(["a", "b"]),
        "own": uniform(0, 1),
    }
    for config in drawn(space, 20):
        assert config["x"] in (0, 0.5, 1)
        assert config["deep"]["n"] in range(1, 10)
        assert config["c"] in "ab"
    point = {"x": 0.5, "deep/n": 3, "c": "a"}
    assert make_space(space).params_of(point) == point


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"v": randn()}, "space at 'v' must be a domain that Optuna can search"),
        ({"v": qrandn(0, 1, 0.5)}, "space at 'v' must be a domain that Optuna can search"),
        ({"v": [Float(None, 1)]}, "space at 'v/0': lower and upper must be finite"),
        ({"v": {"grid_search": [1]}}, "space at 'v' must be a domain or a plain value"),
        ({"v": choice([{"w": {"grid_search": [1]}}])}, r"space at 'v\[0\]/w' must be a domain"),
        ({"grid_search": [1]}, "space must be a domain or a plain value"),
        ({"a/b": uniform(0, 1)}, "keys of space must be without '/', got 'a/b'"),
        ({}, "space must be a dict with at least one domain"),
        ({"a": 1}, "space must be a dict with at least one domain"),
        ({"a": sample_from(lambda: 1)}, "space must be a dict with at least one domain"),
        (3, "space must be a dict with domains, or a function"),
    ],
)
def test_what_cannot_be_searched_is_named(space: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make_space(space)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"x": 2}, r"the point at 'x' must be within \(0.0, 1.0\), got 2"),
        ({"z": 2}, "the point must be made of .*, got 'z'"),
        ({"n": 3}, "the point at 'n' must be a dict, got 3"),
        ({"n": {"l": [1, 2]}}, "the point at 'n/l' must be a list of 1 values"),
        ({"c": "d"}, "the point at 'c' must be one of its choices, got 'd'"),
        ({"k": 8}, "the point at 'k' must be 7, got 8"),
        ({"x": 0.5, "x/y": 1}, "'x/y' must be no path through another value"),
    ],
)
def test_points_that_are_none_of_the_space_are_named(point: Any, message: str):
    space = {"x": uniform(0, 1), "n": {"l": [uniform(0, 1)]}, "c": choice(["a", "b"]), "k": 7}
    with pytest.raises(ConfigError, match=message):
        make_space(space).params_of(point)


def test_paths_become_levels():
    told = {"a/b": 1, "a": {"c/d": 2}, "e": 3, 4: 5}
    assert nest(told) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3, 4: 5}
