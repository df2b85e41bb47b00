"""What an event costs on a large cluster, in virtual time: ``python -m benchmarks.scaling``.

The cluster is simulated, the driver is not: the experiment, the scheduler, the ledger and the
journal records are those of a real run. The figures are processor time, which other load changes
less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import dasktune as tune
from benchmarks._measure import Figures
from benchmarks.simulator import CountingStore
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

    return _us(replace_one, 1000), _us(lambda: ledger.update(workers_by_address), 10)


def scaling() -> Figures:
    """Measure the cost of an event for more trials, and of a placement for more workers."""
    figures: Figures = {}
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
