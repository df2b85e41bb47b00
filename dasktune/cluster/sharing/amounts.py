"""Amounts of resources, as the shares of a cluster count them.

This module travels by value to schedulers without dasktune, so it imports only the standard
library.

GPUs count as a sum and one by one: two free halves of two GPUs are no whole GPU. So a worker with
GPUs has a further resource for each of them, see :func:`gpu_amounts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

Amounts = Mapping[str, float]

#: Tolerance of rounding errors: ten shares of 0.1 must fit into 1.
EPSILON = 1e-6

#: Prefix of the resources that are single GPUs. One that a worker declares by such a name has no
#: share.
SINGLE_GPU = "GPU/"


def gpu_amounts(parts: Mapping[int, float]) -> dict[str, float]:
    """Return amounts of single GPUs of a worker as resources.

    Parameters
    ----------
    parts : mapping
        The part of each GPU, from 0 to 1, by its position on the worker.

    Examples
    --------
    >>> {"GPU": 0.5, **gpu_amounts({1: 0.5})}
    {'GPU': 0.5, 'GPU/1': 0.5}
    """
    return {f"{SINGLE_GPU}{position}": part for position, part in parts.items()}


def total_amounts(capacity: Mapping[str, Amounts]) -> dict[str, float]:
    """Return the finite amounts of all workers together; single GPUs are in the sum of GPUs.

    Parameters
    ----------
    capacity : mapping
        ``{address: amounts}``.
    """
    totals = sum_of(capacity.values())
    return {kind: v for kind, v in totals.items() if v < inf and not kind.startswith(SINGLE_GPU)}


def dominant_share(needs: Amounts, totals: Amounts) -> float:
    """Return the largest fraction of a resource of the cluster that `needs` takes.

    Parameters
    ----------
    needs : mapping
        Amounts by resource name.
    totals : mapping
        The amounts of the whole cluster.

    Examples
    --------
    >>> dominant_share({"CPU": 1, "GPU": 1}, {"CPU": 8, "GPU": 2})
    0.5
    """
    share = 0.0
    # A loop, because this is called for each lease of the cluster.
    for kind, amount in needs.items():
        total = totals.get(kind)
        if total and amount / total > share:
            share = amount / total
    return share


def sum_of(parts: Iterable[Amounts]) -> dict[str, float]:
    """Return several amounts together."""
    total: dict[str, float] = {}
    for part in parts:
        add(total, part)
    return total


def add(total: dict[str, float], needs: Amounts) -> None:
    """Add amounts to others."""
    for kind, amount in needs.items():
        total[kind] = total.get(kind, 0.0) + amount


def take(room: dict[str, float], needs: Amounts) -> None:
    """Subtract amounts from a room."""
    for kind, amount in needs.items():
        room[kind] = room.get(kind, 0.0) - amount


def fits(room: Amounts, needs: Amounts) -> bool:
    """Whether a room has all that is needed."""
    # A loop, because a generator would take half of the time of a plan.
    for kind, amount in needs.items():  # noqa: SIM110
        if room.get(kind, 0.0) + EPSILON < amount:
            return False
    return True
