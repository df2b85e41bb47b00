"""Shows an adaptive cluster how much room is missing, in the way that Dask understands.

Dask decides how many workers there should be from what its scheduler has to do. It knows nothing
of trials that wait here: they go to a worker only when there is one with room. So the missing room
is shown as tasks that no worker can take, because they ask for a resource that nobody has. They
count as work to be done, occupy no worker and never run, whatever the workers declare.

Dask counts in tasks and in their estimated durations, and takes what is less. A trial's lease
counts as a task without a duration. So the tasks shown are given the duration, in sum, that the
whole cluster needs to have: then the target is exact, and other people's tasks keep their weight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from typing import Any, Final

import dask
from dask.utils import parse_timedelta
from distributed import Client, default_client
from distributed.deploy import SpecCluster

from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Demand", "Growth", "Signal", "signal"]

logger = logging.getLogger(__name__)

#: What the keys begin with; Dask keeps one estimated duration for all of them.
_PREFIX: Final = "dasktune-demand"

#: The resource that no worker has.
_NOBODY_HAS: Final = "dasktune-demand"

#: Tasks that are shown at most.
_MOST: Final = 1000

#: Seconds to tell the scheduler how long the tasks would take.
_WEIGH_DEADLINE: Final = 5.0

#: On a worker of these, trials run or soon will.
_IN_SIGHT: Final = frozenset({"init", "unchecked", "running"})

_EPSILON: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What to show to Dask.

    Parameters
    ----------
    tasks : int
        Tasks that cannot run.
    weight : float
        Duration of each, in units of what Dask wants a computation to take on every thread.
    """

    tasks: int
    weight: float


def signal(
    request: PlacementGroupFactory,
    waiting: int,
    ledger: Ledger,
    *,
    busy: int = 0,
    new_worker: WorkerCapacity | None = None,
) -> Signal | None:
    """Return what makes Dask start the workers that the waiting trials need.

    Parameters
    ----------
    request : PlacementGroupFactory
        What each of them asks for.
    waiting : int
        How many trials would start now if there was room.
    ledger : Ledger
        The workers. Those that nobody has looked at yet count as room, lest they be asked for
        twice.
    busy : int, default=0
        Leases of ours; Dask counts each as a task.
    new_worker : WorkerCapacity, optional
        What a new worker will have. If nobody knows, one is asked for, to see.

    Returns
    -------
    Signal or None
        None if nothing is missing, or more workers would be of no use.

    Examples
    --------
    >>> ledger = Ledger()
    >>> worker = WorkerCapacity(address="tcp://a:1", nthreads=2)
    >>> ledger.update({"tcp://a:1": worker})
    >>> signal(PlacementGroupFactory([{"CPU": 1}]), 6, ledger, new_worker=worker)
    Signal(tasks=6, weight=1.0)
    """
    needs = request.required_resources
    workers = ledger.workers
    missing = waiting - sum(
        _room(needs, lambda kind, at=address: ledger.free(at, kind))  # type: ignore[misc]
        for address, worker in workers.items()
        if worker.status in _IN_SIGHT and not worker.is_foreign
    )
    more = _workers_for(request, missing, new_worker)
    if not more:
        return None
    if not workers:
        # Dask takes threads for workers as long as it has not seen one.
        tasks = min(more, _MOST)
        return Signal(tasks=tasks, weight=more / tasks)
    threads = sum(worker.nthreads for worker in workers.values())
    wanted = floor((len(workers) + more) * threads / len(workers) + _EPSILON)
    tasks = min(max(wanted - busy, 1), _MOST)
    return Signal(tasks=tasks, weight=wanted / tasks)


def _workers_for(request: PlacementGroupFactory, trials: int, worker: WorkerCapacity | None) -> int:
    """Return how many new workers so many trials take; 0 if no number of them is enough."""
    if trials <= 0:
        return 0
    if worker is None:
        return 1
    span = _span(request, worker)
    if span > 1:
        return trials * span
    each = _room(request.required_resources, worker.total)
    return ceil(trials / each) if span and each else 0


def _span(request: PlacementGroupFactory, worker: WorkerCapacity) -> int:
    """Return how many such workers one trial takes; 0 if no number of them is enough."""
    names = map(str, range(len(request.bundles)))
    ledger = Ledger()
    ledger.update({name: replace(worker, address=name, status="running") for name in names})
    placement = ledger.place(request, now=0.0)
    return 0 if placement is None else len(placement.addresses)


def _room(needs: dict[str, float], have: Callable[[str], float]) -> int:
    """Return how often `needs` fits into what is there; a request for nothing fits without end."""
    fits = min((have(kind) / amount for kind, amount in needs.items() if amount), default=inf)
    return _MOST * _MOST if fits == inf else floor(fits + _EPSILON)


