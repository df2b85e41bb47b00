"""What one plan of the fair share costs on Dask's scheduler: ``python -m benchmarks.fair_share``.

Every worker has 8 CPUs, and all of them are held, one by each trial. Each experiment waits for as
many trials as there are workers.
"""

from __future__ import annotations

import time

from benchmarks._measure import Figures
from dasktune.cluster.sharing.fair_share import Contender, ShareRequest, due_shares, plan_shares

__all__ = ["fair_share"]

#: Number of workers, and of experiments.
_CLUSTERS = ((10, 2), (100, 5), (1_000, 10))

_CPUS = 8


def _seconds(workers: int, experiments: int, bundles: tuple[dict[str, float], ...]) -> float:
    capacity = {f"tcp://10.0.{n >> 8}.{n & 255}:40000": {"CPU": _CPUS} for n in range(workers)}
    trials = [[(address, {"CPU": 1})] for address in capacity for _ in range(_CPUS)]
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
        due = due_shares({"CPU": workers * _CPUS}, contenders)
        plan_shares(capacity, contenders, due)
        times.append(time.process_time() - begun)
    return min(times)


def fair_share() -> Figures:
    """Return the milliseconds of processor time of one plan."""
    figures: Figures = {}
    for workers, experiments in _CLUSTERS:
        for name, bundles in (("one_bundle", ({"CPU": 1},)), ("four_bundles", ({"CPU": 1},) * 4)):
            figures[f"{name}_{workers}_workers_ms"] = 1e3 * _seconds(workers, experiments, bundles)
    return figures


if __name__ == "__main__":
    for name, value in fair_share().items():
        print(f"{name}: {value:.3g}")
