"""Bin packing: assign the bundles of one trial to workers.

Workers with equal free capacity are interchangeable and form one pool. The cost depends on the
number of pools, which is small on a cluster of equal workers, not on the number of workers.

Drivers place trials by :func:`assign_bundles`, and the plan of fair shares reserves room by
:func:`assign_to_several`. So this module travels by value to schedulers without dasktune, and
imports only the standard library and modules that travel, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from dasktune.placement.free_capacity import FreeCapacity

#: Maximum steps of the backtracking search. The first attempt nearly always succeeds. To prove that
#: no assignment exists can take exponential time; instead the request is tried again later.
MAX_STEPS: Final = 1000

#: Number of unused workers that are compared by how many bundles they have room for. No two of a
#: thousand workers may be equal, and a plan of fair shares makes many searches.
_MOST_COMPARED: Final = 32

Needs = Mapping[str, float]

#: Workers and what is free there.
Workers = Iterator[tuple[str, FreeCapacity]]

#: Returns the workers that are not among the given ones, those first that a bundle should use.
Unused = Callable[[Needs, Container[str]], Workers]


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
    if len(bundles) == 1 or strategy in ("PACK", "STRICT_PACK"):
        found = _assign_to_one_worker(_hardest_first(bundles), pools)
        if found is not None or len(bundles) == 1 or strategy == "STRICT_PACK":
            return found

    def unused(needs: Needs, used: Container[str]) -> Workers:
        firsts = ((pool, next((one for one in pool.members if one[1] not in used), None)) for pool in pools)
        ranked = sorted((pool.rank(needs), first, pool.free) for pool, first in firsts if first is not None)
        return ((address, free) for _, (_, address), free in ranked)

    number = sum(len(pool.members) for pool in pools)
    return assign_to_several(bundles, strategy, number, unused, max_steps=max_steps)


def assign_to_several(
    bundles: Sequence[Needs],
    strategy: str,
    number: int,
    unused: Unused,
    *,
    max_steps: int = MAX_STEPS,
) -> dict[int, str] | None:
    """Assign each bundle to a worker, as `assign_bundles` does if they are not on one worker.

    Parameters
    ----------
    bundles, strategy
        As for `assign_bundles`.
    number : int
        Number of workers.
    unused : callable
        Returns the workers that are not among some others, those first that a bundle should use. It
        may leave out those without room for it, and all but one of equal ones.
    max_steps : int, default=1000
        As for `assign_bundles`.
    """
    todo = _hardest_first(bundles)
    found = None
    if strategy != "PACK" and number >= len(todo):
        found = _backtrack([*todo.values()], "STRICT_SPREAD", unused, max_steps)
    if found is None and strategy != "STRICT_SPREAD":
        found = _backtrack([*todo.values()], strategy, unused, max_steps)
    return None if found is None else dict(zip(todo, found, strict=True))


def _hardest_first(bundles: Sequence[Needs]) -> dict[int, Needs]:
    """Return the bundles by number, in the order of allocation."""
    return dict(sorted(enumerate(bundles), key=lambda one: _size(one[1]), reverse=True))


def _size(needs: Needs) -> tuple[int, float, float]:
    """Return a sort key: larger for bundles that are harder to place, special resources first."""
    memory = needs.get("memory", 0)
    return len(needs.keys() - {"CPU", "memory"}), sum(needs.values()) - memory, memory


def _assign_to_one_worker(bundles: Mapping[int, Needs], pools: Sequence[WorkerPool]) -> dict[int, str] | None:
    kinds = {kind for needs in bundles.values() for kind in needs}
    fitting = [pool for pool in pools if pool.free.allocate_all(bundles.values()) is not None]
    if not fitting:
        return None
    best = min(fitting, key=lambda pool: (*pool.rank(kinds), pool.members[0]))
    return dict.fromkeys(bundles, best.members[0][1])


def _backtrack(needs: Sequence[Needs], strategy: str, unused: Unused, max_steps: int) -> list[str] | None:
    """Assign one bundle after the other, and backtrack when one does not fit."""
    untried = [_candidates(needs, strategy, unused, {})]
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
        untried.append(_candidates(needs[len(chosen) :], strategy, unused, rooms))
    return None


def _candidates(
    todo: Sequence[Needs], strategy: str, unused: Unused, rooms: Mapping[str, FreeCapacity]
) -> Workers:
    """Yield workers for the first remaining bundle, best first, and their capacity left."""
    needs, *rest = todo
    again = () if strategy == "STRICT_SPREAD" else _fitting(needs, rooms.items())
    fresh = unused(needs, rooms)
    if strategy == "PACK":
        yield from again
        # Prefer workers that can hold more of the remaining bundles, to use fewer workers.
        others = []
        for address, left in _fitting(needs, islice(fresh, _MOST_COMPARED)):
            count = _count_fitting(left, rest)
            if count == len(rest):
                yield address, left
            else:
                others.append((count, address, left))
        for _, address, left in sorted(others, key=lambda one: -one[0]):
            yield address, left
    yield from _fitting(needs, fresh)
    if strategy == "SPREAD":
        yield from again


def _fitting(needs: Needs, workers: Iterable[tuple[str, FreeCapacity]]) -> Workers:
    """Yield those with room for a bundle, one of several equal workers, and their capacity left."""
    tried = set()
    for address, free in workers:
        if free not in tried:
            tried.add(free)
            left = free.allocate(needs)
            if left is not None:
                yield address, left


def _count_fitting(room: FreeCapacity, bundles: Sequence[Needs]) -> int:
    """Return how many bundles fit when they are allocated one after the other."""
    count = 0
    for needs in bundles:
        left = room.allocate(needs)
        if left is not None:
            room, count = left, count + 1
    return count
