"""What the experiments hold, from the records of Dask's scheduler: the tasks of their leases.

This module travels by value to schedulers without dasktune, with what it imports of the package.

Memory is in the annotations of the tasks, because Dask does not count it. GPUs are in the events in
which workers report that they have granted a lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil, inf
from typing import Any, NamedTuple

from dasktune.cluster.sharing.amounts import EPSILON, add, gpu_amounts
from dasktune.placement.devices import gpu_names
from dasktune.placement.placement import MEMORY, SHARES

#: The key of a worker's GPUs in the scheduler's record, as in `dasktune.cluster.resources.declare`.
_GPUS = "dasktune-gpus"


class Lease(NamedTuple):
    """What an actor of an experiment holds on a worker.

    `needs` has the amounts, also of memory that Dask does not count. `shares` are the numbers of
    GPUs of its bundles. `gpus` are the parts of single GPUs by their position on the worker, once
    the worker has granted the lease.
    """

    experiment: str
    actor: str
    address: str
    needs: dict[str, float]
    shares: tuple[float, ...] = ()
    gpus: Mapping[int, float] = {}

    @property
    def held(self) -> dict[str, float]:
        """All that it holds, with single GPUs."""
        return {**self.needs, **gpu_amounts(self.gpus)}


class LeaseRecords:
    """All leases on the cluster, also those of experiments that have reported no demand.

    Only the scheduler's event loop uses it.
    """

    def __init__(self) -> None:
        #: The leases by experiment and by key.
        self.by_experiment: dict[str, dict[str, Lease]] = {}
        #: Those of them that hold memory or GPUs, by address and by key. Dask does not know how
        #: much memory and which GPUs are in use.
        self._special: dict[str, dict[str, Lease]] = {}

    def of(self, experiment: str) -> Collection[Lease]:
        """Return the leases of an experiment."""
        return self.by_experiment.get(experiment, {}).values()

    def special_on(self, address: str) -> Collection[Lease]:
        """Return the leases on a worker that hold memory or GPUs."""
        return self._special.get(address, {}).values()

    def begin(self, key: str, task: Any) -> Lease:
        """Record a lease that begins.

        Parameters
        ----------
        key : str
            The key of its task.
        task : distributed.scheduler.TaskState
            The task, which a worker processes.
        """
        lease = _lease_of(task, *owner_of(key))
        self.by_experiment.setdefault(lease.experiment, {})[key] = lease
        if "GPU" in lease.needs or "memory" in lease.needs:
            self._special.setdefault(lease.address, {})[key] = lease
        return lease

    def end(self, key: str) -> Lease | None:
        """Remove a lease that has ended, and return it; None if it is not known."""
        name, _ = owner_of(key)
        ended = self.by_experiment.get(name, {}).pop(key, None)
        if ended is not None:
            if not self.by_experiment[name]:
                del self.by_experiment[name]
            special = self._special.get(ended.address, {})
            if special.pop(key, None) is not None and not special:
                # The addresses of workers that leave an adaptive cluster seldom come back.
                del self._special[ended.address]
        return ended

    def grant(self, experiment: str, key: str, devices: Sequence[Sequence[str]], worker: Any) -> None:
        """Record the GPUs of a lease.

        Parameters
        ----------
        experiment, key : str
            The lease.
        devices : sequence
            The names of the devices of each of its bundles.
        worker : distributed.scheduler.WorkerState
            The worker that has granted it.
        """
        lease = self.by_experiment[experiment][key]
        granted = lease._replace(gpus=self._gpus_of(lease, devices, worker))
        self.by_experiment[experiment][key] = self._special[lease.address][key] = granted

    def clear(self) -> None:
        """Remove all leases."""
        self.by_experiment.clear()
        self._special.clear()

    def capacity(
        self, workers: Iterable[Any], experiments: Collection[str], *, counts_memory: bool
    ) -> dict[str, dict[str, float]]:
        """Return what each worker has for some experiments: all that other programs do not use.

        Dask books the resources of tasks that wait on a worker, too, so other programs may have
        booked more than it has. They use nothing of what the experiments hold, and no amount is
        negative.

        Parameters
        ----------
        workers : iterable of distributed.scheduler.WorkerState
            The workers.
        experiments : collection of str
            The experiments. The leases of others count as used.
        counts_memory : bool
            Whether to return the memory of workers that do not declare it.

        Returns
        -------
        dict
            ``{address: amounts}``, with single GPUs as in
            :func:`~dasktune.cluster.sharing.amounts.gpu_amounts`.
        """
        ours: dict[str, dict[str, float]] = {}
        for name in experiments:
            for lease in self.of(name):
                add(ours.setdefault(lease.address, {}), lease.needs)
        capacity: dict[str, dict[str, float]] = {}
        for worker in workers:
            address, used = worker.address, worker.used_resources
            held = ours.get(address, {})
            room = capacity[address] = {}
            for kind, amount in worker.resources.items():
                own = held.get(kind, 0.0)
                # Leases that wait behind tasks may be more than the worker has, too.
                room[kind] = max(min(own, amount), amount - max(0.0, used.get(kind, 0.0) - own))
            others = [lease for lease in self.special_on(address) if lease.experiment not in experiments]
            if counts_memory and "memory" not in room:
                room["memory"] = max(0.0, (worker.memory_limit or inf) - memory_of(others))
            if "GPU" in room:
                loads, number = gpu_loads(others), len(worker_gpus(worker))
                room |= gpu_amounts({n: max(0.0, 1 - loads.get(n, 0.0)) for n in range(number)})
        return capacity

    @property
    def holds_memory(self) -> bool:
        """Whether some lease holds memory."""
        return any("memory" in lease.needs for leases in self._special.values() for lease in leases.values())

    def _gpus_of(self, lease: Lease, devices: Sequence[Sequence[str]], worker: Any) -> dict[int, float]:
        """Return the parts of the worker's GPUs that a lease has, from the names of its devices."""
        names = worker_gpus(worker)
        taken = gpu_loads(self.special_on(lease.address))
        parts: dict[int, float] = {}
        for amount, share in zip(lease.shares, devices, strict=True):
            for device in share:
                part = amount / len(share)
                # Several of the worker's GPUs may be on one device.
                places = [place for place, name in enumerate(names) if name == device]
                free = [place for place in places if taken.get(place, 0.0) + part <= 1 + EPSILON]
                for place in (free or places)[:1]:
                    for loads in (parts, taken):
                        loads[place] = loads.get(place, 0.0) + part
        return parts