class Growth:
    """What the object that names the cluster tells of how it grows.

    Parameters
    ----------
    named : object
        What the user gave as `client`: a cluster object, a client that was made with one, or
        anything else, which tells nothing.
    embedded : bool, default=False
        Whether the cluster was started for this experiment, and so never grows.
    """

    def __init__(self, named: Any = None, *, embedded: bool = False) -> None:
        self._embedded = embedded
        self._seen: WorkerCapacity | None = None
        self._cluster = None if embedded else _cluster_of(named)

    @property
    def is_adaptive(self) -> bool | None:
        """Whether the cluster starts workers when there is work; None if nobody can tell.

        It may change at any time.
        """
        if self._embedded:
            return False
        if not isinstance(self._cluster, SpecCluster):
            # A cluster that somebody else scales, such as an operator, or only an address.
            return None
        adaptive = self._cluster._adaptive
        return adaptive is not None and adaptive.periodic_callback is not None

    @property
    def new_worker(self) -> WorkerCapacity | None:
        """What the cluster's next worker will have, if it tells."""
        spec = getattr(self._cluster, "new_spec", None) or {}
        options = spec.get("options", {})
        threads = options.get("nthreads")
        if not isinstance(threads, int) or "group" in spec:
            return None
        return WorkerCapacity(
            address="", nthreads=threads, resources=options.get("resources") or {}
        )

    @property
    def target_duration(self) -> float:
        """Seconds that Dask wants a computation to take; with fewer workers it takes longer."""
        adaptive = getattr(self._cluster, "_adaptive", None)
        given = getattr(adaptive, "target_duration", None)
        default = dask.config.get("distributed.adaptive.target-duration")
        return float(parse_timedelta(default if given is None else given))

    def expected(self, ledger: Ledger) -> WorkerCapacity | None:
        """Return what a new worker will have, as the cluster tells, or as the largest one had.

        Parameters
        ----------
        ledger : Ledger
            The workers that are there now.
        """
        self._seen = max(
            ledger.workers.values(),
            key=lambda worker: (worker.total("CPU"), worker.total("GPU")),
            default=self._seen,
        )
        return self.new_worker or self._seen

    def may_wait(self, request: PlacementGroupFactory, *, empty: bool) -> bool:
        """Whether a request that no worker can meet may be met by one that comes.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the trial asks for.
        empty : bool
            Whether there is no worker at all.
        """
        return (empty or bool(self.is_adaptive)) and not self.limit(request)

    def limit(self, request: PlacementGroupFactory) -> str:
        """Say why no new worker will ever meet a request, or nothing if one may."""
        new, needs = self.new_worker, request.required_resources
        if not self.is_adaptive or new is None or _span(request, new):
            return ""
        size = ", ".join(f"{kind} {new.total(kind):g}" for kind in needs)
        return f"The cluster is adaptive, but every worker that it starts has {size}. "


class Demand:
    """The tasks that are shown; lives on the client's event loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client whose loop this runs on.
    name : str
        Unique to the experiment.
    growth : Growth
        Knows what Dask wants a computation to take.
    """

    def __init__(self, client: Client, name: str, growth: Growth) -> None:
        self._client = client
        self._name = name
        self._growth = growth
        self._shown: list[Any] = []
        self._made = 0
        self._weighing: asyncio.Task[None] | None = None

    def show(self, wanted: Signal | None) -> None:
        """Show so much from now on, in place of what was shown before."""
        # A scheduler that was lost, or set to give up on such tasks, has ended them.
        self._shown = [future for future in self._shown if future.status == "pending"]
        if wanted is None:
            self._shown = _released(self._shown)
            return
        self._shown = self._shown[: wanted.tasks] + _released(self._shown[wanted.tasks :])
        self._add(wanted.tasks - len(self._shown))
        if self._weighing is None or self._weighing.done():
            work = self._weigh(wanted.weight)
            self._weighing = asyncio.get_running_loop().create_task(work)

    def close(self) -> None:
        """Show nothing any more."""
        self.show(None)
        if self._weighing is not None:
            self._weighing.cancel()

    def _add(self, count: int) -> None:
        if count <= 0:
            return
        logger.debug("showing %d tasks more to an adaptive cluster", count)
        numbers = range(self._made, self._made + count)
        self._made += count
        self._shown += self._client.map(
            _nothing,
            numbers,
            key=[f"{_PREFIX}-{self._name}-{number}" for number in numbers],
            pure=False,
            resources={_NOBODY_HAS: 1},
        )

    async def _weigh(self, weight: float) -> None:
        duration = weight * self._growth.target_duration
        work = self._client.run_on_scheduler(_weigher(_PREFIX, duration))
        # Without it the cluster grows, too, but slowly: Dask takes every task for a short one.
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
    """Do nothing, should some worker have the resource after all."""


def _weigher(prefix: str, duration: float) -> Callable[..., None]:
    """Return the function that tells the scheduler what to expect; nested, to travel by value."""

    def weigh(dask_scheduler: Any = None) -> None:
        known = dask_scheduler.task_prefixes.get(prefix)
        if known is not None:
            known.duration_average = duration

    return weigh
