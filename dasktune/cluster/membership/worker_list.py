"""Lists the workers of a cluster, in one call to the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dasktune.cluster.resources.declare import GPUS
from dasktune.placement import WorkerCapacity

__all__ = ["list_workers"]

#: Amounts below this are rounding errors of sums of fractions.
_LEAST: Final = 1e-6


def _scheduler_side(
    own_prefix: str, least: float = _LEAST, gpus: str = GPUS
) -> Callable[..., dict[str, dict[str, Any]]]:
    """Return a function that reads the workers on the scheduler.

    It is nested so that it pickles by value: the scheduler may not have dasktune. It returns plain
    values, and measures the age with the clock that stamped the heartbeats.
    """

    def others(worker: Any) -> dict[str, float]:
        # Leave out the driver's own leases. The driver counts them itself, because they change
        # between two readings.
        used = {kind: amount for kind, amount in worker.used_resources.items() if amount}
        if used and own_prefix:
            for task in worker.processing:
                if str(task.key).startswith(own_prefix):
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
                "devices": tuple(worker.extra.get(gpus, {}).get("owned", ())),
                "status": worker.status.name,
                "age": max(0.0, now - worker.last_seen),
                "heartbeat": worker.last_seen,
                "memory": worker.metrics.get("memory", 0),
                "memory_limit": worker.memory_limit or 0,
                "python": worker.versions.get("host", {}).get("python", ""),
                "nanny": worker.nanny is not None,
            }
            for worker in dask_scheduler.workers.values()
        }

    return summary


async def list_workers(client: Any, own_prefix: str = "") -> dict[str, WorkerCapacity]:
    """Read all workers from the scheduler in one call.

    It must be awaited on the client's own loop. The function is sent to the scheduler by value,
    which requires the same Python version there; `connect` has checked that.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    own_prefix : str, default=""
        Prefix of the keys of the driver's own tasks, whose resources are not counted as used.

    Returns
    -------
    dict
        The workers by address, in the scheduler's order.
    """
    found = await client.run_on_scheduler(_scheduler_side(own_prefix))
    return {
        address: WorkerCapacity(**{**info, "python": ".".join(info["python"].split(".")[:2])})
        for address, info in found.items()
    }