def owner_of(key: str) -> tuple[str, str]:
    """Return the experiment and the actor of a lease, whose key begins with theirs.

    Examples
    --------
    >>> owner_of("run-1-actor-2-lease-abc")
    ('run-1', 'run-1-actor-2')
    """
    actor = key.partition("-lease-")[0]
    return actor.partition("-actor-")[0], actor


def worker_gpus(worker: Any) -> tuple[str, ...]:
    """Return the device of each GPU that a worker declares.

    Parameters
    ----------
    worker : distributed.scheduler.WorkerState
        The worker.
    """
    return gpu_names(worker.extra.get(_GPUS, {}).get("owned", ()), ceil(worker.resources.get("GPU", 0)))


def gpu_loads(leases: Iterable[Lease]) -> dict[int, float]:
    """Return the part of each GPU of a worker that leases hold."""
    loads: dict[int, float] = {}
    for lease in leases:
        for place, part in lease.gpus.items():
            loads[place] = loads.get(place, 0.0) + part
    return loads


def memory_of(leases: Iterable[Lease]) -> float:
    """Return the memory that leases hold, in bytes."""
    return sum(lease.needs.get("memory", 0.0) for lease in leases)


def _lease_of(task: Any, experiment: str, actor: str) -> Lease:
    """Return the lease of a task on Dask's scheduler."""
    annotations = task.annotations or {}
    needs = dict(task.resource_restrictions or {})
    if annotations.get(MEMORY):
        needs["memory"] = annotations[MEMORY]
    shares = tuple(annotations.get(SHARES, ()))
    return Lease(experiment, actor, task.processing_on.address, needs, shares)
