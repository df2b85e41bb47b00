from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from dasktune.dashboard.model.importances import FANOVA, VARIANCE_RATIO, importances


def columns(count=300, seed=0):
    return np.random.default_rng(seed).random((4, count))


@pytest.fixture(params=[FANOVA, VARIANCE_RATIO])
def method(request, monkeypatch):
    if request.param == FANOVA:
        pytest.importorskip("sklearn")
    else:
        monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    return request.param


def test_what_decides_is_important_and_what_does_not_is_not(method):
    a, b, c, noise = columns()
    shares, used = importances([a, b, c, noise], 4 * a + 2 * b + 0.1 * noise)
    assert used == method
    assert shares[0] > 0.6
    assert 0.1 < shares[1] < 0.3
    assert shares[2] < 0.05


def test_a_single_trial_that_diverged_changes_nothing(method):
    a, b, _, _ = columns()
    scores = a + 0.1 * b
    scores[7] = 1e30
    assert importances([a, b], scores)[0][0] > 0.7


def test_a_parameter_that_some_lack_does_no_harm(method):
    a, b, _, _ = columns()
    b[::2] = np.nan
    shares, _ = importances([a, b], a)
    assert shares[0] > 0.8
    assert np.isfinite(shares).all()


def test_equal_scores_are_due_to_nothing_but_their_order(method):
    a, b, _, _ = columns(20)
    assert np.isfinite(importances([a, b], np.zeros(20))[0]).all()


def test_the_warning_filters_of_the_process_are_left_alone(monkeypatch):
    """It is worked out in a thread, beside others that may look at them."""
    pytest.importorskip("sklearn")

    def fail() -> None:
        raise AssertionError("somebody else's filters are reset")

    monkeypatch.setattr(warnings, "resetwarnings", fail)
    a, b, _, _ = columns(20)
    assert importances([a, b], a)[1] == FANOVA
