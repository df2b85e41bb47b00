"""The capacity of all workers together: a small record, however many workers there are."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from math import fsum, inf
from typing import Final

from dasktune.trial.events import CapacityChanged, ClusterChanged

#: Maximum number of resources in a record, the well-known ones first. Without a limit a record
#: would grow with the number of workers, as each may declare its own names.
_MOST: Final = 16
_FIRST: Final = ("CPU", "GPU", "memory")


def total_capacity(event: ClusterChanged) -> CapacityChanged:
    """Return the capacity of all workers of a cluster together.

    Parameters
    ----------
    event : ClusterChanged
        The resources of each worker.

    Examples
    --------
    >>> workers = {"tcp://a:1": {"CPU": 2, "GPU": 1}, "tcp://b:1": {"CPU": 4}}
    >>> total_capacity(ClusterChanged(workers=workers, time=0.0)).capacity
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
        capacity=dict(islice(sums.items(), _MOST)), num_workers=len(event.workers), time=event.time
    )


def same_capacity(one: CapacityChanged, other: CapacityChanged) -> bool:
    """Whether two capacities are the same, apart from their times.

    Parameters
    ----------
    one, other : CapacityChanged
        The capacities.
    """
    return one.capacity == other.capacity and one.num_workers == other.num_workers
