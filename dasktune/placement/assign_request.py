"""Assign the bundles of a request to workers, by worker or by host.

The ranks of a distributed trial talk to each other, within a host much faster than between two. So
hosts count for them, and not the workers: a cluster with a worker for each GPU has eight workers on
a host. The bundles are equal, so a host has a room for a number of them, and no search is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dasktune.placement.bin_packing import WorkerPool, assign_bundles
from dasktune.placement.free_capacity import FreeCapacity
from dasktune.placement.host_layout import bundles_per_host, host_of
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory

Needs = Mapping[str, float]

#: A worker's sort key, smaller is better: the pool's rank, and the member.
_WorkerKey = tuple[tuple[int, float], tuple[int, str]]


def assign_request(request: PlacementGroupFactory, pools: Iterable[WorkerPool]) -> dict[int, str] | None:
    """Assign the bundles of a request to workers; an empty head is left out if more bundles follow.

    Parameters
    ----------
    request : PlacementGroupFactory
        The resources of a trial.
    pools : iterable of WorkerPool
        The pools of workers.
    """
    if isinstance(request, HostPlacement):
        return assign_to_hosts(request, list(pools))
    bundles = dict(enumerate(request.bundles))
    if not bundles[0] and any(bundles.values()):
        del bundles[0]
    numbers = list(bundles)
    found = assign_bundles(list(bundles.values()), request.strategy, list(pools))
    return None if found is None else {numbers[which]: found[which] for which in found}


@dataclass(slots=True)
class _Host:
    """A host with the workers that have room for a bundle."""

    #: How many bundles fit on each worker, by its key.
    workers: dict[_WorkerKey, int] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """How many bundles fit."""
        return sum(self.workers.values())

    @property
    def key(self) -> tuple[int, int, _WorkerKey]:
        """Return a sort key, smaller is better: the tightest host that is not needed for others."""
        best = min(self.workers)
        (special, _), _ = best
        return special, self.room, best

    def seats(self, count: int) -> list[str]:
        """Return the addresses for so many bundles: the best worker is filled first."""
        seats = [key[1][1] for key, room in sorted(self.workers.items()) for _ in range(room)]
        return seats[:count]


def assign_to_hosts(request: HostPlacement, pools: Sequence[WorkerPool]) -> dict[int, str] | None:
    """Assign the bundles of a request to workers; None if they do not fit.

    Parameters
    ----------
    request : HostPlacement
        The request, with equal bundles.
    pools : sequence of WorkerPool
        The pools of workers.

    Returns
    -------
    dict of int to str, or None
        Addresses by bundle number. ``"PACK"`` uses the fewest hosts, and equally many bundles on
        each of them if that needs no more; ``"SPREAD"`` the most. `per_host` overrules both.

    Examples
    --------
    >>> room = FreeCapacity((("GPU", 1),), (0.0,))
    >>> members = [(0, "tcp://a:1"), (1, "tcp://b:1"), (2, "tcp://a:2")]
    >>> pools = [WorkerPool(room, members=members)]
    >>> assign_to_hosts(HostPlacement([{"GPU": 1}] * 2), pools)
    {0: 'tcp://a:1', 1: 'tcp://a:2'}
    >>> assign_to_hosts(HostPlacement([{"GPU": 1}] * 2, "SPREAD"), pools)
    {0: 'tcp://b:1', 1: 'tcp://a:1'}
    """
    bundles = request.bundles
    hosts = sorted(_hosts(bundles[0], len(bundles), pools), key=lambda host: host.key)
    rooms = [host.room for host in hosts]
    counts = bundles_per_host(len(bundles), request.strategy, request.per_host, rooms)
    if counts is None:
        return None
    seats = [address for host, count in zip(hosts, counts, strict=True) for address in host.seats(count)]
    return dict(enumerate(seats))


def _hosts(needs: Needs, most: int, pools: Sequence[WorkerPool]) -> list[_Host]:
    """Return the hosts with room for a bundle."""
    hosts: dict[str, _Host] = {}
    for pool in pools:
        room = _count_equal(pool.free, needs, most)
        if room:
            rank = pool.rank(needs)
            for member in pool.members:
                hosts.setdefault(host_of(member[1]), _Host()).workers[rank, member] = room
    return list(hosts.values())


def _count_equal(free: FreeCapacity, needs: Needs, most: int) -> int:
    """Return how many times the needs fit, at most `most`."""
    count, left = 0, free.allocate(needs)
    while left is not None and count < most:
        count, left = count + 1, left.allocate(needs)
    return count
