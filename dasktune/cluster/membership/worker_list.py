"""Lists the workers of a cluster, in one call to the scheduler.

The same call reports the experiment's demand to the plugin that shares the cluster, if the
scheduler has it, and returns what the plugin reserves for other experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from dasktune.cluster.connection.by_value import pickled_once
from dasktune.cluster.resources.declare import GPUS
from dasktune.cluster.sharing.share_plugin import PLUGIN_NAME
from dasktune.placement import WorkerCapacity

#: Given each worker's last heartbeat and its age in seconds, by address, returns the ages to use.
CountAges: TypeAlias = Callable[[Mapping[str, tuple[float, float]]], Mapping[str, float]]

#: What the scheduler says of each worker, and the age of its last heartbeat in seconds, both by
#: address; and the answer of the plugin that shares the cluster.
_Reading: TypeAlias = tuple[dict[str, dict[str, Any]], dict[str, float], dict[str, Any] | None]

#: Amounts below this are rounding errors of sums of fractions.
_LEAST: Final = 1e-6


def _booked_by_tasks(least: float) -> Callable[[Any, float], dict[str, float]]:
    """Return a function that sums what tasks that can be overtaken have booked on a worker."""

    def booked_by_tasks(worker: Any, priority: float) -> dict[str, float]:
        # Dask books the resources of a task as soon as it is sent to a worker. If more is booked
        # than the worker has, some tasks wait there. Only then they are summed: there may be many.
        if all(amount <= worker.resources[kind] + least for kind, amount in worker.used_resources.items()):
            return {}
        booked: dict[str, float] = {}
        for task in worker.processing:
            # A lease would wait for all tasks with a higher priority, while other workers may get
            # free. Dask puts the negative of a task's priority first.
            is_ahead = bool(task.priority) and -task.priority[0] > priority
            if "-lease-" not in str(task.key) and not is_ahead:
                for kind, amount in (task.resource_restrictions or {}).items():
                    booked[kind] = booked.get(kind, 0.0) + amount
        return booked

    return booked_by_tasks


@pickled_once
def _reader(
    least: float = _LEAST, gpus: str = GPUS, plugin_name: str = PLUGIN_NAME
) -> Callable[..., _Reading]:
    """Return a function that reads the workers on the scheduler.

    It is nested so that it pickles by value: the scheduler may not have dasktune. It returns plain
    values, and measures the age with the clock that stamped the heartbeats.
    """
    booked_by_tasks = _booked_by_tasks(least)

    def others(worker: Any, own_prefix: str) -> dict[str, float]:
        # Leave out the driver's own leases. The driver counts them itself, because they change
        # between two readings.
        used = {kind: amount for kind, amount in worker.used_resources.items() if amount}
        if used and own_prefix:
            for task in worker.processing:
                if str(task.key).startswith(own_prefix):
                    for kind, amount in (task.resource_restrictions or {}).items():
                        used[kind] = used.get(kind, 0.0) - amount
        return {kind: amount for kind, amount in used.items() if amount > least}

    def read(own_prefix: str, demand: dict[str, Any] | None, dask_scheduler: Any = None) -> _Reading:
        from distributed.metrics import time

        plugin = None if demand is None else dask_scheduler.plugins.get(plugin_name)
        share = None if plugin is None else plugin.exchange(own_prefix, demand)
        priority = 0.0 if demand is None else demand["priority"]
        now = time()
        workers, ages = {}, {}
        for worker in dask_scheduler.workers.values():
            used = others(worker, own_prefix)
            workers[worker.address] = {
                "address": worker.address,
                "host": worker.host,
                "name": str(worker.name),
                "nthreads": worker.nthreads,
                "resources": dict(worker.resources),
                "used": used,
                "overtakable": booked_by_tasks(worker, priority),
                **(plugin.limits(own_prefix, worker, used) if plugin and share else {}),
                "devices": tuple(worker.extra.get(gpus, {}).get("owned", ())),
                "status": worker.status.name,
                "heartbeat": worker.last_seen,
                "memory": worker.metrics.get("memory", 0),
                "memory_limit": worker.memory_limit or 0,
                "python": ".".join(worker.versions.get("host", {}).get("python", "").split(".")[:2]),
                "nanny": worker.nanny is not None,
            }
            ages[worker.address] = max(0.0, now - worker.last_seen)
        return workers, ages, share

    return read


class KnownWorkers:
    """The workers of the last reading; those that have not changed are the same objects again.

    Most workers of a large cluster send no heartbeat between two readings. A thousand new objects
    at each reading would take a tenth of the driver's time, most of it in the garbage collector.

    Parameters
    ----------
    recent_s : float, default=0
        A heartbeat that is younger than this, in seconds, has the age 0.
    """

    def __init__(self, recent_s: float = 0.0) -> None:
        self._recent_s = recent_s
        #: What the scheduler said of each worker, and the worker, by address.
        self._known: dict[str, tuple[dict[str, Any], WorkerCapacity]] = {}

    def update(
        self, found: Mapping[str, dict[str, Any]], ages: Mapping[str, float]
    ) -> dict[str, WorkerCapacity]:
        """Return the workers by address.

        Parameters
        ----------
        found : mapping
            What the scheduler says of each worker, by address.
        ages : mapping
            The seconds since each worker's last heartbeat, by address.
        """
        known = {}
        for address, info in found.items():
            age = 0.0 if ages[address] < self._recent_s else ages[address]
            before = self._known.get(address)
            if before is None or before[1].age != age or before[0] != info:
                before = info, WorkerCapacity(**info, age=age)
            known[address] = before
        self._known = known
        return {address: worker for address, (_, worker) in known.items()}


async def list_workers(client: Any) -> dict[str, WorkerCapacity]:
    """Read all workers from the scheduler in one call.

    It must be awaited on the client's own loop. The function is sent to the scheduler by value,
    which requires the same Python version there; `connect` has checked that.

    Parameters
    ----------
    client : distributed.Client
        A connected client.

    Returns
    -------
    dict
        The workers by address, in the scheduler's order.
    """
    workers, _ = await read_cluster(client, "")
    return workers


async def read_cluster(
    client: Any,
    own_prefix: str,
    demand: Mapping[str, Any] | None = None,
    count_ages: CountAges | None = None,
    known: KnownWorkers | None = None,
) -> tuple[dict[str, WorkerCapacity], dict[str, Any] | None]:
    """Read all workers, and report the experiment's demand, in one call to the scheduler.

    It must be awaited on the client's own loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    own_prefix : str
        Prefix of the keys of the driver's own tasks, whose resources are not counted as used; empty
        for none.
    demand : mapping, optional
        The experiment's demand, see
        :meth:`~dasktune.cluster.sharing.share_reporter.ShareReporter.demand`.
    count_ages : callable, optional
        Given the time of each worker's last heartbeat and its age by the scheduler's clock, by
        address, returns the ages to use.
    known : KnownWorkers, optional
        The workers of the reading before, which this updates.

    Returns
    -------
    tuple of dict and (dict or None)
        The workers by address, and the answer of the plugin that shares the cluster; None if the
        scheduler lacks the plugin or no demand was given.
    """
    found, ages, share = await client.run_on_scheduler(_reader(), own_prefix, demand)
    if count_ages is not None:
        ages = count_ages({address: (info["heartbeat"], ages[address]) for address, info in found.items()})
    known = KnownWorkers() if known is None else known
    return known.update(found, ages), share
