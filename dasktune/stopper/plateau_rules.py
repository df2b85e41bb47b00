"""What the arguments of the stoppers that look for a plateau must be, and how they measure one."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from dasktune.errors import check
from dasktune.trial.metrics import number

__all__ = ["check_count", "check_metric", "check_std", "deviation"]


def check_metric(metric: object) -> None:
    """Refuse what is no name of a metric."""
    check(isinstance(metric, str) and metric != "", "metric", "the name of a metric", metric)


def check_std(std: object) -> None:
    """Refuse what is no standard deviation that a plateau could be below."""
    value = None if isinstance(std, bool) else number(std)
    usable = value is not None and isfinite(value) and value > 0
    check(usable, "std", "a finite number, more than 0", std)


def check_count(name: str, value: object, *, least: int) -> None:
    """Refuse what is no int, or below `least`."""
    check(type(value) is int and value >= least, name, f"an int, at least {least}", value)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of the population.

    Examples
    --------
    >>> deviation([1.0, 3.0])
    1.0
    """
    # Of values near the largest float it is infinite or NaN: no plateau, and nothing to warn of.
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.std(values))
