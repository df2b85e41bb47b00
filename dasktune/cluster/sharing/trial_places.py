"""Where the trials of a plan go: the rooms of the workers, and the search for places in them.

This module travels by value to schedulers without dasktune, together with
:mod:`dasktune.cluster.sharing.amounts` and what it uses of the modules of
:mod:`dasktune.placement`.

Rooms only become smaller while a plan is made. So each search continues where the last one for an
equal request has ended: what had no room then has none now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping, Sequence
from functools import cache
from heapq import heapify, heappop, heapreplace
from math import ceil
from typing import Any

from dasktune.cluster.sharing.amounts import (
    EPSILON,
    SINGLE_GPU,
    Amounts,
    add,
    dominant_share,
    fits,
    sum_of,
    take,
)
from dasktune.cluster.sharing.due_shares import ShareRequest
from dasktune.placement.bin_packing import Workers, assign_to_several
from dasktune.placement.devices import PLACES, pick_gpus
from dasktune.placement.free_capacity import FreeCapacity
from dasktune.placement.host_layout import bundles_per_host, host_of

#: No resources.
_NOTHING: Amounts = {}


class TrialPlaces:
    """The rooms of the workers while a plan is made, and the places of trials in them.

    Parameters
    ----------
    capacity : mapping
        ``{address: amounts}``: the resources of each worker, as for
        :func:`~dasktune.cluster.sharing.fair_share.plan_shares`.
    totals : mapping
        The amounts of the whole cluster.
    """

    def __init__(self, capacity: Mapping[str, Amounts], totals: Amounts) -> None:
        self._totals = totals
        self._addresses = list(capacity)
        #: What is not dealt yet; other programs may use more than a worker has.
        self._rooms = {a: {k: max(0.0, v) for k, v in room.items()} for a, room in capacity.items()}
        #: The resources that are single GPUs, by address.
        self._gpus = {
            a: [kind for kind in room if kind.startswith(SINGLE_GPU)] for a, room in capacity.items()
        }
        #: What is not dealt and not held either. It is never more than what is not dealt.
        self._free = {address: dict(room) for address, room in self._rooms.items()}
        #: What experiments hold that have more than is due to them, by address.
        self._excess: dict[str, dict[str, float]] = {}
        #: The amount of the whole cluster by which each resource is measured.
        self._units = {
            kind: totals.get("GPU" if kind.startswith(SINGLE_GPU) else kind) or 1.0
            for kind in set().union(*capacity.values())
        }
        self._orders: dict[Any, deque[str]] = {}
        self._searches: dict[Any, list[tuple[tuple[float, float, float], int]]] = {}
        #: The searches for several bundles that found no room. Rooms only become smaller while the
        #: plan is made.
        self._without_room: set[Any] = set()
        #: Many workers have equal rooms.
        self._free_capacity = cache(_free_capacity)

    def count_holdings(self, holdings: Sequence[Sequence[tuple[str, Amounts]]], due: float) -> None:
        """Count what an experiment holds as not free.

        Parameters
        ----------
        holdings : sequence
            As for :class:`~dasktune.cluster.sharing.due_shares.Contender`.
        due : float
            The share that is due to it. If it holds more, others may wait for what it holds.
        """
        held: dict[str, dict[str, float]] = {}
        free = self._free
        for trial in holdings:
            for address, needs in trial:
                if address in free:
                    take(free[address], needs)
                    if address in held:
                        add(held[address], needs)
                    else:
                        held[address] = dict(needs)
        if dominant_share(sum_of(held.values()), self._totals) > due + EPSILON:
            for address, amounts in held.items():
                add(self._excess.setdefault(address, {}), amounts)

    def keep(self, trial: Sequence[tuple[str, Amounts]]) -> bool:
        """Let a trial keep what it holds; return whether there is still room for it."""
        rooms = self._rooms
        for address, held in trial:
            if address not in rooms or not fits(rooms[address], held):
                return False
        for address, held in trial:
            take(rooms[address], held)
        return True

    def deal(self, found: Sequence[tuple[str, Amounts]]) -> None:
        """Take the room that :meth:`find` has found for a trial."""
        for address, needs in found:
            take(self._rooms[address], needs)
            take(self._free[address], needs)

    def left(self) -> dict[str, dict[str, float]]:
        """Return what is left of each worker."""
        return {a: {k: max(0.0, v) for k, v in room.items()} for a, room in self._rooms.items()}

    def find(
        self, request: ShareRequest, closed: frozenset[str]
    ) -> tuple[list[tuple[str, Amounts]] | None, bool]:
        """Return where a trial goes, None if nowhere, and whether it can start there now.

        The amounts of each place include single GPUs.
        """
        # The head bundle may be empty. User code then runs beside the next bundle.
        bundles = [needs for needs in request.bundles if needs]
        if request.by_host and len(bundles) > 1:
            on_hosts = self._find_on_hosts(request, closed, self._free)
            if on_hosts is not None:
                return on_hosts, True
            return self._find_on_hosts(request, closed, self._rooms), False
        together = None
        if len(bundles) == 1 or request.strategy in ("PACK", "STRICT_PACK"):
            together, starts = self._find_worker(_combined(bundles), closed)
            if together is not None and (starts or len(bundles) == 1 or request.strategy == "STRICT_PACK"):
                return [together], starts
        if len(bundles) == 1 or request.strategy == "STRICT_PACK":
            return None, False
        found = self._find_workers(bundles, request.strategy, closed, self._free)
        if found is not None:
            return found, True
        if together is not None:
            return [together], False
        return self._find_workers(bundles, request.strategy, closed, self._rooms), False

    def _find_on_hosts(
        self, request: ShareRequest, closed: frozenset[str], rooms: Mapping[str, Amounts]
    ) -> list[tuple[str, Amounts]] | None:
        """Return workers for all bundles of a distributed trial, whose strategy counts hosts.

        As a driver does it, see `assign_to_hosts`. Of equally good hosts those come first on which
        experiments hold room that have more than is due to them, and then the tightest ones.
        """
        bundle, total = request.bundles[0], len(request.bundles)
        layout = request.strategy, request.per_host, rooms is self._free
        key = tuple(bundle.items()), total, closed, layout
        if key in self._without_room:
            return None
        hosts: dict[str, dict[str, list[Amounts]]] = {}
        for address in self._addresses:
            copies = [] if address in closed else self._copies(address, bundle, total, rooms)
            if copies:
                hosts.setdefault(host_of(address), {})[address] = copies

        def room_of(workers: Mapping[str, list[Amounts]]) -> int:
            return sum(map(len, workers.values()))

        def cost(workers: Mapping[str, list[Amounts]]) -> tuple[int, int, int]:
            if rooms is self._free:
                return 0, 0, room_of(workers)
            now = sum(_count(self._free[a], bundle, total) for a in workers)
            freed = (sum_of((self._free[a], self._excess.get(a, _NOTHING))) for a in workers)
            soon = sum(_count(room, bundle, total) for room in freed)
            return -min(soon, total), -min(now, total), room_of(workers)

        order = sorted(hosts.values(), key=cost)
        counts = bundles_per_host(total, request.strategy, request.per_host, list(map(room_of, order)))
        if counts is None:
            self._without_room.add(key)
            return None
        found = []
        for workers, number in zip(order, counts, strict=True):
            best_first = sorted(workers, key=lambda address: self._rank(address, bundle))
            found += [(address, needs) for address in best_first for needs in workers[address]][:number]
        return found

    def _copies(
        self, address: str, bundle: Amounts, most: int, rooms: Mapping[str, Amounts]
    ) -> list[Amounts]:
        """Return what each of the equal bundles takes that fit on a worker, at most so many."""
        gpus = self._gpus[address]
        if not gpus or not bundle.get("GPU"):
            return [bundle] * _count(rooms[address], bundle, most)
        room, free = dict(rooms[address]), dict(self._free[address])
        copies: list[Amounts] = []
        while len(copies) < most and (needs := _with_gpus(bundle, room, free, gpus)) is not None:
            copies.append(needs)
            take(room, needs)
            take(free, needs)
        return copies

    def _find_workers(
        self,
        bundles: Sequence[Amounts],
        strategy: str,
        closed: frozenset[str],
        rooms: Mapping[str, Amounts],
    ) -> list[tuple[str, Amounts]] | None:
        """Return workers for all bundles of a trial, as a driver finds them.

        Room that is not free is reserved where least is missing for the largest bundle. Rooms only
        become smaller while the plan is made. So the first workers are dropped once they have no
        room for any bundle, and what was not found once is not searched again.
        """
        key = tuple(tuple(needs.items()) for needs in bundles), strategy, closed, rooms is self._free
        if key in self._without_room:
            return None
        kinds = list({tuple(needs.items()): needs for needs in bundles}.values())
        order = self._orders.get(key)
        if order is None:
            usable = [a for a in self._addresses if a not in closed and _fits_some(rooms[a], kinds)]
            if rooms is not self._free:
                largest = max(kinds, key=lambda needs: dominant_share(needs, self._totals))
                usable.sort(key=lambda address: self._missing(address, largest))
            order = self._orders[key] = deque(usable)
        while order and not _fits_some(rooms[order[0]], kinds):
            order.popleft()

        def unused(_: Amounts, used: Container[str]) -> Workers:
            return ((a, self._free_capacity(tuple(rooms[a].items()))) for a in order if a not in used)

        found = assign_to_several(bundles, strategy, len(order), unused)
        if found is None:
            self._without_room.add(key)
            return None
        places: list[tuple[str, Amounts]] = []
        left: dict[str, dict[str, float]] = {}
        for number, address in found.items():
            room = left.setdefault(address, dict(rooms[address]))
            # The search has found that it fits.
            needs = _with_gpus(bundles[number], room, room, self._gpus[address]) or bundles[number]
            take(room, needs)
            places.append((address, needs))
        return places

    def _find_worker(
        self, bundles: Sequence[Amounts], closed: frozenset[str]
    ) -> tuple[tuple[str, Amounts] | None, bool]:
        """Return where least is missing for all bundles of a trial, and whether nothing is missing.

        If something is missing everywhere, it is a worker where experiments hold it that have more
        than is due to them: the others do not yield. Of equal workers it is the fullest one.

        Rooms only become smaller while the plan is made. So a worker without room is dropped for
        good, and the rank of the first one is checked before it is used.
        """
        key = tuple(tuple(needs.items()) for needs in bundles), closed
        search = self._searches.get(key)
        if search is None:
            search = []
            for number, address in enumerate(self._addresses):
                if address not in closed and (needs := self._choose_gpus(address, bundles)) is not None:
                    search.append((self._rank(address, needs), number))
            heapify(search)
            self._searches[key] = search
        while search:
            rank, number = search[0]
            address = self._addresses[number]
            needs = self._choose_gpus(address, bundles)
            if needs is None:
                heappop(search)
                continue
            now = self._rank(address, needs)
            if now > rank:
                heapreplace(search, (now, number))
                continue
            return (address, needs), now[1] <= EPSILON
        return None, False

    def _choose_gpus(self, address: str, bundles: Sequence[Amounts]) -> Amounts | None:
        """Return what bundles take of a worker together; None if they do not fit there."""
        gpus = self._gpus[address]
        if len(bundles) == 1:
            return _with_gpus(bundles[0], self._rooms[address], self._free[address], gpus)
        room, free = dict(self._rooms[address]), dict(self._free[address])
        taken: dict[str, float] = {}
        for bundle in bundles:
            needs = _with_gpus(bundle, room, free, gpus)
            if needs is None:
                return None
            take(room, needs)
            take(free, needs)
            add(taken, needs)
        return taken

    def _rank(self, address: str, needs: Amounts) -> tuple[float, float, float]:
        """Return what neither is free nor will be, what is not free, and what else is free."""
        free, slack, missing = self._free[address], 0.0, 0.0
        for kind, amount in needs.items():
            room = free.get(kind, 0.0)
            if room > 0 and kind in self._totals:
                slack += room / self._units[kind]
            if amount - room > EPSILON:
                missing += (amount - room) / self._units.get(kind, 1.0)
        if missing <= EPSILON or (excess := self._excess.get(address)) is None:
            return missing, missing, slack
        return self._missing(address, needs, excess), missing, slack

    def _missing(self, address: str, needs: Amounts, more: Amounts = _NOTHING) -> float:
        """Return what is missing of `needs` on a worker, as the sum of fractions of the cluster."""
        free = self._free[address]
        lacks = ((k, amount - free.get(k, 0.0) - more.get(k, 0.0)) for k, amount in needs.items())
        return sum(lack / self._units.get(kind, 1.0) for kind, lack in lacks if lack > EPSILON)


def _free_capacity(room: Sequence[tuple[str, float]]) -> FreeCapacity:
    """Return a room as drivers see it. GPUs that are not known one by one count as unused."""
    amounts = {kind: round(amount, PLACES) for kind, amount in room if not kind.startswith(SINGLE_GPU)}
    loads = tuple(round(1 - part, PLACES) for kind, part in room if kind.startswith(SINGLE_GPU))
    return FreeCapacity(tuple(amounts.items()), loads or (0.0,) * ceil(amounts.get("GPU", 0)))


def _combined(bundles: Sequence[Amounts]) -> Sequence[Amounts]:
    """Return the bundles as one, unless several have GPUs: each of them has its own GPUs."""
    return bundles if sum("GPU" in needs for needs in bundles) > 1 else [sum_of(bundles)]


def _with_gpus(needs: Amounts, room: Amounts, free: Amounts, gpus: Sequence[str]) -> Amounts | None:
    """Return `needs` with the GPUs that it gets; None if it does not fit into the room.

    Parameters
    ----------
    needs : mapping
        The amounts of one bundle.
    room, free : mapping
        What may be taken of the worker, and what is free of it. Free GPUs are preferred.
    gpus : sequence of str
        The worker's single GPUs.
    """
    if not fits(room, needs):
        return None
    amount = needs.get("GPU")
    if not amount or not gpus:
        return needs
    # The room of a GPU is never less than what is free of it.
    parts = [free[gpu] for gpu in gpus]
    is_full = max(parts) + EPSILON < min(amount, 1.0)
    positions = None if is_full else pick_gpus([1 - part for part in parts], amount)
    if positions is not None:
        chosen = [gpus[position] for position in positions]
    else:
        # Reserve GPUs that others hold: those of which most is free.
        usable = [gpu for gpu in gpus if room[gpu] + EPSILON >= min(amount, 1.0)]
        if len(usable) < amount:
            return None
        chosen = sorted(usable, key=lambda gpu: -free[gpu])[: max(1, int(amount))]
    return {**needs, **dict.fromkeys(chosen, amount / len(chosen))}


def _fits_some(room: Amounts, kinds: Sequence[Amounts]) -> bool:
    return any(fits(room, needs) for needs in kinds)


def _count(room: Amounts, needs: Amounts, most: int) -> int:
    """Return how many times the needs fit, at most `most`."""
    times = ((room.get(kind, 0.0) + EPSILON) / amount for kind, amount in needs.items() if amount)
    # Rounded last: the memory of a worker may have no limit.
    return max(0, int(min([*times, most])))
