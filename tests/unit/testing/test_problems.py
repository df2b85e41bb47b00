"""Synthetic learning curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.schedulers import ASHAScheduler
from dasktune.testing import simulate
from dasktune.testing.problems import PROBLEMS, Crossing, CurveProblem, Hartmann


@pytest.fixture(params=sorted(PROBLEMS))
def problem(request: Any) -> CurveProblem:
    return PROBLEMS[request.param]()


def rank_correlation(one: Any, other: Any) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(ranks)[0, 1])


# The optimum


def test_a_local_optimiser_from_many_starts_finds_nothing_better(problem: CurveProblem) -> None:
    minimize = pytest.importorskip("scipy.optimize").minimize
    names = list(problem.param_space)
    best, lengths = problem.optimum, np.eye(len(names)) * 1e-6

    def loss(point: Any) -> tuple[float, Any]:
        """Return the final loss and its slope, by central differences within the space."""
        points = np.concatenate([[point], np.clip(point + lengths, 0, 1), np.clip(point - lengths, 0, 1)])
        configs = [dict(zip(names, one, strict=True)) for one in points.tolist()]
        final = problem.expected_curves(configs)[:, -1]
        up, down = np.split(final[1:], 2)
        above, below = np.split(points[1:], 2)
        return final[0], (up - down) / (above - below).sum(axis=1)

    starts = [list(config.values()) for config in problem.sample(6, seed=4)]
    bounds = [(0, 1)] * len(names)
    found = [minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).fun for start in starts]
    assert min(found) > best.loss - 1e-9
    assert min(found) < best.loss + 1e-6
    assert problem.regret(best.config) == 0


def test_no_random_configuration_is_better(problem: CurveProblem) -> None:
    configs = problem.sample(1000, seed=1)
    assert problem.expected_curves(configs)[:, -1].min() > problem.optimum.loss


@pytest.mark.parametrize(
    ("dimensions", "loss"),
    # Surjanovic and Bingham, Virtual Library of Simulation Experiments.
    [(3, -3.86278), (6, -3.32237)],
)
def test_the_optimum_of_hartmann_is_the_published_one(dimensions: int, loss: float) -> None:
    for bias in (0.0, 0.8):
        assert Hartmann(dimensions, bias=bias).optimum.loss == pytest.approx(loss, abs=5e-6)


@pytest.mark.parametrize("max_resource", [2, 9, 81, 1000])
def test_the_best_rate_of_crossing_curves_depends_on_the_full_resource(max_resource: int) -> None:
    problem = Crossing(max_resource=max_resource)
    best = problem.optimum
    others = [{**best.config, "x0": rate} for rate in np.linspace(0, 1, 500).tolist()]
    final = problem.expected_curves(others)[:, -1]
    assert final.min() >= best.loss
    assert final.min() == pytest.approx(best.loss, abs=1e-5)


# The curves


def test_slow_learners_end_lower_on_crossing_curves() -> None:
    problem = Crossing()
    rates = np.linspace(problem.optimum.config["x0"], 1, 20)
    configs = [{**problem.optimum.config, "x0": rate} for rate in rates.tolist()]
    curves = problem.expected_curves(configs)
    assert np.ptp(curves[:, 0]) == 0
    assert (np.diff(curves[:, 1]) < 0).all()
    assert (np.diff(curves[:, -1]) > 0).all()


@pytest.mark.parametrize(
    ("name", "first", "ninth"),
    # The documented rank correlations.
    [("hartmann3", 0.93, 0.98), ("hartmann6", 0.77, 0.90), ("crossing", 0.00, 0.72)],
)
def test_ranks_after_few_epochs_agree_with_the_final_ones_as_documented(
    name: str, first: float, ninth: float
) -> None:
    # Over seeds, the deviation of a rank correlation of 700 pairs is at most 0.038.
    problem = PROBLEMS[name]()
    curves = problem.curves(problem.sample(700, seed=3), seed=0)
    assert rank_correlation(curves[:, 0], curves[:, -1]) == pytest.approx(first, abs=0.08)
    assert rank_correlation(curves[:, 8], curves[:, -1]) == pytest.approx(ninth, abs=0.08)


@pytest.mark.parametrize(
    ("dimensions", "place", "regret"),
    # The global minima after one epoch, by a local optimiser from many starts.
    [(3, (0.179, 0.522, 0.815), 0.158), (6, (0.168, 0.159, 0.531, 0.244, 0.331, 0.642), 0.086)],
)
def test_few_epochs_of_hartmann_have_another_best_configuration(
    dimensions: int, place: tuple[float, ...], regret: float
) -> None:
    problem = Hartmann(dimensions)
    config = dict(zip(problem.param_space, place, strict=True))
    there, at_optimum = problem.expected_curves([config, problem.optimum.config])
    assert there[0] < at_optimum[0] - 0.08
    assert problem.regret(config) == pytest.approx(regret, abs=0.005)


def test_without_bias_all_epochs_of_hartmann_rank_alike() -> None:
    problem = Hartmann(3, bias=0)
    curves = problem.expected_curves(problem.sample(50, seed=0))
    assert (curves == curves[:, :1]).all()


def test_a_curve_depends_on_its_configuration_and_seed_only(problem: CurveProblem) -> None:
    configs = problem.sample(5, seed=0)
    together = problem.curves(configs, seed=3)
    alone = [problem.curve({"other": "key", **config}, seed=3) for config in reversed(configs)]
    np.testing.assert_array_equal(together, alone[::-1])
    assert (problem.curves(configs, seed=4) != together).all()
    assert PROBLEMS.keys() >= {"hartmann3", "hartmann6", "crossing"}


def test_zero_and_negative_zero_are_the_same_configuration(problem: CurveProblem) -> None:
    zeros, negatives = (dict.fromkeys(problem.param_space, value) for value in (0.0, -0.0))
    np.testing.assert_array_equal(problem.curve(zeros, 0), problem.curve(negatives, 0))


def test_the_noise_has_the_documented_deviation() -> None:
    # The deviation of 1,000 numbers is off by 7 % with a probability of 0.2 %.
    for problem, first, last in ((Hartmann(3), 0.105, 0.005), (Crossing(), 0.01, 0.01)):
        configs = problem.sample(1000, seed=2)
        noise = problem.curves(configs, seed=1) - problem.expected_curves(configs)
        assert noise[:, 0].std() == pytest.approx(first, rel=0.08)
        assert noise[:, -1].std() == pytest.approx(last, rel=0.08)
        assert abs(np.corrcoef(noise[:, 3], noise[:, 4])[0, 1]) < 0.1


def test_without_noise_a_curve_is_the_expected_one() -> None:
    for problem in (Hartmann(6, noise=0), Crossing(noise=0)):
        configs = problem.sample(3, seed=0)
        np.testing.assert_array_equal(problem.curves(configs), problem.expected_curves(configs))


# In virtual time


def test_a_trial_reports_the_curve_and_resumes_from_its_checkpoint(problem: CurveProblem) -> None:
    [config] = problem.sample(1, seed=0)
    steps = list(problem.trainable(2)(config, None))
    resumed = list(problem.trainable(2)(config, 27))
    assert [step[0]["loss"] for step in steps] == problem.curve(config, 2).tolist()
    assert resumed == steps[27:]
    assert {step[1] for step in steps} == {steps[0][1]}
    assert 0.5 <= steps[0][1] <= 2


def test_configurations_differ_in_pace_within_the_limits() -> None:
    problem = Crossing(max_resource=2)
    train = problem.trainable(pace=(3, 4))
    paces = [next(train(config, None))[1] for config in problem.sample(50, seed=0)]
    assert 3 <= min(paces) < 3.1
    assert 3.9 < max(paces) <= 4


def test_early_stopping_saves_epochs_of_a_simulated_search() -> None:
    problem = Hartmann(3, max_resource=9)
    results = simulate(
        problem.trainable(),
        param_space=problem.param_space,
        tune_config=tune.TuneConfig(
            metric=problem.metric,
            mode=problem.mode,
            num_samples=12,
            seed=0,
            scheduler=ASHAScheduler(max_t=9, reduction_factor=3),
        ),
        slots=4,
    )
    epochs = sum(result.metrics["training_iteration"] for result in results)
    assert 12 < epochs < 12 * 9
    assert problem.regret(results.get_best_result().config) < 1


# Invalid arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hartmann(4), "dimensions must be 3 or 6, got 4"),
        (lambda: Hartmann(3, bias=-1), "bias must be a finite number, at least 0, got -1"),
        (lambda: Hartmann(3, noise=float("inf")), "noise must be a finite number, at least 0, got inf"),
        (lambda: Crossing(max_resource=1), "max_resource must be an int, at least 2, got 1"),
        (lambda: Crossing().sample(0, seed=0), "size must be an int, at least 1, got 0"),
        (lambda: Crossing().sample(1, seed=-1), "seed must be an int, at least 0, got -1"),
        (lambda: Crossing().trainable(pace=(2, 1)), "pace must be two numbers, 0 <= least <= most, got"),
        (lambda: Hartmann(3).curve({"x0": 0.5, "x1": 1.5}), "x1 must be a number from 0 to 1, got 1.5"),
        (lambda: Hartmann(3).curve({"x0": 0.5, "x1": 1}), "x2 must be a number from 0 to 1, got None"),
    ],
)
def test_an_invalid_argument_is_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        make()


def test_samples_are_points_of_the_space_and_reproducible(problem: CurveProblem) -> None:
    configs = problem.sample(20, seed=1)
    space = problem.param_space
    assert all(space[name].is_valid(value) for config in configs for name, value in config.items())
    assert configs == problem.sample(20, seed=1)
    assert configs != problem.sample(20, seed=2)
    assert default_rng(1).random() == configs[0]["x0"]
