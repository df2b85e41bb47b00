"""What the data of a search takes in the memory of its driver and of its workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from benchmarks.sklearn_models import Sleeper
from dasktune.sklearn import GridSearchCV

__all__ = ["measure_memory"]

_CANDIDATES = 100


def measure_memory(megabytes: int) -> dict[str, float]:
    """Return by how much the memory grows at most while 100 candidates share so much data.

    Of a worker, and of this process, in which Dask's scheduler lives, too, on top of the data
    that the caller has.
    """
    X = np.random.default_rng(0).normal(size=(megabytes * 1250, 100))
    # Small splits: a fit copies the rows of its split, which is the estimator's affair.
    rows = np.arange(200)
    splits = [(rows[:100], rows[100:])]
    space = {"number": list(range(_CANDIDATES))}
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        GridSearchCV(Sleeper(), {"number": [1, 2]}, cv=splits, refit=False).fit(X[:200])
        workers = list(client.run(os.getpid).values())
        with _watched([*workers, os.getpid()]) as grown:
            GridSearchCV(Sleeper(0.02), space, cv=splits, refit=False).fit(X)
    return {
        "worker_mb": max(grown[pid] for pid in workers),
        "driver_mb": grown[os.getpid()],
    }


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def _watched(pids: list[int]) -> Iterator[dict[int, float]]:
    """Yield by how many MB each process grows at most, seen every 10 ms."""
    before = {pid: _resident_mb(pid) for pid in pids}
    grown: dict[int, Any] = dict.fromkeys(pids, 0.0)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            for pid in pids:
                grown[pid] = max(grown[pid], _resident_mb(pid) - before[pid])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield grown
    finally:
        over.set()
        thread.join()
