"""What the scheduler knows of its workers, read in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dasktune.cluster.equip import GPUS
from dasktune.placement import WorkerCapacity

__all__ = ["read_workers"]

#: Less than this is what sums of fractions leave over.
_LEAST: Final = 1e-6


def _scheduler_side(
    ours: str, least: float = _LEAST, gpus: str = GPUS
) -> Callable[..., dict[str, dict[str, Any]]]:
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
