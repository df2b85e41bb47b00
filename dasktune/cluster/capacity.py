"""The driver's ledger: what every worker has, what is taken, and where a trial fits.

Dask places constrained tasks badly and knows a trial's resources only for as long as a lease holds
them, so the driver chooses the worker itself. The ledger is plain bookkeeping without a clock: it
is told what the scheduler sees (:func:`read_workers`) and what time it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from dasktune.trial.resources import PlacementGroupFactory
from dasktune.workers import WorkerInfo

__all__ = ["NOT_ALLOWED", "Ledger", "WorkerCapacity", "read_workers"]

#: Status of a worker that runs, but not for this experiment: the user has kept it out.
NOT_ALLOWED: Final = "not allowed"

#: Ten leases of 0.1 must fit into 1.
_EPSILON: Final = 1e-6

#: Workers that a table shows; the first ones are the largest.
_MAX_ROWS: Final = 20

#: Functions by value do not cross minor versions, and a worker would crash on one.
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

#: A worker of another status will never take a trial again; an "unchecked" one runs, and nobody has
#: looked yet whether trials can.
_ALIVE: Final = frozenset({"init", "unchecked", "running", "paused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """What the scheduler knows of one worker.

    Parameters
    ----------
    address : str
        The worker's address, such as ``"tcp://10.0.0.7:40331"``.
    host : str, default=""
        The machine it runs on.
    name : str, default=""
        Its name, which a restarted worker keeps.
    nthreads : int, default=1
        Threads that it runs tasks in.
    resources : mapping, default={}
        What it declares, by resource name.
    used : mapping, default={}
        What the scheduler counts as taken, leases of other experiments included, our own not.
    status : str, default="running"
        Dask's word for it.
    age : float, default=0.0
        Seconds since its last heartbeat, on the scheduler's clock.
    memory : int, default=0
        Bytes that the process used at the last heartbeat.
    memory_limit : int, default=0
        Bytes that it may use; 0 for no limit.
    python : str, default=""
        Python version as ``"3.11"``, from the handshake; empty if unknown.
    nanny : bool, default=False
        Whether a nanny restarts it.

    Examples
    --------
    >>> WorkerCapacity(address="tcp://a:1", nthreads=4).total("CPU")
    4
    """

    address: str
    host: str = ""
    name: str = ""
    nthreads: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    status: str = "running"
    age: float = 0.0
    memory: int = 0
    memory_limit: int = 0
    python: str = ""
    nanny: bool = False

    @property
    def info(self) -> WorkerInfo:
        """What users see of it."""
        return WorkerInfo(
            address=self.address,
            name=self.name,
            host=self.host,
            nthreads=self.nthreads,
            memory_limit=self.memory_limit,
            resources=dict(self.resources),
        )

    @property
    def is_foreign(self) -> bool:
        """Whether it runs another minor version of Python, and so none of our functions."""
        return self.python not in ("", _PYTHON)

    def total(self, kind: str) -> float:
        """Return how much of a resource the worker has in all.

        What it declares counts. Without a declaration, ``CPU`` is the number of its threads and
        ``memory`` its memory limit in bytes.

        Parameters
        ----------
        kind : str
            Name of the resource.
        """
        if kind in self.resources:
            return self.resources[kind]
        if kind == "CPU":
            return self.nthreads
        if kind == "memory":
            return self.memory_limit or inf
        return 0

    def declared(self, needs: Mapping[str, float]) -> dict[str, float]:
        """Return that part of `needs` of which the worker's Dask keeps account.

        Parameters
        ----------
        needs : mapping
            Amounts by resource name.

        Examples
        --------
        >>> worker = WorkerCapacity(address="tcp://a:1", resources={"GPU": 1})
        >>> worker.declared({"CPU": 1, "GPU": 0.5})
        {'GPU': 0.5}
        """
        return {kind: amount for kind, amount in needs.items() if amount and kind in self.resources}

    def could_hold(self, needs: Mapping[str, float]) -> bool:
        """Whether the worker, if it were empty, could take all of `needs`.

        Parameters
        ----------
        needs : mapping
            Amounts by resource name.
        """
        return all(amount <= self.total(kind) + _EPSILON for kind, amount in needs.items())


class _Book:
    """One worker's account. What placing asks of it a thousand times is kept ready."""

    __slots__ = ("declared", "fill", "free", "is_fit", "others", "reserved", "worker")

    def __init__(self, worker: WorkerCapacity, reserved: dict[str, float], is_fit: bool) -> None:
        self.worker = worker
        #: Our own reservations, by kind; the ledger keeps the dict when the worker is out of sight.
        self.reserved = reserved
        #: Whether it takes trials at all.
        self.is_fit = is_fit
        #: What others hold.
        self.others = worker.used
        self.declared = [kind for kind, amount in worker.resources.items() if amount]
        self.settle()

    def settle(self) -> None:
        """Work out anew what is free, and how full the worker is."""
        worker, reserved, others = self.worker, self.reserved, self.others
        self.free: dict[str, float] = {}
        self.fill = 0.0
        for kind in dict.fromkeys(("CPU", "memory", *self.declared)):
            total = worker.total(kind)
            left = max(0.0, total - reserved.get(kind, 0.0) - others.get(kind, 0.0))
            self.free[kind] = left
            if 0 < total < inf:
                self.fill = max(self.fill, 1 - left / total)

    def has_room(self, needs: Mapping[str, float]) -> bool:
        free = self.free
        return all(amount <= free.get(kind, 0.0) + _EPSILON for kind, amount in needs.items())

    def preference(self, needs: Mapping[str, float]) -> tuple[int, float]:
        """Rank it: first one without scarce resources that would go unused, then the fullest."""
        return -sum(1 for kind in self.declared if kind not in needs), self.fill


