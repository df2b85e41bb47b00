"""The rungs of successive halving, and what it takes to stay on one."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Final

from dasktune.errors import check

__all__ = ["percentile", "rung_budgets"]

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
