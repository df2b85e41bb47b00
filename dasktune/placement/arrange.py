"""Where the bundles of one trial go, given what is free.

Workers with equal room are as good as each other and stand in one pool, so the cost is by the
number of different rooms: on a cluster of equal workers a handful, however many workers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dasktune.placement.room import Room
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Pool", "arrange", "plan"]

#: Steps of a search for an arrangement of several bundles. The first attempt nearly always fits; to
#: prove that none does may take for ever, and to wait for a freer moment is as good.
_MOST_TRIES: Final = 1000

Needs = Mapping[str, float]


@dataclass(slots=True, eq=False)
class Pool:
    """Workers that are as good as each other.

    Parameters
    ----------
    room : Room
        What is free on each.
    scarce : tuple of str
        What each has that others may lack.
    fill : float
        Share of its scarcest resource that is taken, from 0 to 1.
    members : list of (int, str)
        Number and address of each, sorted: the smaller number goes first.
    """

    room: Room
    scarce: tuple[str, ...] = ()
    fill: float = 0.0
    members: list[tuple[int, str]] = field(default_factory=list)

    def rank(self, kinds: Iterable[str]) -> tuple[int, float]:
        """Return the smaller, the better it suits: scarce things go unused last, the full first."""
        return len(set(self.scarce).difference(kinds)), -self.fill


def arrange(
    bundles: Sequence[Needs], strategy: str, pools: Sequence[Pool]
) -> dict[int, str] | None:
    """Choose a worker for each bundle.

    Parameters
    ----------
    bundles : sequence of mapping
        Amounts by resource name.
    strategy : {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}
        Whether they should, or must, share one worker or be on different ones.
    pools : sequence of Pool
        The workers, none of them empty.

    Returns
    -------
    dict of int to str, or None
        Addresses by number of the bundle, in the order in which they are to be taken. Of those that
        suit, the fullest workers, so that whole ones stay free for larger trials and for scaling
        down. None if there is no room.

    Examples
    --------
    >>> pools = [Pool(Room((("CPU", 2),)), members=[(0, "a"), (1, "b")])]
    >>> arrange([{"CPU": 1}, {"CPU": 1}], "PACK", pools)
    {0: 'a', 1: 'a'}
    >>> arrange([{"CPU": 1}, {"CPU": 1}], "SPREAD", pools)
    {0: 'a', 1: 'b'}
    """
    order = sorted(range(len(bundles)), key=lambda number: _size(bundles[number]), reverse=True)
    needs = [bundles[number] for number in order]
    found = None
    if len(needs) == 1 or strategy in ("PACK", "STRICT_PACK"):
        found = _on_one(needs, pools)
    elif sum(len(pool.members) for pool in pools) >= len(needs):
        found = _search(needs, "STRICT_SPREAD", pools)
    if found is None and len(needs) > 1 and strategy in ("PACK", "SPREAD"):
        found = _search(needs, strategy, pools)
    return None if found is None else dict(zip(order, found, strict=True))


def plan(request: PlacementGroupFactory, pools: Iterable[Pool]) -> dict[int, str] | None:
    """Choose a worker for each bundle of a request, but not for an empty head that has helpers.

    Parameters
    ----------
    request : PlacementGroupFactory
        What a trial asks for.
    pools : iterable of Pool
        The workers.
    """
    bundles = dict(enumerate(request.bundles))
    if not bundles[0] and any(bundles.values()):
        del bundles[0]
    numbers = list(bundles)
    found = arrange(list(bundles.values()), request.strategy, list(pools))
    return None if found is None else {numbers[which]: found[which] for which in found}


def _size(needs: Needs) -> tuple[int, float, float]:
    """Return the larger, the harder it is to find a place: first what few workers have."""
    memory = needs.get("memory", 0)
    return len(needs.keys() - {"CPU", "memory"}), sum(needs.values()) - memory, memory


def _on_one(needs: Sequence[Needs], pools: Sequence[Pool]) -> list[str] | None:
    kinds = {kind for bundle in needs for kind in bundle}
    fitting = [pool for pool in pools if pool.room.take_all(needs) is not None]
    if not fitting:
        return None
    best = min(fitting, key=lambda pool: (*pool.rank(kinds), pool.members[0]))
    return [best.members[0][1]] * len(needs)


def _search(needs: Sequence[Needs], strategy: str, pools: Sequence[Pool]) -> list[str] | None:
    """Seat one bundle after the other, and go back where one finds no seat."""
    untried = [iter(_candidates(needs, strategy, pools, {}))]
    #: The address of each bundle so far, with what is then left on each worker in use.
    chosen: list[tuple[str, dict[str, Room]]] = []
    for _ in range(_MOST_TRIES):
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
    todo: Sequence[Needs], strategy: str, pools: Sequence[Pool], rooms: Mapping[str, Room]
) -> list[tuple[str, Room]]:
    """Return where the first of the remaining bundles can go, best first, and what is then left."""
    needs, *rest = todo
    fresh = []
    for pool in pools:
        member = next((one for one in pool.members if one[1] not in rooms), None)
        left = None if member is None else pool.room.take(needs)
        if member is not None and left is not None:
            # The more of the others go there too, the fewer workers it takes.
            company = _held(left, rest) if strategy == "PACK" else 0
            fresh.append(((-company, *pool.rank(needs), member), left))
    seats = [(rank[-1][1], left) for rank, left in sorted(fresh, key=lambda one: one[0])]
    if strategy == "STRICT_SPREAD":
        return seats
    taken = [(address, room.take(needs)) for address, room in rooms.items()]
    again = [(address, left) for address, left in taken if left is not None]
    return again + seats if strategy == "PACK" else seats + again


def _held(room: Room, bundles: Sequence[Needs]) -> int:
    """Return how many of some bundles there is room for, one after the other."""
    count = 0
    for needs in bundles:
        left = room.take(needs)
        if left is not None:
            room, count = left, count + 1
    return count
