"""What one plan of the fair share costs on Dask's scheduler: ``python -m benchmarks.fair_share``.

Every worker has 8 CPUs, or 4 GPUs, and all of them are held, by trials of one CPU or half a GPU.
Each experiment waits for as many trials as there are workers.
"""

from __future__ import annotations

import time

from benchmarks._measure import Figures
from dasktune.cluster.sharing.amounts import gpu_amounts, total_amounts
from dasktune.cluster.sharing.due_shares import Contender, ShareRequest, due_shares
from dasktune.cluster.sharing.fair_share import plan_shares

__all__ = ["fair_share"]

#: Number of workers, and of experiments.
_CLUSTERS = ((10, 2), (100, 5), (1_000, 10))

_CPUS, _GPUS = 8, 4

_REQUESTS: dict[str, tuple[dict[str, float], ...]] = {
    "one_bundle": ({"CPU": 1},),
    "half_gpu": ({"GPU": 0.5},),
    "four_bundles": ({"CPU": 1},) * 4,
}


def _seconds(workers: int, experiments: int, bundles: tuple[dict[str, float], ...]) -> float:
    room: dict[str, float] = {"CPU": _CPUS}
    held: list[dict[str, float]] = [{"CPU": 1}] * _CPUS
    if "GPU" in bundles[0]:
        room = {"GPU": _GPUS, **gpu_amounts(dict.fromkeys(range(_GPUS), 1.0))}
        held = [{"GPU": 0.5, **gpu_amounts({n // 2: 0.5})} for n in range(2 * _GPUS)]
    capacity = {f"tcp://10.0.{n >> 8}.{n & 255}:40000": room for n in range(workers)}
    trials = [[(address, needs)] for address in capacity for needs in held]
    contenders = [
        Contender(
            str(number),
            weight=1 + number,
            holdings=trials[number::experiments],
            requests=[ShareRequest(bundles, "SPREAD", workers)],
        )
        for number in range(experiments)
    ]
    times = []
    for _ in range(5):
        begun = time.process_time()
        due = due_shares(total_amounts(capacity), contenders)
        plan_shares(capacity, contenders, due)
        times.append(time.process_time() - begun)
    return min(times)


def fair_share() -> Figures:
    """Return the milliseconds of processor time of one plan."""
    figures: Figures = {}
    for workers, experiments in _CLUSTERS:
        for name, bundles in _REQUESTS.items():
            figures[f"{name}_{workers}_workers_ms"] = 1e3 * _seconds(workers, experiments, bundles)
    return figures


if __name__ == "__main__":
    for name, value in fair_share().items():
        print(f"{name}: {value:.3g}")
