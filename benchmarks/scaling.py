"""What an event costs on a large cluster, in virtual time: ``python -m benchmarks.scaling``.

The cluster is simulated, the driver is not: the experiment, the scheduler, the ledger and the
journal records are those of a real run. The figures are processor time, which other load changes
less.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from itertools import cycle
from statistics import median
from types import SimpleNamespace
from typing import Any

from distributed.core import Status
from distributed.protocol import dumps, loads, to_serialize
from distributed.scheduler import WorkerState

import dasktune as tune
from benchmarks._measure import Figures
from benchmarks.simulator import CountingStore
from dasktune.cluster.membership.worker_list import KnownWorkers, read_cluster
from dasktune.cluster.membership.worker_monitor import HeartbeatAges
from dasktune.cluster.sharing.share_plugin import PLUGIN_NAME, SharePlugin
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.schedulers import ASHAScheduler
from dasktune.testing import simulate

__all__ = ["scaling"]

#: Results that each trial would report.
_STEPS = 10

_WORKERS = 1_000

_TRIALS = (1_000, 3_000, 10_000)

#: Name -> the request of a trial, and the capacity of each worker.
_CLUSTERS: dict[str, tuple[Any, WorkerCapacity]] = {
    "one_at_a_time": ({"cpu": 1}, WorkerCapacity(address="", nthreads=1)),
    "all_at_once": ({"cpu": 1}, WorkerCapacity(address="", nthreads=10)),
    "gpus": (
        {"cpu": 1, "gpu": 0.5},
        WorkerCapacity(address="", nthreads=8, devices=tuple("0123")),
    ),
    "four_bundles": (
        tune.PlacementGroupFactory([{"CPU": 1}] * 4, "SPREAD"),
        WorkerCapacity(address="", nthreads=8),
    ),
}


def _workers_of(kind: WorkerCapacity, count: int) -> dict[str, WorkerCapacity]:
    facts = {"nthreads": kind.nthreads, "devices": kind.devices}
    names = [f"tcp://10.0.{number >> 8}.{number & 255}:40000" for number in range(count)]
    return {name: WorkerCapacity(address=name, **facts) for name in names}


def _curve(config: dict[str, Any]) -> Generator[tuple[dict[str, float], float], None, None]:
    for step in range(_STEPS):
        # Trials differ in speed, so that each event arrives alone.
        yield {"loss": config["x"] / (step + 1)}, 1.0 + config["x"]


def _us_per_event(trials: int, cluster: str) -> float:
    request, kind = _CLUSTERS[cluster]
    store = CountingStore()
    begun = time.process_time()
    simulate(
        _curve,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=trials,
            scheduler=ASHAScheduler(max_t=_STEPS),
            seed=0,
        ),
        workers=list(_workers_of(kind, _WORKERS).values()),
        resources=request,
        store=store,
    )
    return 1e6 * (time.process_time() - begun) / store.records


def _us(work: Callable[[], object], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        work()
    return 1e6 * (time.process_time() - begun) / times


def _ledger_us(cluster: str, workers: int) -> tuple[float, float]:
    """Return microseconds to replace a trial on a full cluster, and to update its workers."""
    request, kind = _CLUSTERS[cluster]
    asked = tune.with_resources(_curve, request).resources
    workers_by_address = _workers_of(kind, workers)
    ledger = Ledger()
    ledger.update(workers_by_address)
    held = []
    while (placement := ledger.place(asked, now=0.0)) is not None:
        held.append(placement)

    def replace_one() -> None:
        ledger.release(held.pop(len(held) // 2))
        if ledger.fits(asked, now=0.0) and (placement := ledger.place(asked, now=0.0)):
            held.append(placement)
        ledger.fits(asked, now=0.0)

    # A reading returns the same object for a worker that has sent no heartbeat since the last one.
    readings = cycle([_workers_of(kind, workers), _workers_of(kind, workers)])
    return _us(replace_one, 1000), _us(lambda: ledger.update(next(readings)), 10)


class _Scheduler:
    """A scheduler as a reading sees it: Dask's records of workers, each with eight leases."""

    def __init__(self) -> None:
        self.workers = {}
        self.plugins = {PLUGIN_NAME: SharePlugin()}
        self.scheduler_s = self.bytes = 0.0
        for number, address in enumerate(_workers_of(WorkerCapacity(address=""), _WORKERS)):
            worker = WorkerState(
                address=address,
                status=Status.running,
                pid=1,
                name=number,
                nthreads=8,
                memory_limit=2**34,
                local_directory="",
                nanny=None,
                server_id="",
                versions={"host": {"python": "3.11.7.final.0"}},
            )
            worker.resources, worker.used_resources = {"CPU": 8.0}, {"CPU": 8.0}
            worker.last_seen = time.time()
            names = [f"{'ours' if place % 2 else 'theirs'}-lease-{number}-{place}" for place in range(8)]
            leases = [
                SimpleNamespace(key=one, resource_restrictions={"CPU": 1.0}, priority=()) for one in names
            ]
            worker.processing = leases
            self.workers[address] = worker

    async def run_on_scheduler(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it as Dask does, and count the scheduler's part."""
        begun = time.process_time()
        frames = dumps({"status": "OK", "result": to_serialize(function(*args, dask_scheduler=self))})
        self.scheduler_s += time.process_time() - begun
        self.bytes = sum(map(len, frames))
        return loads(frames)["result"]


def _reading() -> Figures:
    """Return milliseconds of one reading of all workers, on the scheduler and on the driver."""
    scheduler, ages, known, ledger = _Scheduler(), HeartbeatAges(), KnownWorkers(15.0), Ledger()
    demand = {"label": "", "client": "", "weight": 1.0, "priority": 0.0, "group": ""}
    demand |= {"requests": [], "layouts": [], "closed": []}
    theirs, all_s = [], []
    for number in range(40):
        scheduler.scheduler_s, begun = 0.0, time.process_time()
        # Each of a thousand workers sends a heartbeat every six seconds, at every fourth reading.
        for worker in [*scheduler.workers.values()][number % 4 :: 4]:
            worker.last_seen = time.time()
            worker.metrics["memory"] = number
        stamped = time.process_time() - begun
        reading = read_cluster(
            scheduler, "ours-", demand, lambda seen: ages.update(seen, time.monotonic(), 2.0), known
        )
        workers, _ = asyncio.run(reading)
        ledger.update(workers)
        theirs.append(1e3 * scheduler.scheduler_s)
        all_s.append(1e3 * (time.process_time() - begun - stamped))
    prefix = f"reading_{_WORKERS}_workers"
    driver = [one - other for one, other in zip(all_s, theirs, strict=True)]
    return {
        f"{prefix}_scheduler_ms": median(theirs),
        f"{prefix}_driver_ms": median(driver),
        f"{prefix}_kB": scheduler.bytes / 1e3,
    }


def scaling() -> Figures:
    """Measure the cost of an event for more trials, and of a placement for more workers."""
    figures = _reading()
    for cluster in _CLUSTERS:
        for trials in _TRIALS:
            figures[f"{cluster}_{trials}_us_per_event"] = _us_per_event(trials, cluster)
        for workers in (10, _WORKERS):
            place, update = _ledger_us(cluster, workers)
            figures[f"{cluster}_{workers}_workers_us_per_place"] = place
            figures[f"{cluster}_{workers}_workers_us_per_update"] = update
    return figures


def main() -> None:
    for name, value in scaling().items():
        print(f"{name:45} {value:10,.1f}", flush=True)


if __name__ == "__main__":
    main()
