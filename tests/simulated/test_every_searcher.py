"""What holds for each searcher: known points, spaces that cannot be searched, undefined ends."""

from __future__ import annotations

from math import inf, nan

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import (
    AxSearch,
    BayesOptSearch,
    ConcurrencyLimiter,
    GaussianProcessSearch,
    HyperOptSearch,
    OptunaSearch,
    QuasiRandomSearch,
    Repeater,
    SearchGenerator,
    SearchSpec,
    TuneBOHB,
    WarmStart,
)
from dasktune.space import choice, grid_search, randn, uniform


def needing(module, kind, **few):
    """Return a maker of searchers that have a model after six trials."""

    def made(space=None, **arguments):
        pytest.importorskip(module)
        return kind(space, **few, **arguments)

    return made


def limited(space=None, **arguments):
    return ConcurrencyLimiter(TuneBOHB(space, **arguments), 8)


def repeated(space=None, **arguments):
    return Repeater(TuneBOHB(space, **arguments), repeat=1, set_index=False)


def warm(space=None, **arguments):
    earlier = [({"x": number / 20, "z": number}, number % 7) for number in range(20)]
    return WarmStart([earlier], space, **arguments)


SEARCHERS = {
    "quasi-random": needing("scipy", QuasiRandomSearch),
    "bohb": TuneBOHB,
    "warm-start": needing("sklearn", warm),
    "gp": needing("scipy", GaussianProcessSearch, n_initial_points=6),
    "optuna": needing("optuna", OptunaSearch),
    "hyperopt": needing("hyperopt", HyperOptSearch, n_initial_points=6),
    "bayesopt": needing("bayes_opt", BayesOptSearch, random_search_steps=6),
    "ax": needing("ax", AxSearch, initialization_budget=6),
    "limiter": limited,
    "repeater": repeated,
}

SPACE = {"x": uniform(0, 1), "model": {"y": uniform(0, 1)}, "epochs": 9}

# Ax and torch warn of what is deprecated of their own.
MARKS = {"ax": pytest.mark.filterwarnings("ignore"), "bayesopt": pytest.mark.slow}
each = pytest.mark.parametrize("name", [pytest.param(one, marks=MARKS.get(one, ())) for one in SEARCHERS])


def set_up(searcher, space=SPACE, mode="min"):
    search = SearchGenerator(searcher)
    search.setup(SearchSpec(space=space, num_samples=20, metric="loss", mode=mode, seed=SeedSequence(2)))
    return search


@each
def test_presets_come_first_and_what_they_leave_open_is_chosen(name):
    presets = [{"x": 0.25, "model": {"y": 0.5}}, {"model": {"y": 0.125}}]
    search = set_up(SEARCHERS[name](points_to_evaluate=presets))
    first, second, third = [search.next_trial(f"t{number}").config for number in range(3)]
    assert first == {"x": 0.25, "model": {"y": 0.5}, "epochs": 9}
    assert (second["model"], second["epochs"]) == ({"y": 0.125}, 9)
    assert 0 <= second["x"] <= 1
    assert third["model"]["y"] not in (0.5, 0.125)


@each
def test_points_that_were_evaluated_elsewhere_may_come_at_any_time(name):
    searcher = SEARCHERS[name]()
    known = {"x": 0.25, "model": {"y": 0.5}, "epochs": 9}
    searcher.add_evaluated_point(known, 0.5)
    search = set_up(searcher)
    searcher.add_evaluated_point({**known, "x": 0.5}, 0.25, intermediate_values=[1.0, 0.25])
    searcher.add_evaluated_point({**known, "x": 0.75}, nan, error=True)
    searcher.add_evaluated_point({**known, "x": 0.875}, 0.75, pruned=True)
    # They are learnt and not run.
    assert search.next_trial("a").config["x"] not in (0.25, 0.5, 0.75, 0.875)


@each
@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ({"a": {"x": grid_search([1, 2])}}, r"'?a/x.*use choice\(\)|use choice\(\)"),
        ({}, "param_space must be a dict with at least one domain"),
        ({"a": {"b": 3}}, "param_space must be a dict with at least one domain"),
    ],
)
def test_a_space_with_a_grid_or_with_nothing_to_search_is_refused(name, space, sentence):
    with pytest.raises(ConfigError, match=sentence):
        set_up(SEARCHERS[name](), space)


@each
def test_a_domain_that_it_cannot_search_is_named(name):
    if name == "quasi-random":
        pytest.skip("it can draw from any domain")
    with pytest.raises(ConfigError, match=r"param_space at 'a/x' must be a domain that .* search"):
        set_up(SEARCHERS[name](), {"a": {"x": randn()}})


@each
def test_a_space_that_is_given_twice_is_refused_and_plain_values_are_not(name):
    own = {"x": uniform(0, 1), "y": uniform(0, 1)}
    with pytest.raises(ConfigError, match="param_space must be made of plain values"):
        set_up(SEARCHERS[name](own), SPACE)
    config = set_up(SEARCHERS[name](own), {"epochs": 3}).next_trial("a").config
    assert (config["epochs"], {*config}) == (3, {"x", "y", "epochs"})


@each
def test_a_choice_of_one_is_no_obstacle_beside_something_to_search(name):
    if name == "bayesopt":
        pytest.skip("it knows ranges only")
    config = set_up(SEARCHERS[name](), {"x": uniform(0, 1), "k": choice([5])}).next_trial("a").config
    assert config["k"] == 5


@each
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_value_that_is_undefined_is_as_good_as_none(name, mode):
    if name in ("bohb", "gp", "limiter", "repeater", "warm-start"):
        # At its budget it is a bad one, and a failure is bad elsewhere; see their own tests.
        pytest.skip("BOHB, the Gaussian process and WarmStart know when a trial had no value")

    def lived(undefined, error):
        search, configs = set_up(SEARCHERS[name](), mode=mode), []
        for number in range(8):
            configs.append(search.next_trial(f"t{number}").config)
            loss = configs[-1]["x"] if number % 2 else undefined
            result = {"loss": loss, "training_iteration": 1} if loss is not None else None
            search.on_trial_complete(f"t{number}", result, error=error and number % 2 == 0)
        return configs

    failed = lived(None, True)
    for undefined in (nan, inf, -inf, "none", None):
        assert lived(undefined, False) == failed
