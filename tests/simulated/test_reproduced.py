"""What the papers claim of the schedulers, small; ``benchmarks.reproduce`` has it in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any

import numpy as np
import pytest

from benchmarks._report import lead
from benchmarks.reproduce.brackets import GRID
from benchmarks.reproduce.curves import EPOCHS, NAMES, SEEDS, load_curves
from benchmarks.reproduce.fronts import STEPS, find_front, hypervolume, mo_asha
from benchmarks.reproduce.stragglers import Shape, asha, halving, train
from benchmarks.reproduce.table import BUDGET, CONTENDERS, search, tried
from dasktune.config import TuneConfig
from dasktune.schedulers import HyperBandScheduler, SuccessiveHalvingScheduler, TrialScheduler
from dasktune.space import uniform
from dasktune.testing import simulate

# Other tests validate each event; here there are hundreds of trials.
pytestmark = [pytest.mark.slow, pytest.mark.unvalidated]


# Epochs, on recorded curves


def share_needed(table: str, contender: str, orders: range) -> list[float]:
    """Return which share of random search's epochs a scheduler needs to be as good."""
    curves = load_curves(table)
    shares = []
    for order in orders:
        goal = curves.validation[tried(order), order % SEEDS].min()
        own = search(curves, CONTENDERS[contender](), order, len(curves.validation))
        shares.append(own.needed(goal)[0] / BUDGET)
    return shares


@pytest.mark.parametrize("table", NAMES)
@pytest.mark.parametrize("contender", ["ASHA, stopping", "ASHA, promoting", "successive halving"])
def test_halving_is_as_good_as_random_search_with_a_quarter_of_its_epochs(table: str, contender: str):
    assert median(share_needed(table, contender, range(9))) <= 0.25


@pytest.mark.parametrize("contender", ["HyperBand", "median stopping"])
def test_so_are_the_more_careful_ones_with_half_of_them(contender: str):
    assert median(share_needed("digits", contender, range(6))) <= 0.5


@pytest.mark.parametrize("table", NAMES)
def test_promoting_asha_spends_less_on_the_same_configurations_than_stopping_asha(table: str):
    curves = load_curves(table)
    spent = {
        name: sum(search(curves, CONTENDERS[name](), order, 500).epochs for order in range(3))
        for name in ("ASHA, promoting", "ASHA, stopping")
    }
    assert spent["ASHA, promoting"] < spent["ASHA, stopping"]


def test_the_tables_are_what_they_should_be():
    for name in NAMES:
        curves = load_curves(name)
        assert curves.validation.shape == curves.test.shape == (500, SEEDS, EPOCHS)
        assert {len(values) for values in curves.configs.values()} == {500}
        assert 0 <= curves.validation.min() < np.median(curves.validation[..., -1]) < 0.2
        # The best at the end are not simply the best at the beginning.
        first, last = curves.validation[..., 0], curves.validation[..., -1]
        assert 0.2 < np.corrcoef(first.ravel(), last.ravel())[0, 1] < 0.9


# Stragglers and dropped jobs

SMALL = Shape(n=27, eta=3, top=27, workers=8, until=400.0)

CALM = (0.1, 0.0)


@pytest.fixture(scope="module")
def trained() -> dict[tuple[float, float], list[tuple[int, int]]]:
    """How many configurations asynchronous and synchronous halving train to the end."""
    return {
        (sigma, p): [
            (
                train(asha, sigma, p, seed, SMALL).configurations,
                train(halving, sigma, p, seed, SMALL).configurations,
            )
            for seed in range(3)
        ]
        for sigma in (0.1, 1.33)
        for p in (0.0, 0.02)
    }


def test_asha_trains_more_to_the_end_than_synchronous_halving(trained: Any):
    assert all(ours > theirs > 0 for pairs in trained.values() for ours, theirs in pairs)


def test_its_lead_grows_with_stragglers_and_dropped_jobs(trained: Any):
    ratios = {
        setting: sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)
        for setting, pairs in trained.items()
    }
    assert all(ratios[CALM] < ratio for setting, ratio in ratios.items() if setting != CALM)


# Brackets


