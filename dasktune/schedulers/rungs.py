"""The rungs of successive halving, and what it takes to stay on one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isinf
from typing import Final

from dasktune.errors import check

__all__ = [
    "bracket_table",
    "halving_budgets",
    "percentile",
    "rung_budgets",
    "survivors",
]

#: Beyond that the reduction factor is so near to 1 that it cannot be meant.
_MAX_RUNGS: Final = 1000

#: What a thousand products of fractions may miss by is rounding, not budget.
_ROUNDING: Final = 1e-12


def percentile(ordered: Sequence[float], quantile: float) -> float | None:
    """Return a quantile of sorted finite values, interpolated linearly as numpy does, in O(1).

    Parameters
    ----------
    ordered : sequence of float
        In ascending order.
    quantile : float
        In the unit interval.

    Returns
    -------
    float or None
        None if there are no values.

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
        return low  # exactly: a tie must not be lost to rounding
    if isinf(step):
        return low * (1 - part) + high * part
    # From the nearer end, so that rounding cannot carry it past either.
    return low + step * part if part < 0.5 else high - step * (1 - part)


def rung_budgets(grace_period: float, max_t: float, reduction_factor: float) -> list[float]:
    """Return the budgets of all rungs, ``grace_period * reduction_factor**k`` up to `max_t`.

    They are multiplied up: a quotient of logarithms would lose the top rung of (1, 243, 3).

    Parameters
    ----------
    grace_period, max_t : float
        The first budget and the limit, both finite and more than 0.
    reduction_factor : float
        More than 1.

    Raises
    ------
    ConfigError
        If there are more than 1,000 of them.

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
    """Return ``max_t / reduction_factor**k``, the lowest at least `first`, in ascending order.

    HyperBand's rungs: unlike :func:`rung_budgets` it counts from the top, where a power of a factor
    meets `max_t` whatever they are.

    Parameters
    ----------
    first, max_t : float
        The least budget and the limit, both finite and more than 0.
    reduction_factor : float
        More than 1. The paper's eta.

    Raises
    ------
    ConfigError
        If there are more than 1,000 of them.

    Examples
    --------
    >>> halving_budgets(1, 81, 3)
    [1, 3, 9, 27, 81]
    >>> halving_budgets(1, 50, 5)
    [2, 10, 50]
    """
    count = len(rung_budgets(first, max_t, reduction_factor))
    budgets = [_settled(max_t / reduction_factor**k) for k in reversed(range(1, count))]
    return [*budgets, max_t]


def survivors(size: int, rung: int, reduction_factor: float) -> int:
    """Return how many of `size` trials are on a rung, the first of which is 0; at least 1.

    The paper's ``floor(n * eta**-i)``.

    Examples
    --------
    >>> [survivors(34, rung, 3) for rung in range(4)]
    [34, 11, 3, 1]
    """
    return max(1, int(size / reduction_factor**rung * (1 + _ROUNDING)))


def bracket_table(max_t: float, reduction_factor: float) -> list[list[tuple[int, float]]]:
    """Return HyperBand's brackets, most trials first, each as ``(trials, budget)`` for each rung.

    Table 1 of Li et al., "Hyperband", JMLR 18 (2018), for R=81 and eta=3.

    Parameters
    ----------
    max_t : float
        Most that a trial gets, more than 0. The paper's R.
    reduction_factor : float
        More than 1. The paper's eta.

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


def _settled(budget: float) -> float:
    """Return a budget as an int if only rounding lies between: else it takes a step more."""
    whole = round(budget)
    return whole if abs(budget - whole) <= _ROUNDING * whole else budget
