"""Plans how experiments share a cluster: weighted dominant resource fairness with strict classes.

The plan is a pure function of what each experiment holds and requests. This module travels by value
to schedulers without dasktune, together with the functions that it uses of
:mod:`dasktune.placement.devices` and :mod:`dasktune.placement.host_layout`. All three import only
the standard library besides.

A *share* is the largest fraction of any resource of the cluster, the dominant share of Ghodsi et
al. (Dominant Resource Fairness, NSDI 2011). Resources are dealt in pieces, one trial after another:
next comes the experiment of the highest class whose share, divided by its weight, is the smallest.
What an experiment already holds is dealt before what it requests, and counts slightly less, so that
trials keep their places while shares are nearly equal.

Shares of whole trials are seldom exact: three equal experiments cannot each have a third of two
CPUs. Each experiment has a *lag*, the share-seconds that it had too little (positive) or too much
(negative). The lag counts against its share, so experiments alternate, and their shares are fair
over some seconds.

Experiments may form groups. Groups then share as experiments do, and each group's share is divided
between its experiments by their weights. An experiment without a group is a group by itself.

A request that fits nowhere now reserves room: where experiments with more than their share have it,
and there where least is missing. The plan deals that room as if it was free, so the trials that
hold it are not continued there. What fits elsewhere is still dealt, and what is left over may be
used by every experiment.

GPUs count as a sum and one by one: two free halves of two GPUs are no whole GPU. So a worker with
GPUs has a further resource for each of them, see :func:`gpu_amounts`. The plan chooses the GPUs of
a request as the workers do, with :func:`~dasktune.placement.devices.pick_gpus`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from math import inf
from typing import Any, NamedTuple

from dasktune.placement.devices import pick_gpus
from dasktune.placement.host_layout import bundles_per_host, host_of

__all__ = [
    "CREDIT",
    "Contender",
    "SharePlan",
    "ShareRequest",
    "dominant_share",
    "due_shares",
    "gpu_amounts",
    "next_lag",
    "plan_shares",
    "total_amounts",
]

Amounts = Mapping[str, float]

#: The rank of an experiment in the queue: class, share of its group with the next trial, number.
_Rank = tuple[float, float, int]

#: Tolerance of rounding errors: ten shares of 0.1 must fit into 1.
_EPSILON = 1e-6

#: A lag of so many share-seconds counts as much as a whole share. A longer memory delays the first
#: trial of an experiment that joins.
_HORIZON = 2.0

#: Bound of the lag in share-seconds, in both directions. The lag of an experiment that waits and
#: holds nothing has no upper bound: with long trials all lags would reach it, and then the order of
#: the experiments would decide, always in favour of the same ones.
_MOST_LAG = 3.0

#: Seconds after which it does not matter any more that an experiment had too much, if it holds no
#: more than is due to it. Otherwise others that hold too much now would keep it.
_FORGIVEN = 20.0

#: The fraction of a trial's share that is subtracted for a trial that holds its resources.
_KEPT_BONUS = 0.25

#: The lag, in share-seconds, of an experiment that makes its first request.
CREDIT = 0.25

#: Number of trials on several workers that one plan deals for a request. The next plan deals more.
_MOST_SPREAD = 16

#: No resources.
_NOTHING: Amounts = {}

#: Prefix of the resources that are single GPUs. One that a worker declares by such a name has no
#: share.
_GPU = "GPU/"

#: Steps of the search for the places of several bundles, as in `dasktune.placement.bin_packing`.
_MOST_STEPS = 200


class ShareRequest(NamedTuple):
    """Trials that an experiment would start now if it had room.

    Parameters
    ----------
    bundles : tuple of mapping
        The resources of each bundle of one trial.
    strategy : str
        One of Ray's placement strategies ``"PACK"``, ``"SPREAD"``, ``"STRICT_PACK"`` and
        ``"STRICT_SPREAD"``.
    trials : int
        Number of trials.
    by_host : bool
        Whether the strategy counts hosts and not workers. The bundles are equal then.
    per_host : int or None
        The exact number of bundles on each host.
    """

    bundles: tuple[Amounts, ...]
    strategy: str
    trials: int
    by_host: bool = False
    per_host: int | None = None


class Contender(NamedTuple):
    """An experiment that shares the cluster.

    Parameters
    ----------
    name : str
        Unique name of the experiment.
    weight : float
        Its share relative to the other experiments of its class; positive.
    priority : float
        Its class. A higher class gets all it requests before a lower class gets anything.
    lag : float
        Share-seconds that it had too little, see :func:`next_lag`.
    holdings : sequence
        For each of its trials: pairs of a worker's address and the resources held there, with their
        GPUs as in :func:`gpu_amounts` if they are known.
    requests : sequence of ShareRequest
        What it waits for.
    closed : frozenset of str
        Addresses of the workers that it cannot use now.
    group : str
        The group whose share it divides with others of its class; empty for none.
    group_weight : float
        The weight of the group; positive.
    """

    name: str
    weight: float = 1.0
    priority: float = 0.0
    lag: float = 0.0
    holdings: Sequence[Sequence[tuple[str, Amounts]]] = ()
    requests: Sequence[ShareRequest] = ()
    closed: frozenset[str] = frozenset()
    group: str = ""
    group_weight: float = 1.0


class SharePlan(NamedTuple):
    """What each experiment may hold on each worker.

    Parameters
    ----------
    granted : dict
        ``{name: {address: amounts}}``: what is dealt to each experiment.
    left : dict
        ``{address: amounts}``: what is dealt to none. Every experiment may use it.
    startable : dict
        ``{name: addresses}``: the workers on which each experiment can start a trial now.
    spread : dict
        ``{name: [{address: amounts}]}``: where each experiment can start trials on several workers
        now.
    contended : bool
        Whether some experiment cannot start at once all that it requests. Otherwise no experiment
        needs to be limited.
    """

    granted: dict[str, dict[str, dict[str, float]]]
    left: dict[str, dict[str, float]]
    startable: dict[str, set[str]]
    spread: dict[str, list[dict[str, dict[str, float]]]]
    contended: bool

    def allowed(self, name: str, address: str) -> dict[str, float] | None:
        """Return what an experiment may hold on a worker; None if the plan lacks the worker."""
        left = self.left.get(address)
        if left is None:
            return None
        granted = self.granted.get(name, {}).get(address)
        return left if not granted else {kind: left[kind] + granted.get(kind, 0.0) for kind in left}


def plan_shares(
    capacity: Mapping[str, Amounts],
    contenders: Sequence[Contender],
    due: Mapping[str, float] | None = None,
) -> SharePlan:
    """Return what each experiment may hold on each worker.

    Parameters
    ----------
    capacity : mapping
        ``{address: amounts}``: the resources of each worker that no other program uses, with those
        of :func:`gpu_amounts` if its GPUs are known. An infinite amount has no share.
    contenders : sequence of Contender
        The experiments. Equal arguments give equal plans.
    due : mapping, optional
        What :func:`due_shares` returns for them, if it is known.

    Examples
    --------
    >>> held = [[("a", {"CPU": 1})], [("a", {"CPU": 1})]]
    >>> one = ShareRequest(({"CPU": 1},), "PACK", 5)
    >>> first = Contender("first", holdings=held, requests=[one])
    >>> plan = plan_shares({"a": {"CPU": 2}}, [first, Contender("second", requests=[one])])
    >>> plan.allowed("first", "a"), plan.allowed("second", "a")
    ({'CPU': 1.0}, {'CPU': 1.0})
    """
    if due is None:
        due = due_shares(total_amounts(capacity), contenders)
    return _Planner(capacity, contenders, due).plan()


def gpu_amounts(parts: Mapping[int, float]) -> dict[str, float]:
    """Return amounts of single GPUs of a worker as resources.

    Parameters
    ----------
    parts : mapping
        The part of each GPU, from 0 to 1, by its position on the worker.

    Examples
    --------
    >>> half = {"GPU": 0.5, **gpu_amounts({1: 0.5})}
    >>> room = {"GPU": 2, **gpu_amounts({0: 1, 1: 1})}
    >>> whole = Contender("whole", requests=[ShareRequest(({"GPU": 1},), "PACK", 1)])
    >>> other = Contender("other", holdings=[[("a", half)]])
    >>> plan_shares({"a": room}, [whole, other]).granted["whole"]
    {'a': {'GPU': 1.0, 'GPU/0': 1.0}}
    """
    return {f"{_GPU}{position}": part for position, part in parts.items()}


def total_amounts(capacity: Mapping[str, Amounts]) -> dict[str, float]:
    """Return the finite amounts of all workers together; single GPUs are in the sum of GPUs.

    Parameters
    ----------
    capacity : mapping
        ``{address: amounts}``.
    """
    totals = _sum_of(capacity.values())
    return {kind: v for kind, v in totals.items() if v < inf and not kind.startswith(_GPU)}


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
    return max((amount / totals[kind] for kind, amount in needs.items() if totals.get(kind)), default=0.0)


def due_shares(totals: Amounts, contenders: Sequence[Contender]) -> dict[str, float]:
    """Return each experiment's fair share if resources could be divided without limit.

    The shares of a class grow together, in proportion to the weights, until a resource is used up
    or an experiment has all that it requests.

    Parameters
    ----------
    totals : mapping
        The amounts of the whole cluster.
    contenders : sequence of Contender
        The experiments.

    Examples
    --------
    >>> many = [ShareRequest(({"CPU": 1},), "PACK", 9)]
    >>> heavy, light = Contender("a", weight=3, requests=many), Contender("b", requests=many)
    >>> due_shares({"CPU": 4}, [heavy, light])
    {'a': 0.75, 'b': 0.25}
    """
    due = {one.name: 0.0 for one in contenders}
    rest = {kind: 1.0 for kind, amount in totals.items() if amount > 0}
    profiles = {one.name: profile for one in contenders if (profile := _profile(one, totals)) is not None}
    for priority in sorted({one.priority for one in contenders}, reverse=True):
        growing = [one for one in contenders if one.priority == priority and one.name in profiles]
        while growing:
            weights = _total_weights(growing)
            step = _largest_step(growing, weights, profiles, due, rest)
            for one in growing:
                due[one.name] += step * weights[one.name]
                for kind, rate in profiles[one.name].rates.items():
                    rest[kind] -= step * weights[one.name] * rate
            growing = [
                one
                for one in growing
                if profiles[one.name].most - due[one.name] > _EPSILON
                and all(rest[kind] > _EPSILON for kind in profiles[one.name].rates)
            ]
    return due


def next_lag(lag: float, due: float, held: float, seconds: float, *, waits: bool) -> float:
    """Return the lag of an experiment after some seconds, in share-seconds.

    Parameters
    ----------
    lag : float
        The lag so far.
    due, held : float
        The share that was due, and the share that the experiment held.
    seconds : float
        How long it held it.
    waits : bool
        Whether it waits for resources. Otherwise it lacks none, so the lag is at most 0.

    Examples
    --------
    >>> next_lag(0.0, 0.5, 1.0, 2.0, waits=True), next_lag(2.5, 1.0, 0.25, 9.0, waits=True)
    (-1.0, 3.0)
    >>> next_lag(2.5, 1.0, 0.0, 9.0, waits=True)
    11.5
    """
    lag = max(-_MOST_LAG, lag + (due - held) * seconds)
    if lag < 0 and held <= due + _EPSILON:
        lag *= max(0.0, 1 - seconds / _FORGIVEN)
    if held > _EPSILON:
        lag = min(_MOST_LAG, lag)
    return lag if waits else min(lag, 0.0)


class _Profile(NamedTuple):
    """How an experiment's use of each resource grows with its share, and its largest share."""

    rates: dict[str, float]
    most: float


