"""Where the rungs are, and what it takes to stay on one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.schedulers.rungs import (
    bracket_table,
    halving_budgets,
    percentile,
    rung_budgets,
    survivors,
)

SCORES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60)
FACTORS = st.floats(1.001, 1e4) | st.integers(2, 100)


@given(SCORES, FACTORS)
@example([0.1, 0.2, 0.3, 0.4], 4)
def test_a_cutoff_is_what_numpy_says(scores, factor):
    ours = percentile(sorted(scores), 1 - 1 / factor)
    theirs = np.nanpercentile(scores, (1 - 1 / factor) * 100)
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-6)


@given(SCORES, FACTORS)
def test_a_cutoff_lies_between_the_worst_and_the_best(scores, factor):
    assert min(scores) <= percentile(sorted(scores), 1 - 1 / factor) <= max(scores)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 50), FACTORS)
def test_a_rung_of_ties_has_that_very_score_as_its_cutoff(score, n, factor):
    assert percentile([score] * n, 1 - 1 / factor) == score


def test_no_scores_make_no_cutoff():
    assert percentile([], 0.5) is None


def test_scores_of_extreme_size_make_a_finite_cutoff():
    assert percentile([-1.7e308, 1.7e308], 0.5) == 0
    assert percentile([-1.7e308, 1.7e308], 1.0) == 1.7e308


@pytest.mark.parametrize(
    ("grace_period", "max_t", "factor", "budgets"),
    [
        (1, 243, 3, [1, 3, 9, 27, 81, 243]),
        (1, 1000, 10, [1, 10, 100, 1000]),
        (1, 10**6, 10, [1, 10, 100, 1000, 10**4, 10**5, 10**6]),
        (1, 100, 4, [1, 4, 16, 64]),
        (5, 5, 4, [5]),
        (4, 100, 2.5, [4, 10.0, 25.0, 62.5]),
        (1.5, 12, 2, [1.5, 3.0, 6.0, 12]),
        (1, 10**15 - 1, 10, [10**k for k in range(15)]),
    ],
)
def test_no_rung_is_lost_to_rounding(grace_period, max_t, factor, budgets):
    assert rung_budgets(grace_period, max_t, factor) == budgets


def test_a_fraction_ends_exactly_at_the_limit():
    assert rung_budgets(0.1, 0.3, 3) == [0.1, 0.3]


@given(st.integers(1, 50), st.integers(2, 12), st.integers(0, 12))
def test_a_power_has_its_top_rung(grace_period, factor, k):
    top = grace_period * factor**k
    assume(top < 10**11)
    assert rung_budgets(grace_period, top, factor) == [grace_period * factor**i for i in range(k + 1)]
    assert len(rung_budgets(grace_period, top * factor - 1, factor)) == k + 1


def test_a_factor_near_one_is_refused_before_it_takes_for_ever():
    with pytest.raises(ConfigError, match=r"reduction_factor must be large enough .* got 1.0000001"):
        rung_budgets(1, 100, 1.0000001)


def test_the_brackets_are_those_of_the_papers_table():
    # Table 1 of Li et al. 2018: R = 81, eta = 3.
    assert bracket_table(81, 3) == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@given(st.integers(1, 2000) | st.floats(1, 2000), st.integers(2, 12) | st.floats(1.2, 12))
def test_every_bracket_ends_at_the_limit_with_a_trial(max_t, factor):
    table = bracket_table(max_t, factor)
    assert [len(bracket) for bracket in table] == list(range(len(table), 0, -1))
    for bracket in table:
        counts, budgets = zip(*bracket, strict=True)
        assert budgets[-1] == max_t
        assert list(budgets) == sorted(set(budgets))
        assert list(counts) == sorted(counts, reverse=True)
        assert counts[-1] >= 1
        assert budgets[0] >= 1 - 1e-9


def test_no_bracket_is_lost_to_a_quotient_of_logarithms():
    # int(log(243) / log(3)) is 4.
    assert [bracket[0] for bracket in bracket_table(243, 3)][:2] == [(243, 1), (98, 3)]
    assert len(bracket_table(10**6, 10)) == 7


def test_a_budget_that_is_whole_but_for_rounding_is_whole():
    root = 10**0.5
    assert halving_budgets(1, 100, root)[::2] == [1, 10, 100]
    assert all(type(budget) is int for budget in halving_budgets(1, 81, 3))


def test_halving_may_begin_anywhere():
    assert halving_budgets(2, 81, 3) == [3, 9, 27, 81]
    assert halving_budgets(81, 81, 3) == [81]
    assert halving_budgets(1, 0.5, 3) == [0.5]


def test_of_few_trials_one_is_left():
    assert [survivors(2, rung, 3) for rung in range(3)] == [2, 1, 1]
    assert survivors(10, 1, 2.5) == 4
    assert survivors(11, 1, 1.1) == 10
