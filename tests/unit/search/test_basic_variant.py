"""Grid and random search."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import RandomState, SeedSequence, default_rng

from dasktune.errors import ConfigError
from dasktune.search.basic_variant import BasicVariantGenerator
from dasktune.search.search_algorithm import SearchSpec
from dasktune.space import choice, grid_search, randint, sample_from, uniform

SPACE = {"a": grid_search([1, 2]), "b": randint(0, 1000), "c": {"d": grid_search("xyz")}}


def started(
    space: dict[str, Any],
    num_samples: int = 1,
    *,
    seed: int = 0,
    limit: int = 0,
    **options: Any,
) -> BasicVariantGenerator:
    search = BasicVariantGenerator(**options)
    spec = SearchSpec(
        space=space,
        num_samples=num_samples,
        metric=None,
        mode=None,
        seed=SeedSequence(seed),
        max_concurrent=limit,
    )
    search.setup(spec)
    return search


def take(search: BasicVariantGenerator, most: int = 1000) -> list[dict[str, Any]]:
    found = []
    for number in range(most):
        suggestion = search.next_trial(f"t{number}")
        if suggestion.finished:
            break
        found.append(suggestion.config)
    return found


def test_each_point_of_the_grid_is_tried_once_a_sample():
    search = started(SPACE, 2)
    found = take(search)
    assert len(found) == search.total_samples == 12
    points = [(config["a"], config["c"]["d"]) for config in found]
    assert points[:6] == points[6:] == [(a, d) for d in "xyz" for a in (1, 2)]
    assert len({config["b"] for config in found}) == 12
    assert search.next_trial("more").finished


def test_a_random_space_has_as_many_trials_as_samples():
    search = started({"x": uniform(0, 1)}, 5)
    assert search.total_samples == len(take(search)) == 5


def test_minus_one_has_no_end():
    search = started({"a": grid_search([1, 2])}, -1)
    assert search.total_samples is None
    assert [config["a"] for config in take(search, 5)] == [1, 2, 1, 2, 1]


def test_presets_come_first_and_each_takes_one_sample():
    presets = [{"a": 2, "b": 2, "c": {"d": "x"}}, {"a": 1}, {"b": 2}]
    search = started(SPACE, 4, points_to_evaluate=presets)
    found = take(search)
    assert len(found) == search.total_samples == 1 + 3 + 6 + 6
    assert found[0] == {"a": 2, "b": 2, "c": {"d": "x"}}
    assert [(config["a"], config["c"]["d"]) for config in found[1:4]] == [(1, d) for d in "xyz"]
    assert {config["b"] for config in found[4:10]} == {2}


def test_all_presets_are_tried_even_if_there_are_more_than_samples():
    search = started({"a": uniform(0, 1)}, 1, points_to_evaluate=[{"a": 1}, {"a": 2}])
    assert search.total_samples == 2
    assert take(search) == [{"a": 1}, {"a": 2}]


def test_presets_come_before_an_endless_search():
    search = started({"a": choice([7])}, -1, points_to_evaluate=[{"a": 1}])
    assert take(search, 3) == [{"a": 1}, {"a": 7}, {"a": 7}]


def test_a_constant_grid_search_draws_once_a_sample():
    space = {**SPACE, "e": sample_from(lambda config: config["a"] * 1000 + config["b"])}
    found = take(started(space, 3, constant_grid_search=True))
    drawn = [config["b"] for config in found]
    assert drawn == [drawn[0]] * 6 + [drawn[6]] * 6 + [drawn[12]] * 6
    assert len(set(drawn)) == 3
    assert all(config["e"] == config["a"] * 1000 + config["b"] for config in found)


def test_the_limit_counts_trials_that_have_not_ended():
    search = started(SPACE, max_concurrent=2)
    search.next_trial("t0")
    search.next_trial("t1")
    waiting = search.next_trial("t2")
    assert waiting.config is None
    assert not waiting.finished
    search.on_trial_complete("t0", error=True)
    search.on_trial_complete("unknown")
    assert search.next_trial("t2").config is not None
    assert search.next_trial("t3").config is None


def test_the_limit_does_not_count_trials_that_wait_for_others():
    search = started(SPACE, max_concurrent=1)
    search.next_trial("t0")
    search.on_trial_pause("t0")
    assert search.next_trial("t1").config is not None
    search.on_trial_unpause("t0")
    search.on_trial_complete("t1")
    assert search.next_trial("t2").config is None
    search.on_trial_complete("t0")
    assert search.next_trial("t2").config is not None


def test_the_limit_of_the_experiment_is_taken_if_it_has_none_of_its_own():
    assert started(SPACE, limit=3).max_concurrent == 3
    assert started(SPACE, limit=3, max_concurrent=3).max_concurrent == 3
    assert started(SPACE, max_concurrent=2).max_concurrent == 2
    with pytest.raises(ConfigError, match=r"max_concurrent must be equal .*=3, got 2"):
        started(SPACE, limit=3, max_concurrent=2)


@pytest.mark.parametrize("number", [0, -2, 1.5, True, None])
def test_the_number_of_samples_is_positive_or_without_end(number):
    with pytest.raises(ConfigError, match="num_samples must be"):
        started(SPACE, number)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points_to_evaluate": {"a": 1}}, "points_to_evaluate must be a list of dicts"),
        ({"points_to_evaluate": [1]}, "points_to_evaluate must be a list of dicts"),
        ({"points_to_evaluate": [{"z": 1}]}, "param_space has no 'z' there"),
        ({"max_concurrent": -1}, "max_concurrent must be an integer >= 0"),
        ({"random_state": "x"}, "random_state must be"),
    ],
)
def test_bad_arguments_are_refused_before_any_trial(options, message):
    with pytest.raises(ConfigError, match=message):
        started(SPACE, **options)


def test_a_variant_says_what_tells_it_from_the_others():
    search = started({"lr": grid_search([0.1, 0.001]), "fix": 3, "net": {"depth": choice([4])}})
    assert [search.next_trial(name).tag for name in "ab"] == [
        "0_lr=0.1,depth=4",
        "1_lr=0.001,depth=4",
    ]


def test_the_seed_decides_everything():
    space = {"x": uniform(0, 1), "y": randint(0, 10**9)}
    assert take(started(space, 5, seed=1)) == take(started(space, 5, seed=1))
    assert take(started(space, 5, seed=1)) != take(started(space, 5, seed=2))


@pytest.mark.parametrize("source", [lambda: 5, lambda: default_rng(5), lambda: RandomState(5)])
def test_a_random_state_of_its_own_comes_before_the_seed(source):
    space = {"x": uniform(0, 1)}
    one = take(started(space, 3, seed=1, random_state=source()))
    assert one == take(started(space, 3, seed=2, random_state=source()))
    assert one != take(started(space, 3, seed=1))


def test_more_samples_begin_like_fewer():
    space = {"x": uniform(0, 1)}
    assert take(started(space, 9))[:4] == take(started(space, 4))


@settings(max_examples=50)
@given(
    done=st.integers(0, 25),
    constant=st.booleans(),
    presets=st.lists(st.sampled_from([{"a": 1}, {"b": 3}, {"c": {"d": "y"}}]), max_size=2),
    seed=st.integers(0, 2**64),
)
def test_a_restored_search_resumes_with_exactly_the_same_configurations(done, constant, presets, seed):
    options: dict[str, Any] = {"constant_grid_search": constant, "points_to_evaluate": presets}
    whole = started(SPACE, 3, seed=seed, **options)
    take(whole, done)
    whole.on_trial_complete("t0")
    state = json.loads(json.dumps(whole.state_dict()))
    other = started(SPACE, 3, seed=seed + 1, **options)
    other.load_state_dict(state)
    assert other.state_dict() == whole.state_dict() == state
    assert other.next_trial("next") == whole.next_trial("next")
    assert take(other) == take(whole)


def test_a_restored_search_remembers_which_trials_have_not_ended():
    search = started(SPACE, max_concurrent=1)
    search.next_trial("t0")
    other = started(SPACE, max_concurrent=1)
    other.load_state_dict(search.state_dict())
    assert other.next_trial("t1").config is None
    other.on_trial_complete("t0")
    assert other.next_trial("t1").config is not None


def test_a_search_cannot_be_restored_into_a_smaller_grid():
    search = started({"a": grid_search([1, 2, 3])})
    take(search, 2)
    other = started({"a": grid_search([1, 2])})
    with pytest.raises(ConfigError, match="param_space must be a grid of more than 2 points"):
        other.load_state_dict(search.state_dict())


def test_a_space_that_cannot_be_resolved_costs_no_place():
    search = started({"a": sample_from(lambda config: config["a"])})
    for _ in range(2):
        with pytest.raises(ConfigError, match="'a'"):
            search.next_trial("t")
    assert search.state_dict()["number"] == 0


def test_a_huge_grid_costs_what_a_small_one_does():
    space = {f"p{i:02}": grid_search(range(100)) for i in range(12)}
    search = started(space, 2)
    assert search.total_samples == 2 * 100**12
    search.load_state_dict({**search.state_dict(), "point": 100**12 - 1})
    assert set(search.next_trial("t0").config.values()) == {99}
    assert set(search.next_trial("t1").config.values()) == {0}