class Ledger:
    """Who has how much, and who holds it.

    In this version all bundles of a request go to one worker.

    Parameters
    ----------
    heartbeat_timeout : float, default=30.0
        A worker whose last heartbeat is older (seconds) takes no new trial.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", nthreads=2)})
    >>> one = PlacementGroupFactory([{"CPU": 1}])
    >>> ledger.place(one, now=0.0), ledger.place(one, now=0.0), ledger.place(one, now=0.0)
    ('tcp://a:1', 'tcp://a:1', None)
    """

    def __init__(self, *, heartbeat_timeout: float = 30.0) -> None:
        self._heartbeat_timeout = heartbeat_timeout
        #: By address, in order of arrival, which breaks ties.
        self._books: dict[str, _Book] = {}
        #: Our own reservations by address; a worker that is out of sight keeps them.
        self._reserved: dict[str, dict[str, float]] = {}
        #: Until when, on the caller's clock, an address takes no new trial.
        self._avoided: dict[str, float] = {}

    @property
    def workers(self) -> Mapping[str, WorkerCapacity]:
        """The workers of the last update by address, in order of arrival."""
        return {address: book.worker for address, book in self._books.items()}

    def update(self, workers: Mapping[str, WorkerCapacity]) -> None:
        """Take over what the scheduler sees now; reservations stay.

        Parameters
        ----------
        workers : mapping
            All workers by address, as :func:`read_workers` returns them.
        """
        known = [address for address in self._books if address in workers]
        self._books = {
            address: _Book(
                workers[address],
                self._reserved.setdefault(address, {}),
                self._standing(workers[address]) == "running",
            )
            for address in dict.fromkeys([*known, *workers])
        }

    def remove(self, address: str) -> None:
        """Forget a worker that is gone, with all that it held for us.

        A worker may come back under the same address: do not release afterwards what was placed
        on the one that is gone.

        Parameters
        ----------
        address : str
            The worker's address; one that is not known is no error.
        """
        self._books.pop(address, None)
        self._reserved.pop(address, None)
        self._avoided.pop(address, None)

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

    def fits(self, request: PlacementGroupFactory, *, now: float) -> bool:
        """Whether there is room for a request at this moment.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the trial asks for.
        now : float
            Time on the clock that gave `until` to :meth:`avoid`.
        """
        needs = request.required_resources
        return any(self._takes(address, book, needs, now) for address, book in self._books.items())

    def place(self, request: PlacementGroupFactory, *, now: float) -> str | None:
        """Choose a worker for a request and reserve its resources there.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the trial asks for.
        now : float
            Time on the clock that gave `until` to :meth:`avoid`.

        Returns
        -------
        str or None
            The worker's address: of those that have room the fullest, so that whole workers stay
            free for larger trials and for scaling down. None if there is no room.
        """
        needs = request.required_resources
        fitting = [
            (address, book)
            for address, book in self._books.items()
            if self._takes(address, book, needs, now)
        ]
        if not fitting:
            return None
        address, book = max(fitting, key=lambda item: item[1].preference(needs))
        for kind, amount in needs.items():
            book.reserved[kind] = book.reserved.get(kind, 0.0) + amount
        book.settle()
        return address

    def release(self, address: str, request: PlacementGroupFactory) -> None:
        """Give back what :meth:`place` reserved.

        Parameters
        ----------
        address : str
            What :meth:`place` returned; a worker that was removed in between is no error.
        request : PlacementGroupFactory
            What was placed there.
        """
        reserved = self._reserved.get(address, {})
        for kind, amount in request.required_resources.items():
            left = reserved.get(kind, 0.0) - amount
            if left > _EPSILON:
                reserved[kind] = left
            else:
                reserved.pop(kind, None)
        if address in self._books:
            self._books[address].settle()

    def free(self, address: str, kind: str) -> float:
        """Return how much of a resource is left on a worker, all clients considered.

        Parameters
        ----------
        address : str
            Address of a known worker.
        kind : str
            Name of the resource.
        """
        return self._books[address].free.get(kind, 0.0)

    def declared(self, address: str, request: PlacementGroupFactory) -> dict[str, float]:
        """Return that part of a request of which a worker's Dask keeps account.

        Parameters
        ----------
        address : str
            Address of a known worker.
        request : PlacementGroupFactory
            What was placed there.
        """
        return self._books[address].worker.declared(request.required_resources)

    def ever_fits(self, request: PlacementGroupFactory) -> bool:
        """Whether some worker that is there could hold the request if it were empty.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the trial asks for.
        """
        needs = request.required_resources
        return any(
            worker.status in _ALIVE and not worker.is_foreign and worker.could_hold(needs)
            for worker in self.workers.values()
        )

    def largest(self) -> WorkerCapacity | None:
        """Return the worker with the most CPUs, then GPUs; None without workers."""
        return max(
            self.workers.values(),
            key=lambda worker: (worker.total("CPU"), worker.total("GPU")),
            default=None,
        )

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
        needs = request.required_resources
        kinds = list(needs) or ["CPU"]
        rows = [
            ["worker", "status", *(f"{kind} free/total" for kind in kinds)],
            ["asked", "", *(_amount(needs.get(kind, 0)) for kind in kinds)],
        ]
        largest_first = sorted(
            self.workers.items(), key=lambda item: [-item[1].total(kind) for kind in kinds]
        )
        for address, worker in largest_first[:_MAX_ROWS]:
            cells = [
                f"{_amount(self.free(address, kind))}/{_amount(worker.total(kind))}"
                for kind in kinds
            ]
            rows.append([address, self._standing(worker), *cells])
        more = len(largest_first) - _MAX_ROWS
        return "\n".join([*_aligned(rows), *([f"and {more} more"] if more > 0 else [])])

    def _takes(self, address: str, book: _Book, needs: Mapping[str, float], now: float) -> bool:
        return book.is_fit and now >= self._avoided.get(address, -inf) and book.has_room(needs)

    def _standing(self, worker: WorkerCapacity) -> str:
        """Return the worker's status, or why it takes no trial although it runs."""
        if worker.is_foreign:
            return f"Python {worker.python}"
        overdue = worker.status == "running" and worker.age > self._heartbeat_timeout
        return "silent" if overdue else worker.status


