from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from dasktune.dashboard.model.focus_range import focus_range


def test_evenly_spread_values_are_all_in_the_range():
    for mode in ("min", "max"):
        found = focus_range(np.linspace(3.0, 5.0, 50), mode)
        assert found.low < 3.0
        assert found.high > 5.0
        assert (found.is_log, found.left_out) == (False, 0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bad_values_that_are_far_away_do_not_hide_the_good_ones(sign):
    good, bad = np.linspace(-0.9, -0.5, 40), 10.0 ** np.linspace(2, 6, 12)
    mode = "min" if sign > 0 else "max"
    found = focus_range(sign * np.concatenate([good, bad]), mode)
    assert found.left_out == 12
    # The good values take up most of the axis.
    assert 0.6 * (found.high - found.low) < 0.4
    assert found.low < sign * -0.9 < found.high


def test_the_scale_is_logarithmic_if_usual_values_are_many_times_the_best_one():
    values = 10.0 ** np.linspace(-6, 3, 40)
    found = focus_range(values, "min")
    assert found.is_log
    assert found.low <= 1e-6
    # Where more is better, the same values differ little from the best one.
    assert not focus_range(np.linspace(0.01, 0.99, 40), "max").is_log
    assert focus_range(values, "max").is_log
    # A logarithm needs positive values, those of other glyphs as well.
    assert not focus_range(values - 1.0, "min").is_log
    assert not focus_range(values, "min", np.array([0.0])).is_log


@pytest.mark.parametrize("mode", ["min", "max", None])
def test_every_input_has_a_range(mode):
    for values in (
        [],
        [nan, inf, -inf],
        [2.0],
        [2.0, 2.0],
        [0.0, 0.0],
        [1e308, -1e308, 0.0],
        [5e-324, 1e308, 1.0],
        [1.0, nan, 3.0],
    ):
        found = focus_range(np.array(values), mode)
        assert np.isfinite([found.low, found.high]).all(), values
        assert found.low < found.high, values


@pytest.mark.parametrize("values", [[0.2], [0.2, 0.2, 0.2]])
def test_the_improvements_of_a_single_trial_give_the_axis_its_length(values):
    others = np.array([3.0, 1.0, 0.5, 0.3, 0.2, nan])
    found = focus_range(np.array(values), "min", others)
    assert found.low < 0.2
    assert found.high > 3.0
    assert found.left_out == 0
