"""The Gaussian process over learning curves, and what its searcher learns from."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
import scipy.linalg
from numpy.random import SeedSequence, default_rng
from scipy.linalg import cholesky
from scipy.optimize import check_grad
from scipy.stats import norm

import dasktune.search.gp.gaussian_process_search as module
from dasktune.errors import ConfigError
from dasktune.search import FINISHED, STOPPED_EARLY, GaussianProcessSearch, create_searcher
from dasktune.search.gp.kernel_features import KernelFeatures
from dasktune.search.gp.resource_gp import (
    ResourceGP,
    expected_improvement,
    fit_hyperparameters,
    negative_log_density,
    prior_mean,
)
from dasktune.search.gp.rung_losses import RungLosses
from dasktune.search.spaces.flat_space import FlatSpace
from dasktune.search.spaces.unit_cube import UnitCube, neighbours, random_points
from dasktune.space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    randint,
    randn,
    sample_from,
    uniform,
)

SPACE = {"x": uniform(-1, 1), "lr": loguniform(1e-4, 1)}
NESTED = {
    "x": uniform(0, 1),
    "kind": choice(["plain", {"beta": uniform(0, 1), "inner": choice(["a", {"n": randint(1, 9)}])}]),
}


def made(space=SPACE, **arguments):
    arguments = {"metric": "loss", "mode": "min", **arguments}
    searcher = GaussianProcessSearch(**arguments)
    searcher.set_search_properties(None, None, space, seed=SeedSequence(0))
    return searcher


def result(loss, time=1, **more):
    return {"loss": loss, "training_iteration": time, **more}


def evidence_of(searcher):
    """Return what the searcher has learnt, from its stored state."""
    losses = RungLosses(1, 4)
    losses.load_state_dict(searcher.state_dict()["evidence"])
    return losses


# The process


def data(n=12, seed=0):
    rng = default_rng(seed)
    vectors = rng.random((n, 3))
    return vectors, rng.integers(3, size=n) / 4, rng.standard_normal(n)


OWNERS = np.array([0, 1, 1])


def kernel(theta, a, u, b, v):
    """The covariance of two results, as its formula says."""
    lengths = np.exp(theta[:2])[OWNERS]
    r = np.sqrt(5) * np.linalg.norm((a - b) / lengths)
    w, length = 1 / (1 + np.exp(-theta[2])), np.exp(theta[3])
    return (1 + r + r**2 / 3) * np.exp(-r) * (w + (1 - w) * np.exp(-abs(u - v) / length))


def test_predictions_are_those_of_the_book():
    vectors, u, z = data()
    theta = np.array([-0.3, 0.2, 0.4, -0.5, -2.0])
    process = ResourceGP(theta, OWNERS, vectors, u, z)
    where, then = default_rng(1).random((4, 3)), np.array([0.0, 0.25, 0.5, 1.0])
    matrix = np.array(
        [
            [kernel(theta, a, s, b, t) for b, t in zip(vectors, u, strict=True)]
            for a, s in zip(vectors, u, strict=True)
        ]
    )
    noisy = matrix + np.eye(len(z)) * (np.exp(-2) + 1e-6)
    between = np.array(
        [
            [kernel(theta, a, s, b, t) for b, t in zip(vectors, u, strict=True)]
            for a, s in zip(where, then, strict=True)
        ]
    )
    mean, variance = process.predict(where, then)
    assert mean == pytest.approx(between @ np.linalg.solve(noisy, z))
    assert variance == pytest.approx(1 - np.diag(between @ np.linalg.solve(noisy, between.T)))


def test_the_gradient_of_the_fit_is_right():
    vectors, u, z = data(9)
    squares = np.zeros((2, 9, 9))
    for column, owner in zip(vectors.T, OWNERS, strict=True):
        squares[owner] += (column[:, None] - column[None]) ** 2
    rest = (squares, np.abs(u[:, None] - u[None]), z)

    def density(theta):
        return negative_log_density(theta, *rest)[0]

    def gradient(theta):
        return negative_log_density(theta, *rest)[1]

    for theta in (prior_mean(2), np.array([0.5, -1.0, 0.7, -0.4, -1.5])):
        assert check_grad(density, gradient, theta) < 1e-4 * (1 + np.abs(gradient(theta)).max())


def test_the_density_is_that_of_the_losses_and_the_priors():
    vectors, u, z = data(7)
    theta = np.array([0.1, -0.2, 0.3, -0.4, -1.0])
    squares = np.zeros((2, 7, 7))
    for column, owner in zip(vectors.T, OWNERS, strict=True):
        squares[owner] += (column[:, None] - column[None]) ** 2
    found, _ = negative_log_density(theta, squares, np.abs(u[:, None] - u[None]), z)
    matrix = np.array(
        [
            [kernel(theta, a, s, b, t) for b, t in zip(vectors, u, strict=True)]
            for a, s in zip(vectors, u, strict=True)
        ]
    )
    matrix += np.eye(7) * (np.exp(-1) + 1e-6)
    factor = cholesky(matrix, lower=True)
    middle, sd = np.log([0.6, 0.6, 1, 1, 0.05]), np.array([0.8, 0.8, 1, 1, 1])
    expected = 0.5 * z @ np.linalg.solve(matrix, z) + np.log(np.diag(factor)).sum()
    assert found == pytest.approx(expected + 0.5 * (((theta - middle) / sd) ** 2).sum())


def test_a_fit_finds_which_parameter_matters():
    rng = default_rng(2)
    vectors = rng.random((60, 2))
    z = np.sin(6 * vectors[:, 0])
    theta = prior_mean(2)
    for _ in range(5):
        theta = fit_hyperparameters(theta, vectors, np.array([0, 1]), np.zeros(60), z)
    assert theta[0] < theta[1] - 1
    assert theta[-1] < np.log(0.05)


def test_a_believer_keeps_the_means_and_is_surer_near_what_is_pending():
    vectors, u, z = data()
    process = ResourceGP(prior_mean(2), OWNERS, vectors, u, z)
    pending = np.array([[0.9, 0.9, 0.9]])
    believer = process.believing(pending, np.array([0.25]))
    where = np.array([[0.88, 0.9, 0.9], [0.1, 0.1, 0.1]])
    before, after = (one.predict(where, np.array([0.25, 0.25])) for one in (process, believer))
    assert after[0] == pytest.approx(before[0], abs=1e-9)
    assert after[1][0] < 0.5 * before[1][0]
    assert after[1][1] <= before[1][1] + 1e-12
    # At another rung it is less sure.
    assert believer.predict(where, np.array([1.0, 1.0]))[1][0] > after[1][0]
    assert process.believing(np.empty((0, 3)), np.empty(0)) is process


def test_expected_improvement_is_that_of_its_formula():
    mean, sd, best = np.array([0.0, 1.0, -50.0, 60.0]), np.array([1.0, 0.5, 1.0, 1.0]), 0.3
    t = (best - mean) / sd
    expected = sd * (t * norm.cdf(t) + norm.pdf(t))
    assert expected_improvement(mean, sd**2, best) == pytest.approx(expected)


# Features and candidates


def space_of(domains):
    flat = FlatSpace(domains, "X")
    return flat, UnitCube(flat.parameters), KernelFeatures(flat.parameters)


def test_distances_are_those_of_values_options_and_conditions():
    flat, cube, features = space_of(NESTED)
    assert [one.name for one in flat.parameters] == [
        "x",
        "kind",
        "kind[1]/beta",
        "kind[1]/inner",
        "kind[1]/inner[1]/n",
    ]
    points = [
        {"x": 0.5, "kind": "plain"},
        {"x": 0.2, "kind": "plain"},
        {"x": 0.5, "kind": {"beta": 0.2, "inner": "a"}},
        {"x": 0.5, "kind": {"beta": 0.5, "inner": "a"}},
        {"x": 0.5, "kind": {"beta": 0.5, "inner": {"n": 1}}},
        {"x": 0.5, "kind": {"beta": 0.5, "inner": {"n": 8}}},
    ]
    array = np.array([cube.vector(flat.values(point)) for point in points], dtype=float)
    vectors = features.vectors(array)
    owned = [
        (vectors[:, None, features.owners == index] - vectors[None, :, features.owners == index]) ** 2
        for index in range(5)
    ]
    x, kind, beta, inner, n = (np.sqrt(one.sum(axis=2)) for one in owned)
    assert x[0, 1] == pytest.approx(0.3)
    assert kind[0, 2] == pytest.approx(0.7 * np.sqrt(2))
    assert (beta[0, 1], beta[0, 2], beta[2, 3]) == pytest.approx((0, 1, 0.3), abs=2e-3)
    assert (inner[0, 1], inner[0, 2], inner[3, 4]) == pytest.approx((0, 0.7, 0.7 * np.sqrt(2)))
    assert (n[2, 3], n[3, 4], n[4, 5]) == pytest.approx((0, 1, 7 / 8), abs=0.04)
    # Positive definite, although parameters come and go.
    process = ResourceGP(prior_mean(5), features.owners, vectors, np.zeros(6), np.zeros(6))
    covariance = process.covariance(vectors, np.zeros(6), vectors, np.zeros(6))
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_inactive_parameters_are_those_whose_condition_does_not_hold():
    _, _, features = space_of(NESTED)
    points = np.array([[0.1, 0, 0.2, 1, 0.3], [0.1, 1, 0.2, 0, 0.3], [0.1, 1, 0.2, 1, 0.3]])
    assert np.isnan(features.without_inactive(points)).tolist() == [
        [False, False, True, True, True],
        [False, False, False, False, True],
        [False] * 5,
    ]
    assert not np.isnan(points).any()


def test_rounded_points_are_the_vectors_of_their_values():
    flat, cube, _ = space_of(
        {"n": randint(2, 9), "w": lograndint(1, 100), "c": choice("abc"), "x": uniform(2, 3)}
    )
    points = random_points(cube.options, 200, default_rng(0))
    expected = [cube.vector(cube.values(point)) for point in points]
    assert cube.rounded(points) == pytest.approx(np.array(expected, dtype=float))
    # The upper end belongs to the last integer.
    assert cube.rounded(np.array([[1.0, 1.0, 0, 1.0]]))[0, :2] == pytest.approx(
        cube.vector({"n": 8, "w": 99, "c": 0, "x": 3.0})[:2]
    )
    assert flat.point(cube.values([1.0, 1.0, 0, 1.0]))["n"] == 8


def test_candidates_are_points_of_the_cube():
    options = np.array([0, 3, 0])
    rng = default_rng(0)
    drawn = random_points(options, 500, rng)
    assert {*drawn[:, 1]} == {0, 1, 2}
    assert 0 <= drawn[:, [0, 2]].min() < 0.05
    assert 0.95 < drawn[:, [0, 2]].max() <= 1
    centres = np.array([[0.5, 1, nan], [0.0, 2, 0.9]])
    near = neighbours(centres, options, 200, rng)
    assert near.shape == (400, 3)
    assert not np.isnan(near).any()
    assert near[:, [0, 2]].min() >= 0
    assert near[:, [0, 2]].max() <= 1
    # Some are close and some far; a coordinate stays in half of them, a choice more often.
    moves = np.abs(near[:200, 0] - 0.5)
    assert 0.35 < (moves == 0).mean() < 0.65
    assert (moves < 0.05).mean() > 0.6
    assert moves.max() > 0.2
    assert 0.02 < (near[:200, 1] != 1).mean() < 0.3
    assert near[:200, 2].std() > 0.2


# The losses


def filled(*rows, first=1, factor=3):
    losses = RungLosses(first, factor)
    for number, curve in enumerate(rows):
        losses.add(number, [0.5])
        for time, loss in curve:
            losses.observe(number, time=time, loss=loss)
    return losses


def test_a_curve_is_known_at_the_rungs():
    losses = filled([(time, float(time)) for time in range(1, 300)], first=1)
    assert losses.state_dict() == [
        [0, [0.5], [[0, 1.0], [1, 3.0], [2, 9.0], [3, 27.0], [4, 81.0], [5, 243.0]], 243, 299, None]
    ]
    late = filled([(0.5, 9.0), (None, 9.0), (4, 0.4), (5, 0.5), (30, 0.3)], first=1)
    assert late.state_dict()[0][2] == [[1, 0.4], [3, 0.3]]
    assert late.next_resource(0) == 1.0
    assert filled([]).next_resource(0) == 0.0


def test_rungs_of_a_product_are_reached_in_spite_of_rounding():
    losses = filled([(0.1 * 3**k, float(k)) for k in range(9)], first=0.1)
    assert [rung for rung, _ in losses.state_dict()[0][2]] == list(range(9))


def scaled(losses):
    """Standardise finite losses, as the formula says."""
    clipped = np.minimum(losses, np.quantile(losses, 0.9))
    return (clipped - np.median(clipped)) / clipped.std()


def test_losses_are_standardised_rung_by_rung():
    rows = [[(1, loss), (3, 10 * loss)] for loss in (-1.0, 0.0, 1.0, 2.0, 9.0)]
    rows[3].pop()
    table = filled(*rows, [(1, nan)]).table()
    assert table.numbers.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 4]
    assert table.resources.tolist() == [0.0] * 6 + [0.25] * 4
    first, second = scaled([-1.0, 0.0, 1.0, 2.0, 9.0]), scaled([-10.0, 0.0, 10.0, 90.0])
    # One that is not finite is as bad as the worst of the others.
    assert table.losses == pytest.approx(np.array([*first, first.max(), *second]))
    assert table.target == 0.0


def test_losses_that_are_never_negative_are_compared_by_their_logarithms():
    table = filled([(1, 0.0)], [(1, 0.01)], [(1, 0.1)], [(1, 1.0)], [(1, inf)]).table()
    # Zero counts as half of the smallest.
    expected = scaled(np.log([0.005, 0.01, 0.1, 1.0]))
    assert table.losses == pytest.approx(np.array([*expected, expected.max()]))
    assert filled([(1, 0.0)], [(1, 0.0)]).table().losses.tolist() == [0, 0]
    # Half of the smallest float is 0, which has no logarithm.
    least, most = filled([(1, 0.0)], [(1, 5e-324)], [(1, 1.0)]).table().losses[[0, 2]]
    assert least < most


def test_equal_losses_and_failures_are_standardised_too():
    assert filled([(1, 5.0)], [(1, 5.0)], [(1, nan)]).table().losses.tolist() == [0, 0, 1]
    assert filled([(1, nan)], [(1, inf)], [(1, -inf)]).table().losses.tolist() == [1, 1, 1]
    assert filled([(1, -1e308)], [(1, 0.0)], [(1, 1e308)]).table().losses == pytest.approx(
        scaled([-1.0, 0.0, 1.0])
    )
    assert len(filled().table().losses) == 0


def test_configurations_are_compared_at_the_highest_rung_with_six_of_them():
    rows = [[(1, number), (3, number), (9, number)] for number in range(6)]
    assert filled(*rows).table().target == 0.5
    rows[5][2] = (9, nan)
    assert filled(*rows).table().target == 0.25
    assert filled(*rows[:5]).table().target == 0.0


def test_the_end_of_a_training_is_known_wherever_it_is():
    losses = filled(*([(time, 1.0) for time in (1, 3, 9, 27)] for _ in range(7)))
    for number in range(7):
        losses.finish(number, time=50, loss=float(number))
    table = losses.table()
    assert table.target == pytest.approx(np.log(50) / np.log(3) / 4)
    expected = scaled(np.log([0.5, 1, 2, 3, 4, 5, 6]))
    assert table.losses[table.resources > 0.8] == pytest.approx(expected)
    # At a rung it is that of the rung, and without a time it is as long as the longest.
    exact = filled([(1, 0.5)], [(1, 0.4)])
    exact.finish(0, time=3, loss=0.3)
    assert exact.state_dict()[0][5] is None
    exact.finish(1, time=None, loss=nan)
    exact.finish(7, time=9, loss=0.1)
    assert exact.state_dict()[1][5] == [None, None]
    assert exact.table().resources.tolist() == [0, 0, 0.25, 0.25]
    early = filled([])
    early.finish(0, time=0.5, loss=1.0)
    assert early.table().resources.tolist() == [0.0]


def test_a_failure_is_the_worst_at_the_next_rung():
    losses = filled([(1, 0.5)], [])
    for number in (0, 1, 7):
        losses.fail(number)
    assert [row[2] for row in losses.state_dict()] == [[[0, 0.5], [1, None]], [[0, None]]]
    assert losses.num_observed == 2


def test_the_losses_survive_json():
    losses = filled([(1, 0.5), (3, nan)], [])
    losses.finish(0, time=4, loss=inf)
    copy = RungLosses(1, 3)
    copy.load_state_dict(json.loads(json.dumps(losses.state_dict(), allow_nan=False)))
    assert copy.state_dict() == losses.state_dict()
    copy.remove(0)
    copy.remove(0)
    assert copy.numbers == [1]
    assert not copy.is_observed(0)
    assert not copy.is_observed(1)
    assert losses.is_observed(0)


# The searcher


def trained(searcher, count, loss=lambda config: config["x"] ** 2, prefix="t"):
    configs = []
    for number in range(count):
        name = f"{prefix}{number}"
        configs.append(searcher.suggest(name))
        searcher.on_trial_complete(name, result(loss(configs[-1])))
    return configs


def test_it_is_made_by_name():
    assert create_searcher("gp", random_fraction=0.5).random_fraction == 0.5


@pytest.mark.parametrize("mode", ["min", "max"])
def test_it_learns_where_good_ones_are(mode):
    sign = 1 if mode == "min" else -1
    searcher = made(mode=mode, random_fraction=0)
    late = trained(searcher, 30, lambda config: sign * ((config["x"] - 0.3) ** 2 + 0.1))[20:]
    assert np.median([abs(config["x"] - 0.3) for config in late]) < 0.05


def test_a_part_of_the_suggestions_is_random():
    all_random = made(random_fraction=1)
    trained(all_random, 30)
    assert all_random.state_dict()["theta"] is None
    # The first ones are, until enough have a result.
    begun = made(random_fraction=0, n_initial_points=4)
    for number in range(6):
        begun.suggest(f"t{number}")
    for number in range(4):
        assert begun.state_dict()["theta"] is None
        begun.on_trial_result(f"t{number}", result(0.5 + number))
    begun.suggest("last")
    assert begun.state_dict()["theta"] is not None


def test_the_hyperparameters_are_fitted_when_the_data_have_grown_by_an_eighth():
    searcher = made(random_fraction=0)
    fits = []
    for number in range(30):
        trained(searcher, 1, prefix=f"t{number}-")
        fits.append(searcher.state_dict()["num_fitted"])
    known = [fit for fit in dict.fromkeys(fits) if fit]
    assert known[0] == 10
    assert all(new - old == max(1, int(0.12 * new)) for old, new in pairwise(known))
    assert 10 < len(known) < 17


def test_only_a_part_of_many_results_is_in_the_model(monkeypatch):
    sizes = []
    factorise = scipy.linalg.cho_factor

    def noted(covariance, **options):
        sizes.append(len(covariance))
        return factorise(covariance, **options)

    monkeypatch.setattr(scipy.linalg, "cho_factor", noted)
    searcher = made(random_fraction=0, max_observations=20, n_initial_points=41)
    for number in range(40):
        searcher.suggest(f"t{number}")
        searcher.on_trial_result(f"t{number}", result(number % 7, 1))
        if number % 4 == 0:
            searcher.on_trial_result(f"t{number}", result(number % 5, 4))
        searcher.on_trial_complete(
            f"t{number}", result(0.5, 4, **{STOPPED_EARLY: True}) if number % 4 else None
        )
    assert not sizes
    searcher.n_initial_points = 1
    searcher.suggest("last")
    # The first ones are those of the fit.
    assert sizes[0] == 20
    assert sizes[-1] == 20


def test_half_of_the_results_in_the_model_are_from_the_highest_rungs():
    losses = RungLosses(1, 4)
    for number in range(40):
        losses.add(number, [number / 40])
        losses.observe(number, time=1, loss=number % 7)
        if number % 4 == 0:
            losses.observe(number, time=4, loss=number % 5)
    table = losses.table()
    for seed in range(5):
        rows = table.sample(20, default_rng(seed))
        assert rows.tolist() == sorted({*rows.tolist()})
        assert len(rows) == 20
        # All of the highest rung, and others.
        assert (table.resources[rows] > 0).sum() == 10
    assert table.sample(50, default_rng(0)).tolist() == list(range(50))


def test_running_trials_are_expected_at_their_next_rungs(monkeypatch):
    seen = []

    class Watched(ResourceGP):
        def believing(self, vectors, u):
            seen.append(u.tolist())
            return super().believing(vectors, u)

    monkeypatch.setattr(module, "ResourceGP", Watched)
    searcher = made(random_fraction=0, n_initial_points=1, points_to_evaluate=[{"x": 7.0}])
    for name in "abcd":
        searcher.suggest(name)
    for time in (1, 2):
        searcher.on_trial_result("b", result(0.5, time))
        searcher.on_trial_result("c", result(0.4, time))
    searcher.on_trial_result("c", result(0.3, 4))
    searcher.on_pause("b")
    searcher.on_pause("never seen")
    seen.clear()
    # `a` is not in the space, `b` is paused, and `c` may be.
    searcher.suggest("e")
    searcher.on_unpause("b")
    searcher.on_trial_result("c", result(0.3, 5))
    searcher.suggest("f")
    for name in "bcdef":
        searcher.on_trial_complete(name, result(0.5))
    searcher.suggest("g")
    assert seen == [[0.0], [0.25, 0.5, 0.0, 0.0], []]


def test_the_newest_of_very_many_running_trials_are_expected():
    losses = RungLosses(1, 4)
    for number in range(150):
        losses.add(number, [number / 150])
    numbers, resources = losses.pending(range(149, 0, -1))
    assert (numbers, resources.tolist()) == ([*range(50, 150)], [0.0] * 100)
    losses.observe(147, time=1, loss=0.5)
    losses.observe(148, time=1, loss=0.5)
    losses.observe(148, time=2, loss=0.5)
    numbers, resources = losses.pending([149, 148, 147, 146, 145, 151], most=3)
    assert (numbers, resources.tolist()) == ([146, 148, 149], [0.0, 0.25, 0.0])


def test_results_count_in_the_order_of_suggestions():
    def lived(order):
        searcher = made(random_fraction=0)
        for number in range(14):
            searcher.suggest(f"t{number}")
        for number in order:
            searcher.on_trial_complete(f"t{number}", result(float(number % 5)))
        return [searcher.suggest(f"u{number}") for number in range(3)]

    assert lived(range(14)) == lived(reversed(range(14)))


def test_what_failed_or_has_no_value_is_the_worst():
    searcher = made()
    for name in "abcdefg":
        searcher.suggest(name)
    searcher.on_trial_complete("a", result(0.5))
    searcher.on_trial_complete("b", None, error=True)
    searcher.on_trial_complete("c", result(nan))
    searcher.on_trial_complete("d", None)
    searcher.on_trial_complete("e", {"training_iteration": 3})
    searcher.on_trial_result("f", result(0.4))
    searcher.on_trial_complete("f", {"training_iteration": 4})
    searcher.on_trial_result("g", result("low"))
    searcher.on_trial_complete("never seen", None, error=True)
    searcher.on_trial_result("never seen", result(0.1))
    assert [row[2] for row in searcher.state_dict()["evidence"]] == [
        [[0, 0.5]],
        [[0, None]],
        [[0, None]],
        [],
        [[0, None]],
        [[0, 0.4]],
        [],
    ]


def test_the_last_result_counts_if_no_scheduler_has_stopped_the_trial():
    searcher = made()
    for name in "abcd":
        searcher.suggest(name)
    searcher.on_trial_complete("a", result(0.5, 7))
    searcher.on_trial_result("b", result(0.6, 4))
    searcher.on_trial_complete("b", result(0.5, 7))
    searcher.on_trial_result("c", result(0.6, 4))
    searcher.on_trial_complete("c", result(0.5, 7, **{STOPPED_EARLY: True}))
    searcher.on_trial_complete("d", {"loss": 0.3, "training_iteration": inf})
    assert [row[2:] for row in searcher.state_dict()["evidence"]] == [
        [[[1, 0.5]], 7, 7, None],
        [[[1, 0.6]], 4, 7, [7, 0.5]],
        [[[1, 0.6]], 4, 7, None],
        [[], None, None, [None, 0.3]],
    ]


def test_inner_parameters_are_learnt_of_where_they_are():
    space = {**NESTED, "twice": sample_from(lambda config: 2)}
    searcher = made(space, random_fraction=0.1)

    def loss(config):
        return 5.0 if config["kind"] == "plain" else abs(config["kind"]["beta"] - 0.8) + 0.1

    configs = trained(searcher, 30, loss)
    late = [config["kind"] for config in configs[20:] if config["kind"] != "plain"]
    assert len(late) > 6
    assert abs(np.median([kind["beta"] for kind in late]) - 0.8) < 0.1


def test_no_configuration_is_suggested_twice_by_the_model():
    space = {"n": randint(0, 4), "kind": choice("abc")}
    searcher = made(space, random_fraction=0, n_initial_points=1)
    configs = trained(searcher, 12, lambda config: config["n"])
    assert len({json.dumps(config) for config in configs}) == 12
    # When none is left, they are random again.
    assert searcher.suggest("more")["n"] in range(4)


def test_a_choice_whose_neighbours_are_all_known_keeps_the_best_candidate():
    # The last option is the best candidate that is left, and all of its neighbours are known.
    searcher = made({"kind": choice("abcdefghijklmnop")}, random_fraction=0, n_initial_points=1)
    configs = trained(searcher, 16, lambda config: ord(config["kind"]))
    assert len({config["kind"] for config in configs}) == 16


def test_a_recorded_answer_replaces_its_own():
    searcher = made()
    searcher.suggest("a")
    searcher.adopt("a", {"x": 0.25, "lr": 0.5})
    searcher.on_trial_complete("a", result(0.5))
    [[number, point, *_]] = searcher.state_dict()["evidence"]
    assert (number, point[1]) == (0, pytest.approx(0.625))
    searcher.suggest("b")
    searcher.adopt("b", None)
    assert len(searcher.state_dict()["evidence"]) == 1
    searcher.adopt("c", {"x": 0.5, "lr": 0.5})
    # The number of "b", which was not used, is free.
    assert searcher.state_dict()["open"] == {"c": 1}
    assert searcher.state_dict()["count"] == 2


@pytest.mark.parametrize("mode", ["min", "max"])
def test_it_learns_from_evaluations_elsewhere(mode):
    sign = 1 if mode == "min" else -1
    early = GaussianProcessSearch(metric="loss", mode=mode)
    known = {"x": 0.25, "lr": 0.5}
    early.add_evaluated_point(known, 0.5)
    early.set_search_properties(None, None, SPACE, seed=SeedSequence(0))
    early.add_evaluated_point(known, 9.0, intermediate_values=[1.0, 0.75, 0.5, 0.25, 0.125])
    early.add_evaluated_point(known, nan, error=True, intermediate_values=[1.0])
    early.add_evaluated_point(known, 0.75, pruned=True)
    early.add_evaluated_point(known, 0.75, pruned=True, intermediate_values=[3.0, 2.0])
    rows = {row[0]: row[2:] for row in early.state_dict()["evidence"]}
    assert rows == {
        -1: [[], None, None, [None, sign * 0.5]],
        -2: [[[0, sign * 1.0], [1, sign * 0.25]], 4, 5, [5, sign * 0.125]],
        -3: [[[0, sign * 1.0], [1, None]], 1, 1, None],
        -4: [[], None, None, None],
        -5: [[[0, sign * 3.0]], 1, 2, None],
    }
    with pytest.raises(ConfigError, match="parameters must be a point of the search space"):
        early.add_evaluated_point({"x": 9.0, "lr": 0.5}, 0.5)
    json.dumps(early.state_dict(), allow_nan=False)


def test_a_restored_one_suggests_what_the_saved_one_would():
    whole, first = (made(n_initial_points=5) for _ in range(2))
    for searcher in (whole, first):
        trained(searcher, 8)
        searcher.suggest("open")
        searcher.suggest("waiting")
        searcher.on_pause("waiting")
    second = made(n_initial_points=5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert trained(second, 6, prefix="u") == trained(whole, 6, prefix="u")
    assert json.dumps(second.state_dict()) == json.dumps(whole.state_dict())


def test_in_another_experiment_nothing_is_expected_of_the_old_trials(tmp_path):
    first, path = made(), str(tmp_path / "searcher.json")
    first.suggest("a")
    first.suggest("b")
    first.on_pause("b")
    first.save(path)
    second = GaussianProcessSearch(metric="loss", mode="min")
    second.restore(path)
    second.set_search_properties(None, None, SPACE, seed=SeedSequence(0))
    assert (second.state_dict()["open"], second.state_dict()["paused"]) == ({}, [])


def test_presets_are_first_and_it_never_finishes():
    searcher = made(points_to_evaluate=[{"x": 0.5}])
    assert searcher.suggest("a")["x"] == 0.5
    assert searcher.suggest("b") is not FINISHED


@pytest.mark.parametrize(
    ("space", "arguments", "sentence"),
    [
        ({"x": grid_search([1, 2])}, {}, "param_space must be without grid_search"),
        ({"x": randn()}, {}, "param_space at 'x' must be a domain that GaussianProcessSearch can search"),
        ({"x": 1}, {}, "param_space must be a dict with at least one domain"),
        ({"x": choice([1])}, {}, "at least one domain of several values"),
        (SPACE, {"metric": ["a", "b"], "mode": ["min", "min"]}, "metric must be the name of one metric"),
        (SPACE, {"mode": None}, "metric and mode must be set"),
        (SPACE, {"time_attr": 3}, "time_attr must be the name of a reported number, got 3"),
        (SPACE, {"grace_period": 0}, "grace_period must be finite and > 0, got 0"),
        (SPACE, {"reduction_factor": 1}, "reduction_factor must be finite and > 1, got 1"),
        (SPACE, {"reduction_factor": inf}, "reduction_factor must be finite and > 1, got inf"),
        (SPACE, {"random_fraction": 1.5}, "random_fraction must be from 0 to 1, got 1.5"),
        (SPACE, {"n_initial_points": 0}, "n_initial_points must be an integer >= 1, got 0"),
        (SPACE, {"max_observations": 1}, "max_observations must be an integer >= 2, got 1"),
    ],
)
def test_what_it_cannot_search_is_refused(space, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        made(space, **arguments)


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ConfigError, match=r"needs SciPy, which is not installed\. Run: pip install scipy"):
        GaussianProcessSearch()
