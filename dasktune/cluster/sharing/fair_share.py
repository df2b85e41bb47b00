"""Plans how experiments share a cluster: weighted dominant resource fairness with strict classes.

The plan is a pure function of what each experiment holds and requests. This module travels by value
to schedulers without dasktune, together with the modules that it imports, and with what those use
of the modules of :mod:`dasktune.placement`. All of them import only the standard library besides.

Resources are dealt in pieces, one trial after another: next comes the experiment of the highest
class whose share, divided by its weight, is the smallest. The module
:mod:`dasktune.cluster.sharing.due_shares` defines shares and lags; the lag counts against the
share. What an experiment already holds is dealt before what it requests, and counts slightly less,
so that trials keep their places while shares are nearly equal.

A request that fits nowhere now reserves room: where experiments with more than their share have it,
and there where least is missing. The plan deals that room as if it was free, so the trials that
hold it are not continued there. What fits elsewhere is still dealt, and what is left over may be
used by every experiment.

The plan chooses the workers and the GPUs of a request as drivers and workers do, see
:mod:`dasktune.cluster.sharing.trial_places`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from dasktune.cluster.sharing.amounts import Amounts, add, dominant_share, sum_of, total_amounts
from dasktune.cluster.sharing.due_shares import MOST_LAG, Contender, due_shares, held_shares
from dasktune.cluster.sharing.trial_places import TrialPlaces

#: The rank of an experiment in the queue: class, share of its group with the next trial, number.
_Rank = tuple[float, float, int]

#: A lag of so many share-seconds counts as much as a whole share. A longer memory delays the first
#: trial of an experiment that joins.
_HORIZON = 2.0

#: The fraction of a trial's share that is subtracted for a trial that holds its resources.
_KEPT_BONUS = 0.25

#: Number of trials on several workers that one plan deals for a request. The next plan deals more.
_MOST_SPREAD = 16


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
    >>> from dasktune.cluster.sharing.amounts import gpu_amounts
    >>> from dasktune.cluster.sharing.due_shares import ShareRequest
    >>> held = [[("a", {"CPU": 1})], [("a", {"CPU": 1})]]
    >>> one = ShareRequest(({"CPU": 1},), "PACK", 5)
    >>> first = Contender("first", holdings=held, requests=[one])
    >>> plan = plan_shares({"a": {"CPU": 2}}, [first, Contender("second", requests=[one])])
    >>> plan.allowed("first", "a"), plan.allowed("second", "a")
    ({'CPU': 1.0}, {'CPU': 1.0})

    A half of a GPU that is held leaves the other one of the worker whole:

    >>> room = {"GPU": 2, **gpu_amounts({0: 1, 1: 1})}
    >>> other = Contender("other", holdings=[[("a", {"GPU": 0.5, **gpu_amounts({1: 0.5})})]])
    >>> whole = Contender("whole", requests=[ShareRequest(({"GPU": 1.0},), "PACK", 1)])
    >>> plan_shares({"a": room}, [whole, other]).granted["whole"]
    {'a': {'GPU': 1.0, 'GPU/0': 1.0}}
    """
    if due is None:
        due = due_shares(total_amounts(capacity), contenders)
    return _Planner(capacity, contenders, due).plan()


class _GroupShare:
    """A group while the plan is made: its share so far, and the order of its experiments."""

    def __init__(self, weight: float) -> None:
        self.weight, self.share = weight, 0.0
        #: The shares of its experiments with the next trial, and their numbers: a heap.
        self.queue: list[tuple[float, int]] = []