def _amount(value: float) -> str:
    return "unlimited" if value == inf else f"{value:.10g}"


def _aligned(rows: Iterable[list[str]]) -> list[str]:
    """Pad the columns of a table to equal width."""
    table = list(rows)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _scheduler_side(ours: str, least: float = _EPSILON) -> Callable[..., dict[str, dict[str, Any]]]:
    """Return the function that reads the workers on the scheduler.

    It is nested so that it travels by value: the scheduler may not have dasktune. What it returns
    are plain values, and the age is taken on the clock that stamped the heartbeats.
    """

    def others(worker: Any) -> dict[str, float]:
        # Our own leases come and go between two readings, so they are counted by the driver.
        used = {kind: amount for kind, amount in worker.used_resources.items() if amount}
        if used and ours:
            for task in worker.processing:
                if str(task.key).startswith(ours):
                    for kind, amount in (task.resource_restrictions or {}).items():
                        used[kind] = used.get(kind, 0.0) - amount
        return {kind: amount for kind, amount in used.items() if amount > least}

    def summary(dask_scheduler: Any = None) -> dict[str, dict[str, Any]]:
        from distributed.metrics import time

        now = time()
        return {
            worker.address: {
                "address": worker.address,
                "host": worker.host,
                "name": str(worker.name),
                "nthreads": worker.nthreads,
                "resources": dict(worker.resources),
                "used": others(worker),
                "status": worker.status.name,
                "age": max(0.0, now - worker.last_seen),
                "memory": worker.metrics.get("memory", 0),
                "memory_limit": worker.memory_limit or 0,
                "python": worker.versions.get("host", {}).get("python", ""),
                "nanny": worker.nanny is not None,
            }
            for worker in dask_scheduler.workers.values()
        }

    return summary


async def read_workers(client: Any, ours: str = "") -> dict[str, WorkerCapacity]:
    """Read all workers from the scheduler in one call.

    It must be awaited on the client's own loop. A function is sent to the scheduler by value,
    which needs the same Python there; :func:`dasktune.cluster.connect.connect` has made sure.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    ours : str, default=""
        What the keys of our own tasks begin with; what they hold is left out.

    Returns
    -------
    dict
        The workers by address, in the scheduler's order.
    """
    found = await client.run_on_scheduler(_scheduler_side(ours))
    return {
        address: WorkerCapacity(**{**info, "python": ".".join(info["python"].split(".")[:2])})
        for address, info in found.items()
    }
