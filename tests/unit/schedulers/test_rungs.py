"""Where the rungs are, and what it takes to stay on one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.schedulers.rungs import percentile, rung_budgets

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
    assert rung_budgets(grace_period, top, factor) == [
        grace_period * factor**i for i in range(k + 1)
    ]
    assert len(rung_budgets(grace_period, top * factor - 1, factor)) == k + 1


def test_a_factor_near_one_is_refused_before_it_takes_for_ever():
    with pytest.raises(
        ConfigError, match=r"reduction_factor must be large enough .* got 1.0000001"
    ):
        rung_budgets(1, 100, 1.0000001)
