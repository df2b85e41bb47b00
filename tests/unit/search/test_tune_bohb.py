"""The model of BOHB, and what its searcher learns from."""

from __future__ import annotations

import json
from math import inf, nan

import numpy as np
import pytest
from numpy.random import SeedSequence, default_rng

from dasktune.errors import ConfigError
from dasktune.search.bohb import TuneBOHB
from dasktune.search.bohb.model import BOHBConfig, MixedKDE, has_enough, propose
from dasktune.search.bohb.observations import Observations
from dasktune.space import choice, grid_search, loguniform, randint, randn, sample_from, uniform

SPACE = {"x": uniform(-1, 1), "lr": loguniform(1e-4, 1)}
RANGES = np.array([0, 0])


def made(space=SPACE, **arguments):
    arguments = {"metric": "loss", "mode": "min", **arguments}
    searcher = TuneBOHB(**arguments)
    searcher.set_search_properties(None, None, space, seed=SeedSequence(0))
    return searcher


def observations_of(searcher):
    """Return what the searcher has learnt, from its stored state."""
    found = Observations()
    found.load_state_dict(searcher.state_dict()["evidence"])
    return found


def losses_at(searcher, budget):
    return observations_of(searcher).at(budget)[1].tolist()


def result(loss, time=1, **more):
    return {"loss": loss, "training_iteration": time, **more}


def test_trials_of_two_experiments_with_the_same_names_are_told_apart():
    # Experiments with equal seeds name their trials alike.
    searcher = made()
    for experiment, times in enumerate([8, 2, 2]):
        searcher.set_search_properties(None, None, SPACE, seed=SeedSequence(0))
        for name in ("a", "b"):
            searcher.suggest(name)
            for time in range(1, times + 1):
                searcher.on_trial_result(name, result(experiment, time))
            searcher.on_trial_complete(name, result(experiment, times), error=name == "b")
    assert len(np.unique(observations_of(searcher).at(1)[0], axis=0)) == 6
    assert losses_at(searcher, 1) == [0, 0, 1, 1, 2, 2]
    # The failed ones of the later experiments count as bad at the budgets of the first one.
    assert losses_at(searcher, 8) == [0, 0, inf, inf]


def test_a_density_is_that_of_product_kernels():
    points = np.array([[0.2, 0], [0.6, 1], [0.7, 1]])
    density = MixedKDE(points, np.array([0, 3]), min_bandwidth=1e-3)
    h = 1.06 * points.std(axis=0) * 3 ** (-1 / 6)

    def kernel(x, k):
        gaussian = np.exp(-0.5 * ((x - points[:, 0]) / h[0]) ** 2) / (h[0] * np.sqrt(2 * np.pi))
        return (gaussian * np.where(points[:, 1] == k, 1 - h[1], h[1] / 2)).mean()

    where = np.array([[0.3, 0], [0.5, 2]])
    assert np.allclose(density.log_pdf(where), np.log([kernel(0.3, 0), kernel(0.5, 2)]))


def test_a_density_integrates_to_one_over_all_options():
    density = MixedKDE(np.array([[0.4, 0], [0.5, 1], [0.6, 1]]), np.array([0, 2]), min_bandwidth=1e-3)
    grid = np.linspace(-3, 4, 20_001)
    sides = [np.column_stack([grid, np.full_like(grid, option)]) for option in (0, 1)]
    total = sum(np.exp(density.log_pdf(side)).sum() for side in sides) * (grid[1] - grid[0])
    assert total == pytest.approx(1, abs=1e-6)


def test_a_density_far_away_is_small_and_not_nothing():
    density = MixedKDE(np.array([[0.5], [0.5]]), np.array([0]), min_bandwidth=1e-3)
    near, far = density.log_pdf(np.array([[0.6], [1.0]]))
    assert -inf < far < near


def test_candidates_stay_in_the_space_and_try_other_options():
    points = np.array([[0.0, 2], [1.0, 2], [0.01, 2]])
    density = MixedKDE(points, np.array([0, 3]), min_bandwidth=0.05)
    drawn = density.sample(500, default_rng(0), factor=3)
    assert ((drawn[:, 0] >= 0) & (drawn[:, 0] <= 1)).all()
    assert set(drawn[:, 1]) == {0, 1, 2}
    share = (drawn[:, 1] != 2).mean()
    assert share == pytest.approx(0.15, abs=0.06)


def test_the_best_candidate_is_where_good_ones_are():
    rng = default_rng(1)
    points = rng.random((60, 2))
    losses = ((points - 0.3) ** 2).sum(axis=1)
    found = [propose(points, losses, RANGES, BOHBConfig(), default_rng(k)) for k in range(10)]
    assert np.abs(np.mean(found, axis=0) - 0.3).max() < 0.15