def _profile(one: Contender, totals: Amounts) -> _Profile | None:
    """Return the profile of the average trial; None for an experiment that requests nothing."""
    sizes = [(_sum_of(held for _, held in trial), 1) for trial in one.holdings]
    sizes += [(_sum_of(request.bundles), request.trials) for request in one.requests]
    most = sum(dominant_share(needs, totals) * count for needs, count in sizes)
    fractions: dict[str, float] = {}
    for needs, count in sizes:
        for kind, amount in needs.items():
            if amount and totals.get(kind):
                fractions[kind] = fractions.get(kind, 0.0) + count * amount / totals[kind]
    largest = max(fractions.values(), default=0.0)
    if largest <= 0:
        return None
    return _Profile({kind: fraction / largest for kind, fraction in fractions.items()}, most)


def _total_weights(contenders: Sequence[Contender]) -> dict[str, float]:
    """Return each experiment's weight among all: its part of the weight of its group."""
    sums: dict[str, float] = {}
    for one in contenders:
        sums[one.group] = sums.get(one.group, 0.0) + one.weight
    return {
        one.name: one.group_weight * one.weight / sums[one.group] if one.group else one.weight
        for one in contenders
    }


def _largest_step(
    growing: Sequence[Contender],
    weights: Mapping[str, float],
    profiles: Mapping[str, _Profile],
    due: Amounts,
    rest: Amounts,
) -> float:
    """Return how far shares by weight can grow until a demand is met or a resource is used up."""
    step = min((profiles[one.name].most - due[one.name]) / weights[one.name] for one in growing)
    for kind, left in rest.items():
        speed = sum(weights[one.name] * profiles[one.name].rates.get(kind, 0.0) for one in growing)
        if speed > 0:
            step = min(step, left / speed)
    return max(0.0, step)


