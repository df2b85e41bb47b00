"""The driver's ledger: capacity of the workers, allocated resources, and placement of trials.

Dask places tasks with resource constraints badly, and knows a trial's resources only while a lease
holds them. So the driver chooses the workers itself. The ledger is pure bookkeeping: the caller
passes the scheduler's view of the workers and the time. It is not thread-safe; the driver guards it
by the lock of its `Reservations`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from types import MappingProxyType

from dasktune.placement.assign_request import assign_request
from dasktune.placement.bin_packing import WorkerPool
from dasktune.placement.capacity_table import capacity_table
from dasktune.placement.ledger_entry import Allocations, LedgerEntry, capacity_when_idle
from dasktune.placement.placement import PlacedBundle, Placement
from dasktune.placement.worker import WorkerCapacity
from dasktune.trial.resources import ElasticPlacement, PlacementGroupFactory


class Ledger:
    """The capacity of all workers, and the resources that trials have allocated.

    The cost of a query depends on the number of different free capacities, not on the number of
    workers. The answer to a repeated query is cached until something changes.

    Parameters
    ----------
    heartbeat_timeout : float, default=30.0
        A worker whose last heartbeat is older than this (seconds) gets no new trial.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", nthreads=2)})
    >>> two = PlacementGroupFactory([{"CPU": 2}])
    >>> placement = ledger.place(two, now=0.0)
    >>> placement.address, ledger.fits(two, now=0.0)
    ('tcp://a:1', False)
    >>> ledger.release(placement)
    >>> ledger.fits(two, now=0.0)
    True
    """

    def __init__(self, *, heartbeat_timeout: float = 30.0) -> None:
        self._heartbeat_timeout = heartbeat_timeout
        self._workers: dict[str, WorkerCapacity] = {}
        self._entries: dict[str, LedgerEntry] = {}
        #: Allocations by address; they are kept while a worker is temporarily missing.
        self._allocations: dict[str, Allocations] = {}
        #: Time, on the caller's clock, until which an address gets no new trial.
        self._avoided: dict[str, float] = {}
        #: Those of them that will end then.
        self._leaving: set[str] = set()
        #: Numbers of the placements that use a worker exclusively, by address.
        self._exclusive: dict[str, int] = {}
        #: Numbers of the placements with which an exclusive request may share a worker.
        self._ignored: set[int] = set()
        #: Pools of the workers that accept trials, by free capacity, special resources and fill.
        self._pools: dict[Hashable, WorkerPool] = {}
        #: Cached assignments by request; cleared at every change.
        self._plans: dict[PlacementGroupFactory, dict[int, str] | None] = {}
        self._arrivals = count()
        self._numbers = count()
        self._revision = 0

    @property
    def workers(self) -> Mapping[str, WorkerCapacity]:
        """The workers of the last update by address, in order of arrival."""
        return MappingProxyType(self._workers)

    @property
    def revision(self) -> int:
        """A number that changes with the workers and what they have, not with our allocations."""
        return self._revision

    def update(self, workers: Mapping[str, WorkerCapacity]) -> None:
        """Replace the workers by the scheduler's current view; allocations are kept.

        Parameters
        ----------
        workers : mapping
            All workers by address.
        """
        for address in [address for address in self._entries if address not in workers]:
            self._forget(address)
        for address, worker in workers.items():
            before = self._workers.get(address)
            self._workers[address] = worker
            if before is None:
                holding = self._allocations.setdefault(address, Allocations())
                self._entries[address] = LedgerEntry(next(self._arrivals), worker, holding)
            elif before is not worker and not self._is_equivalent(before, worker):
                self._entries[address].update(worker)
            else:
                continue
            self._revision += 1
            self._add_to_pool(address)

    def remove(self, address: str) -> None:
        """Remove a lost worker and its allocations.

        If a worker with the same address appears later, it has no allocations.

        Parameters
        ----------
        address : str
            The worker's address; an unknown one is ignored.
        """
        self._forget(address)
        self._allocations.pop(address, None)
        self._avoided.pop(address, None)
        self._leaving.discard(address)
        self._exclusive.pop(address, None)

    def avoid(self, address: str, until: float, *, is_leaving: bool = False) -> None:
        """Place no trials on a worker until a given time, or longer if an earlier call says so.

        Parameters
        ----------
        address : str
            The worker's address.
        until : float
            Time at which it is used again, on the clock of `now`.
        is_leaving : bool, default=False
            Whether the worker was given notice that it ends then. This time counts although an
            earlier call gave a later one.
        """
        if is_leaving:
            self._leaving.add(address)
        self._avoided[address] = until if is_leaving else max(until, self._avoided.get(address, until))
        self._add_to_pool(address)

    def fits(self, request: PlacementGroupFactory, *, now: float) -> bool:
        """Whether a request fits now.

        Parameters
        ----------
        request : PlacementGroupFactory
            The resources of the trial.
        now : float
            Current time, on the clock of `until` in :meth:`avoid`.
        """
        return self._plan(request, now) is not None

    def fits_instead(
        self, placements: Sequence[Placement], requests: Sequence[PlacementGroupFactory], *, now: float
    ) -> bool:
        """Whether all of some requests would fit now if placements were released.

        Parameters
        ----------
        placements : sequence of Placement
            Return values of :meth:`place`.
        requests : sequence of PlacementGroupFactory
            The resources of the trials.
        now : float
            Current time, on the clock of `until` in :meth:`avoid`.

        Examples
        --------
        >>> ledger = Ledger()
        >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", nthreads=2)})
        >>> placement = ledger.place(PlacementGroupFactory([{"CPU": 1}]), now=0.0)
        >>> two = PlacementGroupFactory([{"CPU": 2}])
        >>> ledger.fits(two, now=0.0), ledger.fits_instead([placement], [two], now=0.0)
        (False, True)
        """
        with self._released(placements) as placed:
            for request in requests:
                placement = self.place(request, now=now)
                if placement is None:
                    return False
                placed.append(placement)
        return True

    def missing_bundles(
        self, placements: Sequence[Placement], requests: Sequence[ElasticPlacement], *, now: float
    ) -> tuple[list[int], int]:
        """Return how many bundles of each request would not fit now if placements were released.

        The second value is the number of workers that nothing would use then.

        Parameters
        ----------
        placements : sequence of Placement
            Return values of :meth:`place`.
        requests : sequence of ElasticPlacement
            The resources of the trials; all of their bundles are wanted.
        now : float
            Current time, on the clock of `until` in :meth:`avoid`.

        Examples
        --------
        >>> from dasktune.trial.resources import HostPlacement
        >>> ledger = Ledger()
        >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", nthreads=3)})
        >>> request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
        >>> placement = ledger.place(request.resized(2), now=0.0)
        >>> ledger.missing_bundles([placement], [request], now=0.0)
        ([1], 0)
        """
        missing = []
        with self._released(placements) as placed:
            for request in requests:
                found = 0
                for size in request.sizes:
                    placement = self.place(request.resized(size), now=now)
                    if placement is not None:
                        placed.append(placement)
                        found = size
                        break
                missing.append(request.max_bundles - found)
            entries = self._entries.values()
            unused = sum(not (one.allocations.placements or one.worker.used) for one in entries)
        return missing, unused

    def place(self, request: PlacementGroupFactory, *, now: float) -> Placement | None:
        """Choose workers for a request and allocate its resources there.

        Parameters
        ----------
        request : PlacementGroupFactory
            The resources of the trial.
        now : float
            Current time, on the clock of `until` in :meth:`avoid`.

        Returns
        -------
        Placement or None
            The placement of all bundles, or None if the request does not fit.
        """
        plan = self._plan(request, now)
        if plan is None:
            return None
        bundles, number = request.bundles, next(self._numbers)
        placed: dict[int, PlacedBundle] = {}
        for which, address in plan.items():
            account = self._entries[address]
            if request.exclusive:
                self._exclusive[address] = number
            devices = account.allocate(number, bundles[which])
            placed[which] = PlacedBundle(
                address=address,
                resources=bundles[which],
                declared=account.worker.declared(bundles[which]),
                devices=devices,
                gpus=account.gpus,
            )
            self._add_to_pool(address)
        if 0 not in placed:
            # The head bundle is empty: user code runs on the worker of the next bundle.
            beside = placed[min(placed)].address
            placed[0] = PlacedBundle(address=beside, resources={}, declared={})
        return Placement(number=number, bundles=tuple(placed[which] for which in sorted(placed)))

    def release(self, placement: Placement) -> None:
        """Release the allocations of a placement that still exist; a second call has no effect.

        Parameters
        ----------
        placement : Placement
            The return value of :meth:`place`.
        """
        self._ignored.discard(placement.number)
        for address in placement.addresses:
            holding = self._allocations.get(address)
            if holding is not None and holding.release(placement.number):
                if self._exclusive.get(address) == placement.number:
                    del self._exclusive[address]
                account = self._entries.get(address)
                if account is not None:
                    account.recompute_free()
                    self._add_to_pool(address)

    def end_exclusive(self, placement: Placement) -> None:
        """End the exclusive use of a placement's workers, so that other trials can share them.

        Parameters
        ----------
        placement : Placement
            The return value of :meth:`place`; no effect if it is not exclusive.
        """
        for address in placement.addresses:
            if self._exclusive.get(address) == placement.number:
                del self._exclusive[address]
                self._add_to_pool(address)

    def ignore_for_exclusive(self, placement: Placement) -> None:
        """Let exclusive requests use a worker although this placement has allocations there.

        Parameters
        ----------
        placement : Placement
            The return value of :meth:`place`.
        """
        if placement.number not in self._ignored:
            self._ignored.add(placement.number)
            self._plans.clear()

    def free(self, address: str, kind: str) -> float:
        """Return the free amount of a resource on a worker; use by other clients is subtracted.

        Parameters
        ----------
        address : str
            Address of a known worker.
        kind : str
            Name of the resource.
        """
        return dict(self._entries[address].free.amounts).get(kind, 0.0)

    def exceeds(self, placement: Placement) -> bool:
        """Whether trials hold more than they may on some worker of a placement.

        Parameters
        ----------
        placement : Placement
            The return value of :meth:`place`.
        """
        entries = (self._entries.get(bundle.address) for bundle in placement.bundles)
        return any(entry is not None and entry.is_exceeded for entry in entries)

    def is_closed(self, placement: Placement) -> bool:
        """Whether some worker of a placement accepts no trials now, however small.

        Parameters
        ----------
        placement : Placement
            The return value of :meth:`place`.
        """
        entries = (self._entries.get(bundle.address) for bundle in placement.bundles)
        return any(entry is None or entry.pool is None for entry in entries)

    def may_repeat(self, placement: Placement) -> bool:
        """Whether the resources of a released placement are still there for another trial.

        Parameters
        ----------
        placement : Placement
            The return value of :meth:`place`, after :meth:`release`.
        """
        return all(
            address in self._entries and self._entries[address].has_free(placement.claim_on(address))
            for address in placement.addresses
        )

    def is_used(self, address: str) -> bool:
        """Whether there are allocations on a worker."""
        allocations = self._allocations.get(address)
        return allocations is not None and bool(allocations.placements)

    @property
    def leaving(self) -> frozenset[str]:
        """The addresses of the workers that were given notice of their end."""
        return frozenset(self._leaving)

    def closed_for(self, request: PlacementGroupFactory | None) -> list[str]:
        """Return the addresses of the workers that do not accept such a trial now, however small.

        Parameters
        ----------
        request : PlacementGroupFactory or None
            The resources of the trial. An exclusive one also needs workers without other trials of
            this experiment. None for any trial.
        """
        is_exclusive = request is not None and request.exclusive
        return [
            address
            for address, entry in self._entries.items()
            if entry.pool is None or (is_exclusive and not self._is_empty(entry))
        ]

    def _is_empty(self, entry: LedgerEntry) -> bool:
        """Whether an exclusive request can use a worker."""
        return entry.allocations.placements <= self._ignored

    def available_resources(self) -> dict[str, dict[str, float]]:
        """Return the resources of each worker that accepts trials, before our own allocations.

        Examples
        --------
        >>> ledger = Ledger()
        >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", memory_limit=8)})
        >>> ledger.available_resources()
        {'tcp://a:1': {'CPU': 1, 'memory': 8}}
        """
        return {
            address: worker.available
            for address, worker in self._workers.items()
            if self._status(worker) == "running"
        }

    def fits_when_idle(self, request: PlacementGroupFactory) -> bool:
        """Whether the request would fit on the current workers without any allocations.

        Parameters
        ----------
        request : PlacementGroupFactory
            The resources of the trial.
        """
        pools: dict[Hashable, WorkerPool] = {}
        for number, (address, worker) in enumerate(self._workers.items()):
            if worker.can_run_trials:
                room = capacity_when_idle(worker)
                pool = pools.setdefault(room, WorkerPool(room))
                pool.members.append((number, address))
        return assign_request(request, pools.values()) is not None

    def table(self, request: PlacementGroupFactory) -> str:
        """Return a table of a request and the resources of each worker, largest first.

        Parameters
        ----------
        request : PlacementGroupFactory
            The resources of the trial.

        Examples
        --------
        >>> ledger = Ledger()
        >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", nthreads=2)})
        >>> print(ledger.table(PlacementGroupFactory([{"CPU": 4}])))
        worker     status   CPU free/total
        asked               4
        tcp://a:1  running  2/2
        """
        return capacity_table(request, self._workers, self.free, self._status)

    @contextmanager
    def _released(self, placements: Sequence[Placement]) -> Iterator[list[Placement]]:
        """Release placements for the duration of a question; then restore them.

        Yields a list. The placements in it at the end are released before.
        """
        numbers = {one.number for one in placements}
        taken = [
            (address, one.number, self._allocations[address].of(one.number))
            for one in placements
            for address in one.addresses
            if address in self._allocations
        ]
        ignored = self._ignored & numbers
        exclusive = {one: number for one, number in self._exclusive.items() if number in numbers}
        asked: list[Placement] = []
        for one in placements:
            self.release(one)
        try:
            yield asked
        finally:
            for one in asked:
                self.release(one)
            self._ignored |= ignored
            self._exclusive |= exclusive
            for address, number, held in taken:
                for needs, gpus in held:
                    self._allocations[address].add(number, needs, gpus)
                if address in self._entries:
                    self._entries[address].recompute_free()
                    self._add_to_pool(address)

    def _plan(self, request: PlacementGroupFactory, now: float) -> dict[int, str] | None:
        for address in [one for one, until in self._avoided.items() if until <= now]:
            del self._avoided[address]
            self._leaving.discard(address)
            self._add_to_pool(address)
        if request not in self._plans:
            pools = self._pools_for_exclusive() if request.exclusive else self._pools
            self._plans[request] = assign_request(request, pools.values())
        return self._plans[request]

    def _pools_for_exclusive(self) -> dict[Hashable, WorkerPool]:
        """Return pools of the workers on which only ignored placements have allocations."""
        pools: dict[Hashable, WorkerPool] = {}
        for address, account in self._entries.items():
            if account.pool is not None and self._is_empty(account):
                key = account.free, account.special, account.fill
                pool = pools.setdefault(key, WorkerPool(*key))
                pool.members.append((account.number, address))
        return pools

    def _forget(self, address: str) -> None:
        account = self._entries.pop(address, None)
        if account is not None:
            del self._workers[address]
            self._revision += 1
            self._remove_from_pool(account)

    def _add_to_pool(self, address: str) -> None:
        """Move a worker to the pool of its current free capacity, if it accepts trials."""
        account = self._entries.get(address)
        if account is None:
            return
        self._remove_from_pool(account)
        is_open = address not in self._avoided and address not in self._exclusive
        if is_open and self._status(account.worker) == "running":
            key = account.free, account.special, account.fill
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = WorkerPool(*key)
            insort(pool.members, (account.number, address))
            account.pool = pool

    def _remove_from_pool(self, account: LedgerEntry) -> None:
        self._plans.clear()
        pool, account.pool = account.pool, None
        if pool is not None:
            del pool.members[bisect_left(pool.members, (account.number, account.worker.address))]
            if not pool.members:
                del self._pools[pool.free, pool.special, pool.fill]

    def _is_equivalent(self, one: WorkerCapacity, other: WorkerCapacity) -> bool:
        """Whether two readings of a worker are equal for placement."""
        return (
            self._status(one) == self._status(other)
            and one.nthreads == other.nthreads
            and one.memory_limit == other.memory_limit
            and one.devices == other.devices
            and one.used == other.used
            and one.withheld == other.withheld
            and one.overtakable == other.overtakable
            and one.gpu_loads == other.gpu_loads
            and one.resources == other.resources
        )

    def _status(self, worker: WorkerCapacity) -> str:
        """Return the worker's status, or why a running worker accepts no trials."""
        if worker.python_differs:
            return f"Python {worker.python}"
        overdue = worker.status == "running" and worker.age > self._heartbeat_timeout
        return "silent" if overdue else worker.status