def test_good_ones_are_never_those_that_failed():
    points = np.array([[0.1, 0.1], [0.12, 0.1], [0.1, 0.14], [0.9, 0.9], [0.88, 0.9]])
    losses = np.array([3.0, 2.0, 1.0, inf, inf])
    config = BOHBConfig(bandwidth_factor=1)
    for seed in range(20):
        assert propose(points, losses, RANGES, config, default_rng(seed)).max() < 0.5


def test_it_takes_two_more_than_the_least_number_of_points_and_enough_that_did_not_fail():
    assert has_enough(np.array([1.0, 2.0, 3.0, inf, inf]), least=3)
    assert not has_enough(np.array([1.0, 2.0, 3.0, 4.0]), least=3)
    assert not has_enough(np.array([1.0, 2.0, inf, inf, inf]), least=3)


@pytest.mark.parametrize("options", [np.array([0, 0]), np.array([0, 3])])
def test_parameters_that_no_good_one_has_are_drawn(options):
    points = np.column_stack([np.linspace(0, 1, 8), [nan] * 8])
    found = propose(points, np.arange(8.0), options, BOHBConfig(), default_rng(0))
    assert np.isfinite(found).all()


def test_a_failure_counts_at_every_budget():
    evidence = Observations()
    evidence.observe("a", [0.5], budget=1, loss=0.5)
    evidence.observe("b", [0.6], budget=1, loss=0.4)
    evidence.observe("b", [0.6], budget=3, loss=nan)
    evidence.fail("a", [0.5])
    assert evidence.at(1)[1].tolist() == [0.5, 0.4]
    assert evidence.at(3)[1].tolist() == [inf, inf]
    assert evidence.budgets == [3, 1]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"top": 3}, "bohb_config must be a dict with some of"),
        ("fast", "bohb_config must be a dict"),
        ({"min_points_in_model": 0}, "min_points_in_model must be"),
        ({"top_n_percent": 0}, "top_n_percent must be from 1 to 99"),
        ({"num_samples": 0}, "num_samples must be"),
        ({"random_fraction": 1.5}, "random_fraction must be from 0 to 1"),
        ({"bandwidth_factor": 0}, "bandwidth_factor must be finite and > 0"),
        ({"min_bandwidth": inf}, "min_bandwidth must be finite and > 0"),
    ],
)
def test_wrong_parameters_of_the_method_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        TuneBOHB(bohb_config=given)
    assert BOHBConfig(min_points_in_model=9).min_points(3) == 9
    assert BOHBConfig(min_points_in_model=2).min_points(3) == 4


