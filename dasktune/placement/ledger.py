"""The driver's ledger: what every worker has, what is taken, and where a trial fits.

Dask places constrained tasks badly and knows a trial's resources only for as long as a lease holds
them, so the driver chooses the workers itself. The ledger is plain bookkeeping without a clock: it
is told what the scheduler sees and what time it is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping
from itertools import count
from types import MappingProxyType

from dasktune.placement.account import Account, Holding, empty_room
from dasktune.placement.arrange import Pool, plan
from dasktune.placement.placement import PlacedBundle, Placement
from dasktune.placement.table import lay_out
from dasktune.placement.worker import WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Ledger"]


class Ledger:
    """Who has how much, and who holds it.

    A question costs as much as there are workers with different room, not as there are workers,
    and the same question again costs nothing until something has changed.

    Parameters
    ----------
    heartbeat_timeout : float, default=30.0
        A worker whose last heartbeat is older (seconds) takes no new trial.

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
        self._accounts: dict[str, Account] = {}
        #: What we hold by address; a worker that is out of sight keeps it.
        self._holdings: dict[str, Holding] = {}
        #: Until when, on the caller's clock, an address takes no new trial.
        self._avoided: dict[str, float] = {}
        #: The placements that want to be alone on a worker, by its address.
        self._alone: dict[str, int] = {}
        #: The placements that are no company to those that want to be alone.
        self._unwanted: set[int] = set()
        #: The workers that take trials now, by all that tells two of them apart.
        self._pools: dict[Hashable, Pool] = {}
        #: What was found since the last change, by request.
        self._plans: dict[PlacementGroupFactory, dict[int, str] | None] = {}
        self._arrivals = count()
        self._numbers = count()

    @property
    def workers(self) -> Mapping[str, WorkerCapacity]:
        """The workers of the last update by address, in order of arrival."""
        return MappingProxyType(self._workers)

    def update(self, workers: Mapping[str, WorkerCapacity]) -> None:
        """Take over what the scheduler sees now; what is held stays.

        Parameters
        ----------
        workers : mapping
            All workers by address.
        """
        for address in [address for address in self._accounts if address not in workers]:
            self._forget(address)
        for address, worker in workers.items():
            before = self._workers.get(address)
            self._workers[address] = worker
            if before is None:
                holding = self._holdings.setdefault(address, Holding())
                self._accounts[address] = Account(next(self._arrivals), worker, holding)
            elif not self._is_alike(before, worker):
                self._accounts[address].show(worker)
            else:
                continue
            self._sort_in(address)

    def remove(self, address: str) -> None:
        """Forget a worker that is gone, with all that it held for us.

        It may come back under the same address, and is then empty.

        Parameters
        ----------
        address : str
            The worker's address; one that is not known is no error.
        """
        self._forget(address)
        self._holdings.pop(address, None)
        self._avoided.pop(address, None)
        self._alone.pop(address, None)

    def avoid(self, address: str, until: float) -> None:
        """Place nothing on a worker for a while.

        Parameters
        ----------
        address : str
            The worker's address.
        until : float
            Time from which it is used again, on the clock that gives `now`.
        """
        self._avoided[address] = until
        self._sort_in(address)

    def fits(self, request: PlacementGroupFactory, *, now: float) -> bool:
        """Whether there is room for a request at this moment.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the trial asks for.
        now : float
            Time on the clock that gave `until` to :meth:`avoid`.
        """
        return self._plan(request, now) is not None

    def place(self, request: PlacementGroupFactory, *, now: float) -> Placement | None:
        """Choose workers for a request and take its resources there.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the trial asks for.
        now : float
            Time on the clock that gave `until` to :meth:`avoid`.

        Returns
        -------
        Placement or None
            All bundles, or None if there is no room for one of them.
        """
        plan = self._plan(request, now)
        if plan is None:
            return None
        bundles, number = request.bundles, next(self._numbers)
        placed: dict[int, PlacedBundle] = {}
        for which, address in plan.items():
            account = self._accounts[address]
            if request.exclusive:
                self._alone[address] = number
            devices = account.take(number, bundles[which])
            placed[which] = PlacedBundle(
                address=address,
                resources=bundles[which],
                declared=account.worker.declared(bundles[which]),
                devices=devices,
                gpus=account.gpus,
            )
            self._sort_in(address)
        if 0 not in placed:
            # An empty head: user code runs where its first helper does.
            beside = placed[min(placed)].address
            placed[0] = PlacedBundle(address=beside, resources={}, declared={})
        return Placement(number=number, bundles=tuple(placed[which] for which in sorted(placed)))

    def release(self, placement: Placement) -> None:
        """Give back what :meth:`place` took, as far as it is still held; a second time is no error.

        Parameters
        ----------
        placement : Placement
            What :meth:`place` returned.
        """
        self._unwanted.discard(placement.number)
        for address in placement.addresses:
            holding = self._holdings.get(address)
            if holding is not None and holding.drop(placement.number):
                if self._alone.get(address) == placement.number:
                    del self._alone[address]
                account = self._accounts.get(address)
                if account is not None:
                    account.settle()
                    self._sort_in(address)

    def admit_others(self, placement: Placement) -> None:
        """Let others share the workers of an exclusive request.

        Parameters
        ----------
        placement : Placement
            What :meth:`place` returned; one that was not exclusive is no error.
        """
        for address in placement.addresses:
            if self._alone.get(address) == placement.number:
                del self._alone[address]
                self._sort_in(address)

    def disregard(self, placement: Placement) -> None:
        """Let what is held count as no company: an exclusive request may go to the worker.

        Parameters
        ----------
        placement : Placement
            What :meth:`place` returned.
        """
        if placement.number not in self._unwanted:
            self._unwanted.add(placement.number)
            self._plans.clear()

    def free(self, address: str, kind: str) -> float:
        """Return how much of a resource is left on a worker, all clients considered.

        Parameters
        ----------
        address : str
            Address of a known worker.
        kind : str
            Name of the resource.
        """
        return dict(self._accounts[address].room.free).get(kind, 0.0)

    def offers(self) -> dict[str, dict[str, float]]:
        """Return what each worker that takes trials has for us, by address; what we hold included.

        Examples
        --------
        >>> ledger = Ledger()
        >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", memory_limit=8)})
        >>> ledger.offers()
        {'tcp://a:1': {'CPU': 1, 'memory': 8}}
        """
        return {
            address: worker.offer
            for address, worker in self._workers.items()
            if self._standing(worker) == "running"
        }

    def ever_fits(self, request: PlacementGroupFactory) -> bool:
        """Whether the workers that are there could hold the request if they were empty.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the trial asks for.
        """
        pools: dict[Hashable, Pool] = {}
        for number, (address, worker) in enumerate(self._workers.items()):
            if worker.may_serve:
                room = empty_room(worker)
                pool = pools.setdefault(room, Pool(room))
                pool.members.append((number, address))
        return plan(request, pools.values()) is not None

    def table(self, request: PlacementGroupFactory) -> str:
        """Lay out what is asked beside what each worker has, free and in all, largest first.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the trial asks for.

        Examples
        --------
        >>> ledger = Ledger()
        >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", nthreads=2)})
        >>> print(ledger.table(PlacementGroupFactory([{"CPU": 4}])))
        worker     status   CPU free/total
        asked               4
        tcp://a:1  running  2/2
        """
        return lay_out(request, self._workers, self.free, self._standing)

    def _plan(self, request: PlacementGroupFactory, now: float) -> dict[int, str] | None:
        for address in [one for one, until in self._avoided.items() if until <= now]:
            del self._avoided[address]
            self._sort_in(address)
        if request not in self._plans:
            pools = self._empty_pools() if request.exclusive else self._pools
            self._plans[request] = plan(request, pools.values())
        return self._plans[request]

    def _empty_pools(self) -> dict[Hashable, Pool]:
        """Return the pools without the workers on which we hold anything."""
        pools: dict[Hashable, Pool] = {}
        for address, account in self._accounts.items():
            if account.pool is not None and account.holding.numbers <= self._unwanted:
                key = account.room, account.scarce, account.fill
                pool = pools.setdefault(key, Pool(*key))
                pool.members.append((account.number, address))
        return pools

    def _forget(self, address: str) -> None:
        account = self._accounts.pop(address, None)
        if account is not None:
            del self._workers[address]
            self._take_out(account)

    def _sort_in(self, address: str) -> None:
        """Put a worker into the pool of its equals, if it takes trials."""
        account = self._accounts.get(address)
        if account is None:
            return
        self._take_out(account)
        is_open = address not in self._avoided and address not in self._alone
        if is_open and self._standing(account.worker) == "running":
            key = account.room, account.scarce, account.fill
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = Pool(*key)
            insort(pool.members, (account.number, address))
            account.pool = pool

    def _take_out(self, account: Account) -> None:
        self._plans.clear()
        pool, account.pool = account.pool, None
        if pool is not None:
            del pool.members[bisect_left(pool.members, (account.number, account.worker.address))]
            if not pool.members:
                del self._pools[pool.room, pool.scarce, pool.fill]

    def _is_alike(self, one: WorkerCapacity, other: WorkerCapacity) -> bool:
        """Whether two readings of a worker mean the same to whoever looks for a place."""
        return (
            self._standing(one) == self._standing(other)
            and one.nthreads == other.nthreads
            and one.memory_limit == other.memory_limit
            and one.devices == other.devices
            and one.used == other.used
            and one.resources == other.resources
        )

    def _standing(self, worker: WorkerCapacity) -> str:
        """Return the worker's status, or why it takes no trial although it runs."""
        if worker.is_foreign:
            return f"Python {worker.python}"
        overdue = worker.status == "running" and worker.age > self._heartbeat_timeout
        return "silent" if overdue else worker.status
