"""Bin packing: assign the bundles of one trial to workers.

Workers with equal free capacity are interchangeable and form one pool. The cost depends on the
number of pools, which is small on a cluster of equal workers, not on the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from dasktune.placement.free_capacity import FreeCapacity

#: Maximum steps of the backtracking search. The first attempt nearly always succeeds. To prove that
#: no assignment exists can take exponential time; instead the request is tried again later.
MAX_STEPS: Final = 1000

Needs = Mapping[str, float]


@dataclass(slots=True, eq=False)
class WorkerPool:
    """Workers with equal free capacity, which are interchangeable.

    Parameters
    ----------
    free : FreeCapacity
        The free capacity of each worker.
    special : tuple of str
        Resources other than CPU and memory, which other workers may lack.
    fill : float
        Used fraction of the most used resource, from 0 to 1.
    members : list of (int, str)
        Arrival number and address of each worker, sorted.
    """

    free: FreeCapacity
    special: tuple[str, ...] = ()
    fill: float = 0.0
    members: list[tuple[int, str]] = field(default_factory=list)

    def rank(self, kinds: Iterable[str]) -> tuple[int, float]:
        """Return a sort key, smaller is better: few unused special resources, then high use."""
        return len(set(self.special).difference(kinds)), -self.fill


def assign_bundles(
    bundles: Sequence[Needs], strategy: str, pools: Sequence[WorkerPool], *, max_steps: int = MAX_STEPS
) -> dict[int, str] | None:
    """Assign each bundle to a worker.

    Parameters
    ----------
    bundles : sequence of mapping
        Amounts by resource name.
    strategy : {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}
        Ray's placement strategies: the bundles should or must share one worker, or be on
        different workers.
    pools : sequence of WorkerPool
        The pools of workers; each has at least one member.
    max_steps : int, default=1000
        Maximum steps of the search, after which the bundles count as too large for now.

    Returns
    -------
    dict of int to str, or None
        Addresses by bundle number, in the order of allocation; None if the bundles do not fit.
        The most used suitable workers are chosen, so that others stay free for larger trials and
        for scaling down.

    Examples
    --------
    >>> pools = [WorkerPool(FreeCapacity((("CPU", 2),)), members=[(0, "a"), (1, "b")])]
    >>> assign_bundles([{"CPU": 1}, {"CPU": 1}], "PACK", pools)
    {0: 'a', 1: 'a'}
    >>> assign_bundles([{"CPU": 1}, {"CPU": 1}], "SPREAD", pools)
    {0: 'a', 1: 'b'}
    """
    order = sorted(range(len(bundles)), key=lambda number: _size(bundles[number]), reverse=True)
    needs = [bundles[number] for number in order]
    found = None
    search = partial(_backtrack, needs, pools=pools, max_steps=max_steps)
    if len(needs) == 1 or strategy in ("PACK", "STRICT_PACK"):
        found = _assign_to_one_worker(needs, pools)
    elif sum(len(pool.members) for pool in pools) >= len(needs):
        found = search("STRICT_SPREAD")
    if found is None and len(needs) > 1 and strategy in ("PACK", "SPREAD"):
        found = search(strategy)
    return None if found is None else dict(zip(order, found, strict=True))


def _size(needs: Needs) -> tuple[int, float, float]:
    """Return a sort key: larger for bundles that are harder to place, special resources first."""
    memory = needs.get("memory", 0)
    return len(needs.keys() - {"CPU", "memory"}), sum(needs.values()) - memory, memory


def _assign_to_one_worker(needs: Sequence[Needs], pools: Sequence[WorkerPool]) -> list[str] | None:
    kinds = {kind for bundle in needs for kind in bundle}
    fitting = [pool for pool in pools if pool.free.allocate_all(needs) is not None]
    if not fitting:
        return None
    best = min(fitting, key=lambda pool: (*pool.rank(kinds), pool.members[0]))
    return [best.members[0][1]] * len(needs)


def _backtrack(
    needs: Sequence[Needs], strategy: str, pools: Sequence[WorkerPool], max_steps: int
) -> list[str] | None:
    """Assign one bundle after the other, and backtrack when one does not fit."""
    untried = [iter(_candidates(needs, strategy, pools, {}))]
    #: For each assigned bundle: the worker's address, and the free capacity of all used workers
    #: after the assignment.
    chosen: list[tuple[str, dict[str, FreeCapacity]]] = []
    for _ in range(max_steps):
        step = next(untried[-1], None)
        if step is None:
            untried.pop()
            if not untried:
                return None
            chosen.pop()
            continue
        address, left = step
        rooms = {**(chosen[-1][1] if chosen else {}), address: left}
        chosen.append((address, rooms))
        if len(chosen) == len(needs):
            return [address for address, _ in chosen]
        untried.append(iter(_candidates(needs[len(chosen) :], strategy, pools, rooms)))
    return None


def _candidates(
    todo: Sequence[Needs], strategy: str, pools: Sequence[WorkerPool], rooms: Mapping[str, FreeCapacity]
) -> list[tuple[str, FreeCapacity]]:
    """Return workers for the first remaining bundle, best first, and their capacity left."""
    needs, *rest = todo
    fresh = []
    for pool in pools:
        member = next((one for one in pool.members if one[1] not in rooms), None)
        left = None if member is None else pool.free.allocate(needs)
        if member is not None and left is not None:
            # Prefer workers that can hold more of the remaining bundles, to use fewer workers.
            company = _count_fitting(left, rest) if strategy == "PACK" else 0
            fresh.append(((-company, *pool.rank(needs), member), left))
    seats = [(rank[-1][1], left) for rank, left in sorted(fresh, key=lambda one: one[0])]
    if strategy == "STRICT_SPREAD":
        return seats
    taken = [(address, room.allocate(needs)) for address, room in rooms.items()]
    again = [(address, left) for address, left in taken if left is not None]
    return again + seats if strategy == "PACK" else seats + again


def _count_fitting(room: FreeCapacity, bundles: Sequence[Needs]) -> int:
    """Return how many bundles fit when they are allocated one after the other."""
    count = 0
    for needs in bundles:
        left = room.allocate(needs)
        if left is not None:
            room, count = left, count + 1
    return count
