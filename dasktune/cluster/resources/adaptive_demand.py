"""Shows an adaptive cluster how many workers the waiting trials need.

Dask derives the number of workers from the tasks on its scheduler. Trials that wait for room are
not tasks. So this module submits tasks that request a resource which no worker has. They count as
work, occupy no worker and never run, whatever the workers declare.

Dask derives one number from the count of tasks and another one from their estimated durations, and
takes the smaller one. A trial's lease counts as a task without a duration. So the durations of the
submitted tasks add up to the work of a cluster of the wanted size: the target is then exact, and
the tasks of other clients keep their weight.

Scaling down needs no message. The tasks are released when no trial waits, and a lease holds its
worker while it runs a trial. A new worker has no lease until the driver has checked it, which may
take longer than Dask lets a worker be idle. So until then the tasks also request the workers that
are there. If Dask retires a worker at the moment when a trial is placed there, the worker's plugin
pauses the trial, which then runs elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from typing import Any, Final

import dask
from dask.utils import parse_timedelta
from distributed import Client, Status, default_client
from distributed.deploy import SpecCluster

from dasktune.placement import Ledger, WorkerCapacity, host_of
from dasktune.trial.resources import ElasticPlacement, HostPlacement, PlacementGroupFactory

logger = logging.getLogger(__name__)

#: Prefix of the tasks' keys. Dask keeps one estimated duration for all tasks with the same prefix.
_PREFIX: Final = "dasktune-demand"

#: A resource that no worker has.
_MISSING_RESOURCE: Final = "dasktune-demand"

#: Largest number of tasks to submit.
_MOST: Final = 1000

#: Seconds that setting the tasks' duration on the scheduler may take.
_WEIGH_DEADLINE: Final = 5.0

#: Statuses of workers that run trials or soon will.
_USABLE: Final = frozenset({"init", "unchecked", "running"})

_EPSILON: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSignal:
    """The number and duration of the tasks that show the demand to Dask.

    Parameters
    ----------
    tasks : int
        Number of tasks that cannot run.
    weight : float
        Duration of each task, in units of :attr:`Growth.target_duration`.
    """

    tasks: int
    weight: float


def demand_signal(
    request: PlacementGroupFactory,
    waiting: int,
    ledger: Ledger,
    *,
    busy: int = 0,
    place: int = 0,
    sharers: int = 1,
    new_worker: WorkerCapacity | None = None,
) -> DemandSignal | None:
    """Return the signal that makes Dask start the workers that the waiting trials need.

    Parameters
    ----------
    request : PlacementGroupFactory
        The request of each trial.
    waiting : int
        Number of trials that would start now if there was room.
    ledger : Ledger
        The workers. The room of workers that are still unchecked counts, as otherwise they would be
        requested twice. That of workers that were given notice does not, because they leave.
    busy : int, default=0
        Number of the leases of all experiments; Dask counts each as a task.
    place, sharers : int
        How many experiments show a demand, and the place of this one among them, from 0. Together
        they show the current cluster once, and what each of them lacks.
    new_worker : WorkerCapacity, optional
        The resources of a new worker. If they are unknown, one worker is requested to learn them.

    Returns
    -------
    DemandSignal or None
        None if no room is missing, or more workers would not help. While the driver checks a worker
        and no more are needed, the signal makes Dask keep those that are there.

    Examples
    --------
    >>> ledger = Ledger()
    >>> worker = WorkerCapacity(address="tcp://a:1", nthreads=2)
    >>> ledger.update({"tcp://a:1": worker})
    >>> demand_signal(PlacementGroupFactory([{"CPU": 1}]), 6, ledger, new_worker=worker)
    DemandSignal(tasks=6, weight=1.0)
    """
    usable = [
        address
        for address, worker in ledger.workers.items()
        if worker.status in _USABLE and not worker.python_differs and address not in ledger.leaving
    ]
    if new_worker is not None and _together(request, new_worker) > 1:
        more = _workers_for_hosts(request, waiting, ledger, usable, new_worker)
    else:
        needs = request.required_resources
        missing = waiting - sum(_free_room(needs, ledger, address) for address in usable)
        more = _workers_for(request, missing, new_worker)
    # The room on a new worker is not missing, but no lease keeps that worker yet.
    if more or any(ledger.workers[address].status != "running" for address in usable):
        return signal_for(more, ledger, busy=busy, place=place, sharers=sharers)
    return None


def signal_for(more: int, ledger: Ledger, *, busy: int = 0, place: int = 0, sharers: int = 1) -> DemandSignal:
    """Return the signal that makes Dask start some workers, and keep those that are there.

    Parameters
    ----------
    more : int
        How many workers are missing. With 0 Dask keeps all that are there, and with -1 all but one.
    ledger, busy, place, sharers
        As for `demand_signal`.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", nthreads=2)})
    >>> signal_for(0, ledger, busy=1)
    DemandSignal(tasks=1, weight=2.0)
    """
    workers = ledger.workers
    if not workers:
        # Without any worker Dask assumes one thread for each worker.
        tasks = min(max(more, 1), _MOST)
        return DemandSignal(tasks=tasks, weight=more / tasks)
    threads = sum(worker.nthreads for worker in workers.values())
    wanted = floor((len(workers) + more) * threads / len(workers) + _EPSILON)
    part, rest = divmod(threads - busy, sharers)
    tasks = min(max(wanted - threads + part + (place < rest), 1), _MOST)
    return DemandSignal(tasks=tasks, weight=wanted / tasks)


def workers_for_bundles(
    missing: Iterable[tuple[ElasticPlacement, int]], worker: WorkerCapacity | None
) -> int:
    """Return how many new workers can hold the missing bundles of some requests.

    Parameters
    ----------
    missing : iterable of tuple
        The requests, and how many bundles each of them lacks.
    worker : WorkerCapacity or None
        The resources of a new worker. If they are unknown, one worker is requested to learn them.

    Examples
    --------
    >>> from dasktune.trial.resources import HostPlacement
    >>> request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 8), 2, 8)
    >>> workers_for_bundles([(request, 3), (request, 2)], WorkerCapacity(address="", nthreads=2))
    3
    """
    parts = 0.0
    for request, count in missing:
        each = _room(request.bundles[0], worker.total) if worker is not None else _MOST
        # Workers of this kind that are too small for a bundle are of no use.
        parts += count / each if each else 0
    return ceil(parts - _EPSILON)


def _workers_for(request: PlacementGroupFactory, trials: int, worker: WorkerCapacity | None) -> int:
    """Return how many new workers the trials need; 0 if no number of workers is enough."""
    if trials <= 0:
        return 0
    if worker is None:
        return 1
    span = _span(request, worker)
    if span > 1:
        return trials * span
    each = _room(request.required_resources, worker.total)
    return ceil(trials / each) if span and each else 0


def _workers_for_hosts(
    request: PlacementGroupFactory,
    trials: int,
    ledger: Ledger,
    addresses: Iterable[str],
    worker: WorkerCapacity,
) -> int:
    """Return how many new workers the trials need if a host's part takes several workers.

    Where new workers will run is not known. So they are taken to fill hosts: those with fewer
    workers than the host that has most of them, then others. If they come elsewhere, and there is
    room for all bundles but not in the right places, no more are requested.
    """
    bundle, per_host = request.bundles[0], _per_host(request)
    each, together = _room(bundle, worker.total), _together(request, worker)
    rooms: dict[str, list[int]] = {}
    for address in addresses:
        rooms.setdefault(host_of(address), []).append(_free_room(bundle, ledger, address))
    most = max(together, *map(len, rooms.values())) if rooms else together
    missing = trials * len(request.bundles)
    for on_workers in rooms.values():
        parts, rest = divmod(sum(on_workers), per_host)
        # A trial uses a host once.
        missing -= per_host * min(parts, trials)
        if parts < trials and len(on_workers) < most:
            missing -= rest
    whole, rest = divmod(max(missing, 0), per_host)
    return whole * together + ceil(rest / each)


def _per_host(request: PlacementGroupFactory) -> int:
    """Return how many bundles a host must have room for, if it has one of the trial."""
    if isinstance(request, HostPlacement):
        if request.per_host is not None:
            return request.per_host
        if request.strategy == "STRICT_PACK":
            return len(request.bundles)
    return 1


def _together(request: PlacementGroupFactory, worker: WorkerCapacity) -> int:
    """Return how many workers like this one hold a host's part of a trial; 0 if none can."""
    each = _room(request.bundles[0], worker.total)
    return ceil(_per_host(request) / each) if each else 0