@pytest.mark.parametrize(
    ("space", "arguments", "sentence"),
    [
        ({"x": grid_search([1, 2])}, {}, "param_space must be without grid_search"),
        ({"x": randn()}, {}, "param_space at 'x' must be a domain that TuneBOHB can search"),
        ({"x": 1}, {}, "param_space must be a dict with at least one domain"),
        ({"x": choice([1])}, {}, "at least one domain of several values"),
        (SPACE, {"metric": ["a", "b"], "mode": ["min", "min"]}, "metric must be the name of one"),
        (SPACE, {"mode": None}, "mode must be"),
        (SPACE, {"max_concurrent": -1}, "max_concurrent must be"),
        (SPACE, {"time_attr": 3}, "time_attr must be"),
    ],
)
def test_what_it_cannot_search_is_refused(space, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        made(space, **arguments)


def test_a_scheduler_tells_budgets_and_then_only_those_count():
    searcher = made()
    for name in "abc":
        searcher.suggest(name)
    searcher.on_trial_result("a", result(0.5, 1))
    searcher.on_trial_result("b", result(0.4, 3, **{"hyperband_info/budget": 3}))
    searcher.on_trial_result("b", result(0.3, 4))
    searcher.on_trial_complete("c", result(0.2, 7))
    assert observations_of(searcher).budgets == [3]
    assert losses_at(searcher, 3) == [0.4]
    searcher.on_trial_result("x", result(0.1, 3, **{"hyperband_info/budget": 3}))
    assert losses_at(searcher, 3) == [0.4]


def test_without_a_scheduler_that_tells_powers_of_two_count_and_the_end():
    searcher = made(mode="max")
    searcher.suggest("a")
    for time in (0.5, 1, 2, 3, 5, 6):
        searcher.on_trial_result("a", result(time / 10, time))
    searcher.on_trial_result("a", {"loss": 9.0})
    searcher.on_trial_complete("a", result(0.7, 7))
    assert {b: losses_at(searcher, b) for b in observations_of(searcher).budgets} == {
        7: [-0.7],
        4: [-0.5],
        2: [-0.2],
        1: [-0.1],
    }
    searcher.suggest("b")
    searcher.on_trial_complete("b", {"loss": 0.9})
    assert losses_at(searcher, 0) == [-0.9]


def test_the_model_is_that_of_the_largest_budget_with_enough():
    searcher = made(bohb_config={"random_fraction": 0, "bandwidth_factor": 0.1})
    for number in range(12):
        name = f"t{number}"
        config = searcher.suggest(name)
        # At the large budget, it is better to the right; at the small one, to the left.
        searcher.on_trial_result(name, result(config["x"], 1))
        searcher.on_trial_complete(name, result(-config["x"], 9))
    assert np.mean([searcher.suggest(f"u{number}")["x"] for number in range(10)]) > 0.3


def test_what_failed_or_has_no_value_is_bad_and_what_was_taken_away_is_forgotten():
    searcher = made()
    for name in "abcd":
        searcher.suggest(name)
    searcher.on_trial_complete("a", result(0.5))
    searcher.on_trial_complete("b", None, error=True)
    searcher.on_trial_complete("c", result(nan))
    searcher.on_trial_complete("d", None)
    searcher.on_trial_complete("never seen", None, error=True)
    assert losses_at(searcher, 1) == [0.5, inf, inf]


def test_inner_parameters_are_learnt_of_where_they_are():
    space = {
        "kind": choice(["plain", {"beta": uniform(0, 1), "n": randint(1, 100)}]),
        "twice": sample_from(lambda config: 2),
    }
    searcher = made(space, bohb_config={"random_fraction": 0})
    configs = []
    for number in range(60):
        name = f"t{number}"
        kind = searcher.suggest(name)["kind"]
        configs.append(kind)
        loss = 5.0 if kind == "plain" else abs(kind["beta"] - 0.8)
        searcher.on_trial_complete(name, result(loss))
    late = [kind for kind in configs[30:] if kind != "plain"]
    assert len(late) > 20
    assert abs(np.median([kind["beta"] for kind in late]) - 0.8) < 0.15


def test_a_preset_outside_of_the_space_is_run_and_not_learnt():
    searcher = made(points_to_evaluate=[{"x": 7.0}])
    assert searcher.suggest("a")["x"] == 7.0
    searcher.on_trial_complete("a", result(0.1))
    assert observations_of(searcher).budgets == []


def test_its_limit_leaves_out_those_that_wait():
    searcher = made()
    assert searcher.set_max_concurrency(2)
    assert searcher.suggest("a")
    assert searcher.suggest("b")
    assert searcher.suggest("c") is None
    searcher.on_pause("a")
    searcher.on_pause("never seen")
    assert searcher.suggest("c")
    searcher.on_unpause("a")
    assert searcher.suggest("d") is None


def test_it_learns_from_what_was_evaluated_elsewhere():
    searcher = TuneBOHB(SPACE, metric="loss", mode="min")
    point = {"x": 0.5, "lr": 0.1}
    searcher.add_evaluated_point(point, 0.3)
    searcher.set_search_properties(None, None, {}, seed=SeedSequence(0))
    searcher.add_evaluated_point(point, 0.2, intermediate_values=[0.6, 0.5, 0.4])
    searcher.add_evaluated_point(point, 0.2, pruned=True)
    searcher.add_evaluated_point(point, nan, error=True)
    found = {budget: losses_at(searcher, budget) for budget in observations_of(searcher).budgets}
    assert found == {3: [0.4, inf], 2: [0.5, inf], 1: [0.6, inf], 0: [0.3, inf]}
    with pytest.raises(ConfigError, match="parameters must be a point of the search space"):
        searcher.add_evaluated_point({"x": 5, "lr": 0.1}, 0.3)


def test_another_configuration_takes_the_place_of_its_own():
    searcher = made()
    searcher.suggest("a")
    searcher.adopt("a", {"x": 1.0, "lr": 1.0})
    searcher.on_trial_complete("a", result(0.1))
    assert observations_of(searcher).at(1)[0] == pytest.approx(np.array([[1.0, 1.0]]))
    searcher.suggest("b")
    searcher.adopt("b", None)
    searcher.on_trial_complete("b", result(0.1))
    assert losses_at(searcher, 1) == [0.1]


def test_its_state_is_plain_with_failures_and_conditions():
    space = {"kind": choice([1, {"beta": uniform(0, 1)}])}
    searcher = made(space)
    for name in "abcdef":
        searcher.suggest(name)
    searcher.on_trial_complete("a", result(inf))
    searcher.on_trial_complete("b", None, error=True)
    text = json.dumps(searcher.state_dict(), allow_nan=False)
    other = made(space)
    other.load_state_dict(json.loads(text))
    assert json.dumps(other.state_dict(), allow_nan=False) == text
    assert other.suggest("g") == searcher.suggest("g")
