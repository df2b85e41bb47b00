"""Importances that are exact where there are many trials."""

from __future__ import annotations

import numpy as np
import pytest

from dasktune.dashboard.model.importances import importances


def test_main_effects_of_a_forest_are_those_of_the_function():
    pytest.importorskip("sklearn")
    a, b, _, _ = np.random.default_rng(0).random((4, 1_500))
    # The variances of two uniforms with weights 2 and 1 are as 4 to 1; of ranks, nearly so.
    shares, _ = importances([a, b], 2 * a + b)
    assert shares[0] / shares[1] == pytest.approx(4, rel=0.2)
    assert shares.sum() == pytest.approx(0.97, abs=0.05)