def _free_room(needs: Mapping[str, float], ledger: Ledger, address: str) -> int:
    return _room(needs, lambda kind: ledger.free(address, kind))


def _span(request: PlacementGroupFactory, worker: WorkerCapacity) -> int:
    """Return how many workers like this one a trial needs; 0 if no number of workers is enough."""
    together = max(_together(request, worker), 1)
    hosts = len(request.bundles) // _per_host(request)
    names = [f"tcp://host-{host}:{number}" for host in range(hosts) for number in range(together)]
    ledger = Ledger()
    # Other experiments may use the worker that was seen, or their share of it is withheld.
    empty = replace(worker, status="running", used={}, withheld={})
    ledger.update({name: replace(empty, address=name) for name in names})
    placement = ledger.place(request, now=0.0)
    return 0 if placement is None else len(placement.addresses)


def _room(needs: Mapping[str, float], have: Callable[[str], float]) -> int:
    """Return how many times `needs` fits; an empty request fits any number of times."""
    fits = min((have(kind) / amount for kind, amount in needs.items() if amount), default=inf)
    return _MOST * _MOST if fits == inf else floor(fits + _EPSILON)


class Growth:
    """How a cluster grows, read from the object that names the cluster.

    Parameters
    ----------
    named : object
        The user's `client`: a cluster object, or a client that was created with one. Any other
        object contains no information.
    embedded : bool, default=False
        Whether the cluster was started for this experiment, and so never grows.
    """

    def __init__(self, named: Any = None, *, embedded: bool = False) -> None:
        self._embedded = embedded
        self._seen: WorkerCapacity | None = None
        self._cluster = None if embedded else _cluster_of(named)

    @property
    def is_adaptive(self) -> bool | None:
        """Whether the cluster starts workers when there is work; None if that is unknown.

        The user may change it at any time.
        """
        if self._embedded:
            return False
        if not isinstance(self._cluster, SpecCluster):
            # An operator may scale the cluster, or only its address is known.
            return None
        adaptive = self._cluster._adaptive
        return adaptive is not None and adaptive.periodic_callback is not None

    @property
    def new_worker(self) -> WorkerCapacity | None:
        """The resources of the next worker, if the cluster's specification has them."""
        spec = getattr(self._cluster, "new_spec", None) or {}
        options = spec.get("options", {})
        threads = options.get("nthreads")
        if not isinstance(threads, int) or "group" in spec:
            return None
        return WorkerCapacity(address="", nthreads=threads, resources=options.get("resources") or {})

    @property
    def target_duration(self) -> float:
        """Seconds in which the cluster should finish all tasks; Dask derives its size from them."""
        adaptive = getattr(self._cluster, "_adaptive", None)
        given = getattr(adaptive, "target_duration", None)
        default = dask.config.get("distributed.adaptive.target-duration")
        return float(parse_timedelta(default if given is None else given))

    @property
    def dropped_workers(self) -> tuple[int, int]:
        """How many workers the cluster has dropped, and how many it is to have; 0 and 0 if unknown.

        Dask drops a worker that has died and is not back when it looks for it. The name of that
        worker stays in the cluster's specification, so ``scale`` with the number of names starts it
        again. A cluster that is being scaled also lacks workers, for a short time.
        """
        if not isinstance(self._cluster, SpecCluster) or self.is_adaptive:
            return 0, 0
        # The cluster's own loop may change both at any time: copies are made in one operation.
        wanted, there = list(self._cluster.worker_spec), set(self._cluster.workers)
        return sum(name not in there for name in wanted), len(wanted)

    @property
    def failed_workers(self) -> list[Any]:
        """The names of the workers that have failed to start; none if that is unknown.

        A machine under load may need longer than Dask waits. Dask counts such a worker as one that
        runs, so neither ``scale`` nor an adaptive cluster starts another one in its place.
        """
        if not isinstance(self._cluster, SpecCluster):
            return []
        workers = list(self._cluster.workers.items())
        return [name for name, one in workers if getattr(one, "status", None) is Status.failed]

    @property
    def cluster_type(self) -> str:
        """The name of the cluster's class; empty if the user named none."""
        return "" if self._cluster is None else type(self._cluster).__name__

    def expected(self, ledger: Ledger) -> WorkerCapacity | None:
        """Return the resources of a new worker, as specified or else as of the largest one seen.

        Parameters
        ----------
        ledger : Ledger
            The current workers.
        """
        self._seen = max(
            ledger.workers.values(),
            key=lambda worker: (worker.total("CPU"), worker.total("GPU")),
            default=self._seen,
        )
        return self.new_worker or self._seen

    def may_wait(self, request: PlacementGroupFactory, *, empty: bool) -> bool:
        """Whether a new worker may meet a request that no current worker can meet.

        Parameters
        ----------
        request : PlacementGroupFactory
            The trial's request.
        empty : bool
            Whether there is no worker at all.
        """
        return (empty or bool(self.is_adaptive)) and not self.limit_reason(request)

    def limit_reason(self, request: PlacementGroupFactory) -> str:
        """Return why no new worker can meet a request; empty if one may."""
        new, needs = self.new_worker, request.required_resources
        if not self.is_adaptive or new is None or _span(request, new):
            return ""
        size = ", ".join(f"{kind} {new.total(kind):g}" for kind in needs)
        return f"The cluster is adaptive, but every worker that it starts has {size}. "


