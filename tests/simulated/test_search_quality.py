"""Whether searchers find more than chance does; ``benchmarks.search_quality`` has it in full."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import optuna
import pytest

import dasktune as tune
from benchmarks.search_quality import searches
from benchmarks.search_quality.contenders import CONTENDERS, RANDOM, sampler
from benchmarks.search_quality.early_stopping import PAIRS, follow, random_path, time_needed
from benchmarks.search_quality.figures import first_below, holm, mean_ranks, p_value, speed_up
from benchmarks.search_quality.problems import CURVES, Curve, Problem, Range, problem
from benchmarks.search_quality.report import details, matrix, summary, times_table
from benchmarks.search_quality.searches import PENDING, losses, optuna_losses

# Other tests validate each event; here there are thousands of trials.
pytestmark = [pytest.mark.slow, pytest.mark.unvalidated]


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def bowl(config: Any, seed: int) -> Curve:
    """Return the height of a bowl; what is far from its middle takes longer."""
    far = (config["x"] - 0.3) ** 2 + (config["y"] - 0.7) ** 2
    return [far + 0.1 * config["steps"]], 1.0 + far


BOWL = Problem(
    "bowl",
    "height",
    {"x": Range(0, 1), "y": Range(0, 1), "steps": Range(0, 5, integer=True)},
    bowl,
    lambda seed: 0.0,
)


def test_tpe_beats_random_search_on_an_easy_problem():
    # Of 40 other seeds it won 38. At that rate 3 of 5 are missed once in 800 choices of seeds:
    # these are fixed, so it takes another version of Optuna to choose again.
    wins = 0
    for seed in range(5):
        own = min(losses(BOWL, CONTENDERS["TPE"], seed, 60))
        wins += own < min(losses(BOWL, CONTENDERS[RANDOM], seed, 60))
    assert wins >= 3


@pytest.mark.parametrize("name", ["TPE", "CMA-ES"])
@pytest.mark.parametrize("searched", ["bowl", "digits"])
def test_optuna_is_asked_and_told_as_by_its_own_loop(
    name: str, searched: str, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("cmaes")
    limited = tune.TuneConfig

    def as_many_as_run(**given: Any) -> tune.TuneConfig:
        return limited(**given, max_concurrent_trials=PENDING)

    monkeypatch.setattr(searches.tune, "TuneConfig", as_many_as_run)
    what = BOWL if searched == "bowl" else problem(searched)
    ours = losses(what, CONTENDERS[name], 1, 40)
    # Our ranges end below their upper bounds, by the last digit.
    assert ours == pytest.approx(optuna_losses(what, sampler(name, 1), 1, 40), rel=1e-9)


@pytest.mark.parametrize("name", [RANDOM, "Sobol", "TPE"])
def test_a_search_is_the_same_each_time_and_another_one_for_another_seed(name: str):
    first, again, other = (losses(BOWL, CONTENDERS[name], seed, 20) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 20


@pytest.mark.parametrize("name", CURVES)
def test_a_configuration_has_the_curve_of_the_nearest_recorded_one(name: str):
    from benchmarks.reproduce.curves import load_curves

    curves, searched = load_curves(name), problem(name)
    for row in range(0, 500, 50):
        config = {key: values[row].item() for key, values in curves.configs.items()}
        config["friction"] = 1 - config.pop("momentum")
        power = config.pop("power_t")
        config["decay"] = power or -0.3
        curve, _ = searched.train(config, seed=1)
        assert curve == pytest.approx(100 * curves.validation[row, 1])
        assert searched.best(1) <= curve[-1]


@pytest.mark.parametrize("name", list(PAIRS))
def test_no_search_is_shorter_than_the_time_that_random_search_takes(name: str):
    path, seconds = random_path(problem("digits"), 0, trials=8)
    own = follow(problem("digits"), PAIRS[name], 0, seconds)
    assert own[0][1] > own[-1][1]
    assert own[-1][0] <= seconds
    assert time_needed(path, path[-1][1]) == path[-1][0]
    assert time_needed(own, -1.0) == inf


def test_regrets_are_compared_by_pairs_and_corrected_for_how_many_there_are():
    worse = [float(seed) for seed in range(1, 21)]
    better = [value / 2 for value in worse]
    assert p_value(better, worse) == pytest.approx(2**-19, rel=1e-6)
    assert p_value(worse, worse) == 1.0
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert mean_ranks({"a": [1, 1], "b": [1, 2]}) == {"a": 1.25, "b": 1.75}


def test_a_searcher_is_twice_as_fast_if_it_is_as_good_in_half_the_evaluations():
    random = np.array([[4.0, 3.0, 2.0, 1.0]] * 3)
    fast = np.array([[4.0, 1.0, 1.0, 0.5]] * 3)
    assert first_below(random, 1.0) == 4
    assert speed_up(fast, random) == 2.0
    assert speed_up(random, fast) == 0.0


def test_tables_say_which_search_was_better():
    random = np.array([[9.0, 8.0, 7.0, (1 + seed) / 2] for seed in range(8)])
    model = np.array([[9.0, *[(1 + seed) / 4] * 3] for seed in range(8)])
    found = {"digits": {RANDOM: random, "TPE": model, "Sobol": random}}
    assert "| TPE | 1 | 0 | 0 | 1.00 | 2 |" in summary(found)
    assert "| Sobol | 0 | 1 | 0 | 2.50 | 1 |" in summary(found)
    assert "| digits | 2.25 | 1.12 + | 2.25 |" in matrix(found)
    assert "| 1.12 (0.688 to 1.56) | 1.00 | 0.016 | 2 |" in details(found)
    shares = times_table({"digits": {RANDOM: [0.5, 0.4], "TPE": [0.2, inf]}})
    assert "| digits | TPE | never (20.0% to never) | 1 of 2 | 1 |" in shares
