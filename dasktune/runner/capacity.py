"""What all workers have together, in a record that is small however many there are."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from math import fsum, inf
from typing import Final

from dasktune.trial.events import CapacityChanged, ClusterChanged

__all__ = ["is_alike", "summed"]

#: Resources that are told of, first those that everybody knows: workers may each declare their own.
_MOST: Final = 16
_FIRST: Final = ("CPU", "GPU", "memory")


def summed(event: ClusterChanged) -> CapacityChanged:
    """Return what the workers of a cluster have together.

    Parameters
    ----------
    event : ClusterChanged
        What each of them has.

    Examples
    --------
    >>> workers = {"tcp://a:1": {"CPU": 2, "GPU": 1}, "tcp://b:1": {"CPU": 4}}
    >>> summed(ClusterChanged(workers=workers, time=0.0)).capacity
    {'CPU': 6.0, 'GPU': 1.0}
    """
    amounts: defaultdict[str, list[float]] = defaultdict(list)
    for offer in event.workers.values():
        for name, amount in offer.items():
            amounts[name].append(amount)
    known = [name for name in _FIRST if name in amounts]
    names = [*known, *sorted(amounts.keys() - known)]
    sums = {name: fsum(amounts[name]) for name in names if inf not in amounts[name]}
    return CapacityChanged(
        capacity=dict(islice(sums.items(), _MOST)),
        num_workers=len(event.workers),
        time=event.time,
    )


def is_alike(one: CapacityChanged, other: CapacityChanged) -> bool:
    """Whether two differ by nothing but their times.

    Parameters
    ----------
    one, other : CapacityChanged
        What there was at two moments.
    """
    return one.capacity == other.capacity and one.num_workers == other.num_workers