class _GroupShare:
    """A group while the plan is made: its share so far, and the order of its experiments."""

    def __init__(self, weight: float) -> None:
        self.weight, self.share = weight, 0.0
        #: The shares of its experiments with the next trial, and their numbers: a heap.
        self.queue: list[tuple[float, int]] = []


class _Allocation:
    """An experiment while the plan is made: its share so far, and what is still to be dealt."""

    def __init__(self, one: Contender) -> None:
        self.name, self.weight, self.rank = one.name, one.weight, -one.priority
        self.share = -one.lag / _HORIZON
        #: What the experiments of its group and class have together so far.
        self.group: _GroupShare | None = None
        self.closed = one.closed
        #: The trials that hold resources, with the share of each.
        self.holdings: deque[tuple[Sequence[tuple[str, Amounts]], float]] = deque()
        self.requests = deque(one.requests)
        #: Number of trials that are still to be dealt of the first request.
        self.trials = self.requests[0].trials if self.requests else 0

    def add(self, share: float) -> None:
        """Count what was dealt to the experiment."""
        self.share += share
        if self.group is not None:
            self.group.share += share

    def next_request(self) -> None:
        """Continue with the next request."""
        self.requests.popleft()
        self.trials = self.requests[0].trials if self.requests else 0


class _Planner:
    """Makes one plan."""

    def __init__(
        self, capacity: Mapping[str, Amounts], contenders: Sequence[Contender], due: Mapping[str, float]
    ) -> None:
        self._addresses = list(capacity)
        #: What is not dealt yet; other programs may use more than a worker has.
        self._rooms = {a: {k: max(0.0, v) for k, v in room.items()} for a, room in capacity.items()}
        #: The resources that are single GPUs, by address.
        self._gpus = {a: [kind for kind in room if kind.startswith(_GPU)] for a, room in capacity.items()}
        #: What is not dealt and not held either. It is never more than what is not dealt.
        self._free = {address: dict(room) for address, room in self._rooms.items()}
        self._totals = total_amounts(capacity)
        self._allocations = [_Allocation(one) for one in contenders]
        groups: dict[tuple[float, str], _GroupShare] = {}
        for one, allocation in zip(contenders, self._allocations, strict=True):
            if one.group:
                key = one.priority, one.group
                allocation.group = groups.setdefault(key, _GroupShare(one.group_weight))
                # The lag of one that requests nothing is not a reason to wait for the others.
                allocation.group.share += allocation.share if one.requests else 0.0
        self._groups = list(groups.values())
        holding = {(one.priority, one.group) for one in contenders if one.holdings}
        for key, group in groups.items():
            # As for lags: that of a group that holds nothing has no bound.
            least = -_MOST_LAG / _HORIZON if key in holding else group.share
            group.share = max(least, min(_MOST_LAG / _HORIZON, group.share))
        #: What experiments hold that have more than is due to them, by address.
        self._excess: dict[str, dict[str, float]] = {}
        for one in contenders:
            self._count_holdings(one, due.get(one.name, 0.0))
        self._sizes: dict[Any, float] = {}
        for one, allocation in zip(contenders, self._allocations, strict=True):
            allocation.holdings.extend(
                (trial, self._size_of([held for _, held in trial])) for trial in one.holdings
            )
        self._granted: dict[str, dict[str, dict[str, float]]] = {one.name: {} for one in contenders}
        self._startable: dict[str, set[str]] = {one.name: set() for one in contenders}
        self._spread: dict[str, list[dict[str, dict[str, float]]]] = {one.name: [] for one in contenders}
        self._contended = False
        self._orders: dict[Any, deque[str]] = {}
        self._searches: dict[Any, list[tuple[tuple[float, float, float], int]]] = {}
        #: The searches on hosts that found no room.
        self._without_room: set[Any] = set()

    def _count_holdings(self, one: Contender, due: float) -> None:
        held: dict[str, dict[str, float]] = {}
        for trial in one.holdings:
            for address, needs in trial:
                if address in self._free:
                    _take(self._free[address], needs)
                    _take(held.setdefault(address, {}), needs, -1)
        if dominant_share(_sum_of(held.values()), self._totals) > due + _EPSILON:
            for address, needs in held.items():
                _take(self._excess.setdefault(address, {}), needs, -1)

    def plan(self) -> SharePlan:
        """Allocate resources to one trial after another."""
        queue: list[_Rank] = []
        for number, allocation in enumerate(self._allocations):
            self._enqueue(queue, number, allocation)
        for group in self._groups:
            self._enqueue_group(queue, group)
        while queue:
            number = heappop(queue)[2]
            allocation = self._allocations[number]
            if allocation.group is not None:
                # It is still the first one of its group, which has one entry in the queue.
                heappop(allocation.group.queue)
            if allocation.holdings:
                self._allocate_holding(allocation)
            else:
                self._allocate_request(allocation)
            self._enqueue(queue, number, allocation)
            if allocation.group is not None:
                self._enqueue_group(queue, allocation.group)
        left = {a: {k: max(0.0, v) for k, v in room.items()} for a, room in self._rooms.items()}
        return SharePlan(self._granted, left, self._startable, self._spread, self._contended)

    def _enqueue(self, queue: list[_Rank], number: int, allocation: _Allocation) -> None:
        """Add an experiment to the queue, or to that of its group, if it has a next trial."""
        while allocation.requests and (allocation.trials <= 0 or not any(allocation.requests[0].bundles)):
            allocation.next_request()
        if not (allocation.holdings or allocation.requests):
            return
        share = (allocation.share + self._next_size(allocation)) / allocation.weight
        if allocation.group is None:
            heappush(queue, (allocation.rank, share, number))
        else:
            heappush(allocation.group.queue, (share, number))

    def _enqueue_group(self, queue: list[_Rank], group: _GroupShare) -> None:
        """Add a group to the queue, with the next trial of its first experiment."""
        if group.queue:
            number = group.queue[0][1]
            first = self._allocations[number]
            share = (group.share + self._next_size(first)) / group.weight
            heappush(queue, (first.rank, share, number))

    def _next_size(self, allocation: _Allocation) -> float:
        """Return the share of the next trial; one that holds its resources counts less."""
        if allocation.holdings:
            return (1 - _KEPT_BONUS) * allocation.holdings[0][1]
        return self._size_of(allocation.requests[0].bundles)

    def _allocate_holding(self, allocation: _Allocation) -> None:
        trial, size = allocation.holdings.popleft()
        if all(address in self._rooms and _fits(self._rooms[address], held) for address, held in trial):
            for address, held in trial:
                _take(self._rooms[address], held)
                self._grant(allocation.name, address, held)
            allocation.add(size)

    def _allocate_request(self, allocation: _Allocation) -> None:
        request = allocation.requests[0]
        found, starts = self._find_place(request, allocation.closed)
        if not starts:
            self._contended = True
        if found is None:
            allocation.next_request()
            return
        places: dict[str, dict[str, float]] = {}
        for address, needs in found:
            _take(self._rooms[address], needs)
            _take(self._free[address], needs)
            _take(places.setdefault(address, {}), needs, -1)
            self._grant(allocation.name, address, needs)
        if starts:
            self._startable[allocation.name].update(places)
            if len(places) > 1:
                self._spread[allocation.name].append(places)
        allocation.add(self._size_of(request.bundles))
        allocation.trials -= 1
        if len(found) > 1 and request.trials - allocation.trials >= _MOST_SPREAD:
            allocation.next_request()

    def _grant(self, name: str, address: str, needs: Amounts) -> None:
        granted = self._granted[name].setdefault(address, {})
        for kind, amount in needs.items():
            granted[kind] = granted.get(kind, 0.0) + amount

    def _size_of(self, bundles: Iterable[Amounts]) -> float:
        """Return the share of one trial; the same sizes come up thousands of times."""
        key = tuple(tuple(needs.items()) for needs in bundles)
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = dominant_share(_sum_of(map(dict, key)), self._totals)
        return size

    def _find_place(
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
        bundles.sort(key=lambda needs: dominant_share(needs, self._totals), reverse=True)
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
            return None  # Rooms only become smaller while the plan is made.
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
            freed = (_sum_of((self._free[a], self._excess.get(a, _NOTHING))) for a in workers)
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
            _take(room, needs)
            _take(free, needs)
        return copies

    def _find_workers(
        self,
        bundles: Sequence[Amounts],
        strategy: str,
        closed: frozenset[str],
        rooms: Mapping[str, Amounts],
    ) -> list[tuple[str, Amounts]] | None:
        """Return workers for all bundles of a trial.

        Rooms only become smaller while the plan is made. So the first workers are dropped once they
        have no room for any bundle, and what was not found once is not searched again.
        """
        key = tuple(tuple(needs.items()) for needs in bundles), strategy, closed, rooms is self._free
        order = self._orders.get(key)
        kinds = list({tuple(needs.items()): needs for needs in bundles}.values())
        if order is None:
            usable = [a for a in self._addresses if a not in closed and _fits_some(rooms[a], kinds)]
            order = deque(sorted(usable, key=lambda address: self._missing(address, bundles[0])))
        while order and not _fits_some(rooms[order[0]], kinds):
            order.popleft()
        found = _assign(bundles, strategy, rooms, order, self._gpus) if order else None
        self._orders[key] = order if found is not None else deque()
        return found

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
            return (address, needs), now[1] <= _EPSILON
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
            _take(room, needs)
            _take(free, needs)
            _take(taken, needs, -1)
        return taken

    def _rank(self, address: str, needs: Amounts) -> tuple[float, float, float]:
        """Return what neither is free nor will be, what is not free, and what else is free."""
        free = self._free[address]
        slack = sum(max(0.0, free.get(k, 0.0)) / self._totals[k] for k in needs if self._totals.get(k))
        missing = self._missing(address, needs)
        excess = self._excess.get(address) if missing > _EPSILON else None
        kept = missing if excess is None else self._missing(address, needs, excess)
        return kept, missing, slack

    def _missing(self, address: str, needs: Amounts, more: Amounts = _NOTHING) -> float:
        """Return what is missing of `needs` on a worker, as the sum of fractions of the cluster."""
        free = self._free[address]
        lacks = ((k, amount - free.get(k, 0.0) - more.get(k, 0.0)) for k, amount in needs.items())
        return sum(lack / self._total_of(kind) for kind, lack in lacks if lack > _EPSILON)

    def _total_of(self, kind: str) -> float:
        return self._totals.get("GPU" if kind.startswith(_GPU) else kind) or 1.0


def _assign(
    bundles: Sequence[Amounts],
    strategy: str,
    rooms: Mapping[str, Amounts],
    order: Sequence[str],
    gpus: Mapping[str, Sequence[str]],
) -> list[tuple[str, Amounts]] | None:
    """Assign each bundle to a worker by the placement strategy; None if that is not possible."""
    if strategy == "SPREAD":
        fewer = len(order) < len(bundles)
        found = None if fewer else _search(bundles, "STRICT_SPREAD", rooms, order, gpus)
        return found or _search(bundles, strategy, rooms, order, gpus)
    return _search(bundles, strategy, rooms, order, gpus)


def _search(
    bundles: Sequence[Amounts],
    strategy: str,
    rooms: Mapping[str, Amounts],
    order: Sequence[str],
    gpus: Mapping[str, Sequence[str]],
) -> list[tuple[str, Amounts]] | None:
    """Assign one bundle after the other, and go back to the one before when one does not fit."""
    chosen: list[tuple[str, Amounts]] = []
    #: The rooms of the chosen workers with what is left there.
    after: dict[str, dict[str, float]] = {}

    def candidates(needs: Amounts) -> Iterable[str]:
        again = [address for address in after if _fits(after[address], needs)]
        fresh = _fresh(needs, rooms, order, set(after))
        if strategy == "STRICT_SPREAD":
            return fresh
        return chain(again, fresh) if strategy == "PACK" else chain(fresh, again)

    untried = [iter(candidates(bundles[0]))]
    for _ in range(_MOST_STEPS + len(bundles)):
        address = next(untried[-1], None)
        if address is None:
            untried.pop()
            if not untried:
                return None
            last, needs = chosen.pop()
            if any(last == one for one, _ in chosen):
                _take(after[last], needs, -1)
            else:
                del after[last]
            continue
        room = after.get(address) or dict(rooms[address])
        taken = _with_gpus(bundles[len(chosen)], room, room, gpus[address])
        if taken is None:
            continue
        after[address] = room
        _take(room, taken)
        chosen.append((address, taken))
        if len(chosen) == len(bundles):
            return chosen
        untried.append(iter(candidates(bundles[len(chosen)])))
    return None


def _fresh(
    needs: Amounts, rooms: Mapping[str, Amounts], order: Sequence[str], used: set[str]
) -> Iterator[str]:
    """Yield workers that hold none of the trial's bundles, one of several with equal rooms."""
    tried = set()
    for address in order:
        if address not in used and _fits(rooms[address], needs):
            room = tuple(sorted(rooms[address].items()))
            if room not in tried:
                tried.add(room)
                yield address


def _sum_of(parts: Iterable[Amounts]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for kind, amount in part.items():
            total[kind] = total.get(kind, 0.0) + amount
    return total


def _fits(room: Amounts, needs: Amounts) -> bool:
    # A loop, because a generator would take half of the time of a plan.
    for kind, amount in needs.items():  # noqa: SIM110
        if room.get(kind, 0.0) + _EPSILON < amount:
            return False
    return True


def _combined(bundles: Sequence[Amounts]) -> Sequence[Amounts]:
    """Return the bundles as one, unless several have GPUs: each of them has its own GPUs."""
    return bundles if sum("GPU" in needs for needs in bundles) > 1 else [_sum_of(bundles)]


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
    if not _fits(room, needs):
        return None
    amount = needs.get("GPU")
    if not amount or not gpus:
        return needs
    positions = pick_gpus([1 - min(room[gpu], free[gpu]) for gpu in gpus], amount)
    if positions is not None:
        chosen = [gpus[position] for position in positions]
    else:
        # Reserve GPUs that others hold: those of which most is free.
        order = sorted(gpus, key=lambda gpu: -free[gpu])
        chosen = [gpu for gpu in order if room[gpu] + _EPSILON >= min(amount, 1.0)][: max(1, int(amount))]
        if len(chosen) < amount:
            return None
    return {**needs, **dict.fromkeys(chosen, amount / len(chosen))}


def _fits_some(room: Amounts, kinds: Sequence[Amounts]) -> bool:
    return any(_fits(room, needs) for needs in kinds)


def _count(room: Amounts, needs: Amounts, most: int) -> int:
    """Return how many times the needs fit, at most `most`."""
    times = ((room.get(kind, 0.0) + _EPSILON) / amount for kind, amount in needs.items() if amount)
    # Rounded last: the memory of a worker may have no limit.
    return max(0, int(min([*times, most])))


def _take(room: dict[str, float], needs: Amounts, times: int = 1) -> None:
    for kind, amount in needs.items():
        room[kind] = room.get(kind, 0.0) - times * amount
