"""What many searches say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median

import numpy as np
from numpy.typing import NDArray

__all__ = ["Found", "Regrets", "Times", "first_below", "holm", "mean_ranks", "p_value", "speed_up"]

#: One row for each seed: the regret of the best so far, after each evaluation.
Regrets = NDArray[np.float64]

#: ``{problem: {contender: regrets}}``
Found = dict[str, dict[str, Regrets]]

#: ``{problem: {pair: times}}``: of each seed, as a share of random search's; infinity for never.
Times = dict[str, dict[str, list[float]]]


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how likely such a difference of pairs is by chance: Wilcoxon's signed-rank test.

    Two-sided. Pairs without a difference are left out; 1 if that are all.
    """
    from scipy.stats import wilcoxon

    # What both have found is the same, however it was rounded.
    difference = np.subtract(one, other).round(12)
    return float(wilcoxon(difference).pvalue) if difference.any() else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for how many there are, by Holm's method.

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
    """Return the place of each side, averaged over the seeds; sides as good share theirs."""
    from scipy.stats import rankdata

    ranks = rankdata(np.round(list(values.values()), 12), axis=0).mean(axis=1)
    return dict(zip(values, ranks.tolist(), strict=True))


def first_below(regrets: Regrets, goal: float) -> float:
    """Return when the median over seeds is first no more than `goal`, in evaluations.

    Infinity stands for never.
    """
    there = np.flatnonzero(np.median(regrets, axis=0) <= goal + 1e-12)
    return float(there[0]) + 1 if len(there) else inf


def speed_up(regrets: Regrets, random: Regrets) -> float:
    """Return how many times sooner a searcher is as good as random search at its end; 0 if never.

    As good is the median over seeds, and random search's own way ends where it first gets there.
    """
    goal = median(random[:, -1].tolist())
    return first_below(random, goal) / first_below(regrets, goal)