def rounds(max_t: int, factor: int) -> Iterator[list[tuple[int, float]]]:
    """Yield ``(trials, budget)`` for the rungs of each bracket, in the paper's own formulas."""
    s_max = 0
    while factor ** (s_max + 1) <= max_t:
        s_max += 1
    for s in range(s_max, -1, -1):
        n = -(-(s_max + 1) * factor**s // (s + 1))
        yield [(n // factor**i, max_t / factor ** (s - i)) for i in range(s + 1)]


def reached(scheduler: TrialScheduler, trials: int, top: int) -> list[int]:
    """Return how many iterations each trial trained that a scheduler was given."""

    def trial(config: dict[str, Any], checkpoint: int | None) -> Any:
        for step in range(checkpoint or 0, top):
            yield {"loss": config["x"] / (step + 1)}, 1.0 + config["x"], step + 1

    results = simulate(
        trial,
        param_space={"x": uniform(0, 1)},
        tune_config=TuneConfig(metric="loss", mode="min", num_samples=trials, scheduler=scheduler, seed=0),
        slots=7,
    )
    return sorted(len(result.history) for result in results)


def ends(rungs: list[tuple[int, float]]) -> Counter[int]:
    """Return how many trials of a bracket end after how many iterations."""
    staying = [count for count, _ in rungs[1:]] + [0]
    stopped = ((count - stay, budget) for (count, budget), stay in zip(rungs, staying, strict=True))
    return Counter({-int(-budget // 1): count for count, budget in stopped if count})


def test_the_papers_table_of_brackets():
    first = [bracket[0] for bracket in rounds(81, 3)]
    assert first == [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]


@pytest.mark.parametrize(("max_t", "factor"), [one for one in GRID if one[0] <= 100])
def test_as_many_trials_survive_each_rung_of_hyperband_as_in_the_paper(max_t: int, factor: int):
    brackets = list(rounds(max_t, factor))
    trials = sum(bracket[0][0] for bracket in brackets)
    scheduler = HyperBandScheduler(max_t=max_t, reduction_factor=factor)
    expected = sum((ends(bracket) for bracket in brackets), Counter())
    assert Counter(reached(scheduler, trials, max_t)) == expected


@pytest.mark.parametrize(("max_t", "factor"), [one for one in GRID if one[0] <= 100])
def test_and_of_successive_halving(max_t: int, factor: int):
    first = next(rounds(max_t, factor))
    scheduler = SuccessiveHalvingScheduler(max_t=max_t, reduction_factor=factor)
    assert Counter(reached(scheduler, first[0][0], max_t)) == ends(first)


# Two objectives


def test_the_hypervolume_is_the_area_of_a_staircase():
    assert hypervolume([], (2, 2)) == hypervolume([(2, 0), (0, 3)], (2, 2)) == 0
    assert hypervolume([(0, 1), (1, 0), (1, 1), (0.5, 1.5)], (2, 2)) == 3
    assert hypervolume([(1, 0), (1, 0)], (2, 2)) == 2


def test_two_objectives_dominate_more_with_asha_than_with_random_search():
    ratios = [
        hypervolume(find_front(mo_asha(), seed, 100 * STEPS))
        / hypervolume(find_front(None, seed, 100 * STEPS))
        for seed in range(4)
    ]
    assert min(ratios) > 1
    assert median(ratios) > 1.1


# The yardsticks


def test_a_search_has_reached_its_goal_at_the_first_result_that_is_as_good():
    curves = load_curves("digits")
    random = search(curves, None, 0, 3)
    assert random.epochs == 3 * EPOCHS
    assert random.best == curves.validation[tried(0)[:3], 0].min()
    assert random.needed(-1.0)[0] == inf
    needed, _ = random.needed(random.best)
    assert random.at(needed - 1)[0] > random.best == random.at(needed)[0]
    assert [random.needed(error)[0] for _, error, _ in random.steps] == [
        epochs for epochs, _, _ in random.steps
    ]
    assert all(a[1] > b[1] for a, b in pairwise(random.steps))


def test_a_difference_comes_with_its_confidence_interval():
    # Student's t of 2 degrees of freedom is 4.303, and the standard error 1 / sqrt(3).
    assert lead([1, 2, 3], [2, 2, 2]) == "+0.00 (-2.48 to +2.48)"
