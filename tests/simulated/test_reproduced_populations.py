"""What is claimed of population based training, small; ``benchmarks.reproduce`` has it in full."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from benchmarks.reproduce.networks import SIDES as NETWORKS
from benchmarks.reproduce.networks import train
from benchmarks.reproduce.toys import SETTINGS, SIDES, accuracy, quadratic, quadratic_pbt

# Other tests validate each event; here there are thousands of events.
pytestmark = [pytest.mark.slow, pytest.mark.unvalidated]


def test_without_exploiting_the_toy_of_the_paper_stays_where_it_is():
    assert quadratic(quadratic_pbt(exploit=False)) <= 0.40


@pytest.mark.parametrize("synch", [False, True])
def test_a_population_finds_the_optimum_of_the_toy_of_the_paper(synch: bool):
    assert quadratic(quadratic_pbt(synch=synch)) >= 1.19


def reached(side: str, setting: tuple[int, float]) -> list[float]:
    make, rates = SIDES[side]
    steps, noise = setting
    return [accuracy(make(), rates, seed, steps=steps, noise=noise) for seed in range(3)]


NOISY, EXACT = SETTINGS


@pytest.mark.parametrize("side", ["PBT", "PBT, synch"])
def test_a_population_follows_a_learning_rate_that_goes_up_and_down(side: str):
    assert min(reached(side, EXACT)) > 200


@pytest.mark.parametrize("side", ["clones, rates unchanged", "random rates", "rates of a grid"])
def test_no_fixed_learning_rate_does(side: str):
    assert max(reached(side, EXACT)) < 100


def test_a_population_keeps_its_luck_whether_it_changes_rates_or_not():
    assert median(reached("PBT", NOISY)) > 200
    assert median(reached("clones, rates unchanged", NOISY)) > 200
    assert max(reached("random rates", NOISY) + reached("rates of a grid", NOISY)) < 150


def test_networks_that_are_cloned_err_less_than_those_of_random_search():
    sides = {
        name: fmean(train(make(), seed, population=8, epochs=20)[0] for seed in range(3))
        for name, make in NETWORKS.items()
    }
    # Each has luck of its own: that of both together leaves more room.
    assert fmean([sides["PBT"], sides["PBT, synch"]]) < sides["random search"]