class _Allocation:
    """An experiment while the plan is made: its share so far, and what is still to be dealt."""

    def __init__(self, one: Contender, totals: Amounts) -> None:
        self.name, self.weight, self.rank = one.name, one.weight, -one.priority
        self.share = -one.lag / _HORIZON
        #: What the experiments of its group and class have together so far.
        self.group: _GroupShare | None = None
        self.closed = one.closed
        #: The trials that hold resources, with the share of each.
        self.holdings = deque(zip(one.holdings, held_shares(one, totals), strict=True))
        #: The requests, with the share of one trial of each.
        self.requests = deque(
            (request, dominant_share(sum_of(request.bundles), totals)) for request in one.requests
        )
        #: Number of trials that are still to be dealt of the first request.
        self.trials = self.requests[0][0].trials if self.requests else 0

    @property
    def next_size(self) -> float:
        """The share of the next trial; one that holds its resources counts less."""
        return (1 - _KEPT_BONUS) * self.holdings[0][1] if self.holdings else self.requests[0][1]

    def add(self, share: float) -> None:
        """Count what was dealt to the experiment."""
        self.share += share
        if self.group is not None:
            self.group.share += share

    def next_request(self) -> None:
        """Continue with the next request."""
        self.requests.popleft()
        self.trials = self.requests[0][0].trials if self.requests else 0


class _Planner:
    """Makes one plan."""

    def __init__(
        self, capacity: Mapping[str, Amounts], contenders: Sequence[Contender], due: Mapping[str, float]
    ) -> None:
        totals = total_amounts(capacity)
        self._places = TrialPlaces(capacity, totals)
        self._allocations = [_Allocation(one, totals) for one in contenders]
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
            least = -MOST_LAG / _HORIZON if key in holding else group.share
            group.share = max(least, min(MOST_LAG / _HORIZON, group.share))
        for one in contenders:
            self._places.count_holdings(one.holdings, due.get(one.name, 0.0))
        self._granted: dict[str, dict[str, dict[str, float]]] = {one.name: {} for one in contenders}
        self._startable: dict[str, set[str]] = {one.name: set() for one in contenders}
        self._spread: dict[str, list[dict[str, dict[str, float]]]] = {one.name: [] for one in contenders}
        self._contended = False

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
        return SharePlan(self._granted, self._places.left(), self._startable, self._spread, self._contended)

    def _enqueue(self, queue: list[_Rank], number: int, allocation: _Allocation) -> None:
        """Add an experiment to the queue, or to that of its group, if it has a next trial."""
        while allocation.requests and (allocation.trials <= 0 or not any(allocation.requests[0][0].bundles)):
            allocation.next_request()
        if not (allocation.holdings or allocation.requests):
            return
        share = (allocation.share + allocation.next_size) / allocation.weight
        if allocation.group is None:
            heappush(queue, (allocation.rank, share, number))
        else:
            heappush(allocation.group.queue, (share, number))

    def _enqueue_group(self, queue: list[_Rank], group: _GroupShare) -> None:
        """Add a group to the queue, with the next trial of its first experiment."""
        if group.queue:
            number = group.queue[0][1]
            first = self._allocations[number]
            share = (group.share + first.next_size) / group.weight
            heappush(queue, (first.rank, share, number))

    def _allocate_holding(self, allocation: _Allocation) -> None:
        trial, size = allocation.holdings.popleft()
        if self._places.keep(trial):
            self._grant(allocation.name, trial)
            allocation.add(size)

    def _allocate_request(self, allocation: _Allocation) -> None:
        request, size = allocation.requests[0]
        found, starts = self._places.find(request, allocation.closed)
        if not starts:
            self._contended = True
        if found is None:
            allocation.next_request()
            return
        self._places.deal(found)
        self._grant(allocation.name, found)
        if starts:
            self._startable[allocation.name].update(address for address, _ in found)
            places: dict[str, dict[str, float]] = {}
            for address, needs in found:
                add(places.setdefault(address, {}), needs)
            if len(places) > 1:
                self._spread[allocation.name].append(places)
        allocation.add(size)
        allocation.trials -= 1
        if len(found) > 1 and request.trials - allocation.trials >= _MOST_SPREAD:
            allocation.next_request()

    def _grant(self, name: str, trial: Sequence[tuple[str, Amounts]]) -> None:
        granted = self._granted[name]
        for address, needs in trial:
            if address in granted:
                add(granted[address], needs)
            else:
                granted[address] = dict(needs)
