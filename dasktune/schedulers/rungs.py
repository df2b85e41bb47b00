"""Rungs and brackets of successive halving and HyperBand, and quantiles of scores."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isinf
from typing import Final

from dasktune.errors import check

#: Maximum number of rungs. More mean a reduction factor so close to 1 that it is a mistake.
_MAX_RUNGS: Final = 1000

#: Relative rounding error that products of up to 1,000 factors may have.
_ROUNDING: Final = 1e-12


def percentile(ordered: Sequence[float], quantile: float) -> float | None:
    """Return a quantile of sorted finite values, linearly interpolated as by numpy, in O(1).

    Parameters
    ----------
    ordered : sequence of float
        The values, ascending.
    quantile : float
        The quantile, in [0, 1].

    Returns
    -------
    float or None
        The quantile, or None if there are no values.

    Examples
    --------
    >>> percentile([0.0, 1.0, 2.0], 0.75)
    1.5
    """
    if not ordered:
        return None
    position = (len(ordered) - 1) * quantile
    below = int(position)
    part = position - below
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    step = high - low
    if not step:
        return low  # exact, so that a tie is not lost to rounding
    if isinf(step):
        return low * (1 - part) + high * part
    # Interpolate from the nearer end, so that rounding cannot pass either end.
    return low + step * part if part < 0.5 else high - step * (1 - part)


def rung_budgets(grace_period: float, max_t: float, reduction_factor: float) -> list[float]:
    """Return the budgets of all rungs, ``grace_period * reduction_factor**k`` up to `max_t`.

    The budgets are computed by multiplication, as logarithms would lose the top rung of (1, 243,
    3).

    Parameters
    ----------
    grace_period, max_t : float
        The first budget and the maximum, both finite and more than 0.
    reduction_factor : float
        More than 1.

    Raises
    ------
    ConfigError
        If there are more than 1,000 rungs.

    Examples
    --------
    >>> rung_budgets(1, 243, 3)
    [1, 3, 9, 27, 81, 243]
    """
    rule = f"large enough for at most {_MAX_RUNGS} rungs up to max_t={max_t}"
    budgets: list[float] = []
    budget = grace_period
    limit = max_t if isinstance(budget * reduction_factor, int) else max_t * (1 + _ROUNDING)
    while budget <= limit:
        check(len(budgets) < _MAX_RUNGS, "reduction_factor", rule, reduction_factor)
        budgets.append(min(budget, max_t))
        budget *= reduction_factor
    return budgets


def halving_budgets(first: float, max_t: float, reduction_factor: float) -> list[float]:
    """Return all budgets ``max_t / reduction_factor**k`` that are at least `first`, ascending.

    These are HyperBand's rungs. Unlike those of :func:`rung_budgets`, they always include `max_t`.

    Parameters
    ----------
    first, max_t : float
        The minimum budget and the maximum, both finite and more than 0.
    reduction_factor : float
        More than 1. eta in the paper.

    Raises
    ------
    ConfigError
        If there are more than 1,000 rungs.

    Examples
    --------
    >>> halving_budgets(1, 81, 3)
    [1, 3, 9, 27, 81]
    >>> halving_budgets(1, 50, 5)
    [2, 10, 50]
    """
    count = len(rung_budgets(first, max_t, reduction_factor))
    budgets = [_without_rounding(max_t / reduction_factor**k) for k in reversed(range(1, count))]
    return [*budgets, max_t]


def survivors(size: int, rung: int, reduction_factor: float) -> int:
    """Return how many of `size` trials train to a rung, counted from 0; at least 1.

    This is ``floor(n * eta**-i)`` in the HyperBand paper.

    Examples
    --------
    >>> [survivors(34, rung, 3) for rung in range(4)]
    [34, 11, 3, 1]
    """
    return max(1, int(size / reduction_factor**rung * (1 + _ROUNDING)))


def bracket_table(max_t: float, reduction_factor: float) -> list[list[tuple[int, float]]]:
    """Return HyperBand's brackets, most trials first, as lists of ``(trials, budget)`` per rung.

    For ``max_t=81`` and ``reduction_factor=3`` this is table 1 of Li et al., "Hyperband", JMLR 18
    (2018).

    Parameters
    ----------
    max_t : float
        Maximum budget of a trial, more than 0. R in the paper.
    reduction_factor : float
        More than 1. eta in the paper.

    Raises
    ------
    ConfigError
        If there are more than 1,000 rungs.

    Examples
    --------
    >>> for bracket in bracket_table(9, 3):
    ...     print(bracket)
    [(9, 1), (3, 3), (1, 9)]
    [(5, 3), (1, 9)]
    [(3, 9)]
    """
    budgets = halving_budgets(1, max_t, reduction_factor)
    table = []
    for s in reversed(range(len(budgets))):
        # n = ceil(B / R * eta^s / (s + 1)), with B = (s_max + 1) * R
        size = ceil(len(budgets) * reduction_factor**s / (s + 1) * (1 - _ROUNDING))
        counts = [survivors(size, rung, reduction_factor) for rung in range(s + 1)]
        table.append(list(zip(counts, budgets[-s - 1 :], strict=True)))
    return table


def _without_rounding(budget: float) -> float:
    """Return a budget without rounding error.

    A budget slightly above a whole number would be reached one iteration late.
    """
    whole = round(budget)
    return whole if abs(budget - whole) <= _ROUNDING * whole else budget