class AdaptiveDemand:
    """Shows the demand by tasks that cannot run. All methods run on the client's event loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    name : str
        A name that is unique to the experiment.
    growth : Growth
        How the cluster grows; it has Dask's target duration.
    """

    def __init__(self, client: Client, name: str, growth: Growth) -> None:
        self._client = client
        self._name = name
        self._growth = growth
        self._shown: list[Any] = []
        self._made = 0
        self._duration_task: asyncio.Task[None] | None = None

    def show(self, wanted: DemandSignal | None) -> None:
        """Show this demand in place of the last one."""
        # Tasks that are not pending are gone: the scheduler was lost, or is configured to end tasks
        # that no worker can run.
        self._shown = [future for future in self._shown if future.status == "pending"]
        if wanted is None:
            self._shown = _released(self._shown)
            return
        self._shown = self._shown[: wanted.tasks] + _released(self._shown[wanted.tasks :])
        self._add(wanted.tasks - len(self._shown))
        if self._duration_task is None or self._duration_task.done():
            work = self._set_duration(wanted.weight)
            self._duration_task = asyncio.get_running_loop().create_task(work)

    def close(self) -> None:
        """Show no demand."""
        self.show(None)
        if self._duration_task is not None:
            self._duration_task.cancel()

    def _add(self, count: int) -> None:
        if count <= 0:
            return
        logger.debug("showing %d more tasks to an adaptive cluster", count)
        numbers = range(self._made, self._made + count)
        self._made += count
        self._shown += self._client.map(
            _nothing,
            numbers,
            key=[f"{_PREFIX}-{self._name}-{number}" for number in numbers],
            pure=False,
            resources={_MISSING_RESOURCE: 1},
        )

    async def _set_duration(self, weight: float) -> None:
        duration = weight * self._growth.target_duration
        work = self._client.run_on_scheduler(_duration_setter(_PREFIX, duration))
        # If this fails the cluster still grows, but slowly: Dask assumes a short duration.
        with suppress(Exception):
            await asyncio.wait_for(work, _WEIGH_DEADLINE)


def _cluster_of(named: Any) -> Any:
    if named is None:
        try:
            named = default_client()
        except ValueError:
            return None
    return named.cluster if isinstance(named, Client) else named


def _released(futures: Iterable[Any]) -> list[Any]:
    for future in futures:
        future.release()
    return []


def _nothing(number: int) -> None:
    """Do nothing. It would run only if some worker had the resource after all."""


def _duration_setter(prefix: str, duration: float) -> Callable[..., None]:
    """Return a function that sets the duration on the scheduler; nested, to pickle by value."""

    def set_duration(dask_scheduler: Any = None) -> None:
        known = dask_scheduler.task_prefixes.get(prefix)
        if known is not None:
            known.duration_average = duration

    return set_duration
