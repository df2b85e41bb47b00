"""Statistics over many searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Found",
    "Regrets",
    "Times",
    "first_below",
    "holm",
    "mean_ranks",
    "p_value",
    "sign_test",
    "speed_up",
]

#: One row for each seed: the regret of the best configuration so far, after each evaluation.
Regrets = NDArray[np.float64]

#: ``{problem: {contender: regrets}}``
Found = dict[str, dict[str, Regrets]]

#: ``{problem: {pair: times}}``: of each seed, as a share of random search's; infinity for never.
Times = dict[str, dict[str, list[float]]]


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the p-value of Wilcoxon's signed-rank test on pairs.

    Two-sided. Pairs without a difference are left out; it is 1 if all pairs are equal.
    """
    from scipy.stats import wilcoxon

    # Rounding makes equal losses equal in spite of floating point errors.
    difference = np.subtract(one, other).round(12)
    return float(wilcoxon(difference).pvalue) if difference.any() else 1.0


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of the sign test.

    Pairs without a difference are in neither count; it is 1 if all pairs are equal.

    Examples
    --------
    >>> round(sign_test(9, 1), 3)
    0.021
    """
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple comparisons by Holm's method.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def mean_ranks(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the rank of each side, averaged over the seeds; equal sides share their ranks."""
    from scipy.stats import rankdata

    ranks = rankdata(np.round(list(values.values()), 12), axis=0).mean(axis=1)
    return dict(zip(values, ranks.tolist(), strict=True))


def first_below(regrets: Regrets, goal: float) -> float:
    """Return the evaluations until the median over seeds is no more than `goal`.

    Infinity stands for never.
    """
    reached = np.flatnonzero(np.median(regrets, axis=0) <= goal + 1e-12)
    return float(reached[0]) + 1 if len(reached) else inf


def speed_up(regrets: Regrets, random: Regrets) -> float:
    """Return how many times faster a searcher reaches random search's final median; 0 if never.

    The time of random search is also that until it first reaches this median.
    """
    goal = median(random[:, -1].tolist())
    return first_below(random, goal) / first_below(regrets, goal)
