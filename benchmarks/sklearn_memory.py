"""How much memory the data of a search takes in its driver and in its workers."""

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
    """Return the largest growth of memory while 100 candidates share `megabytes` of data.

    It is that of a worker, and that of this process, which also has Dask's scheduler, without the
    caller's copy of the data.
    """
    X = np.random.default_rng(0).normal(size=(megabytes * 1250, 100))
    # The splits are small because a fit copies the rows of its split.
    rows = np.arange(200)
    splits = [(rows[:100], rows[100:])]
    space = {"number": list(range(_CANDIDATES))}
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        GridSearchCV(Sleeper(), {"number": [1, 2]}, cv=splits, refit=False).fit(X[:200])
        workers = list(client.run(os.getpid).values())
        with _memory_growth([*workers, os.getpid()]) as growth:
            GridSearchCV(Sleeper(0.02), space, cv=splits, refit=False).fit(X)
    return {
        "worker_mb": max(growth[pid] for pid in workers),
        "driver_mb": growth[os.getpid()],
    }


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def _memory_growth(pids: list[int]) -> Iterator[dict[int, float]]:
    """Yield the largest growth of each process in MB, sampled every 10 ms."""
    before = {pid: _resident_mb(pid) for pid in pids}
    growth: dict[int, Any] = dict.fromkeys(pids, 0.0)
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.01):
            for pid in pids:
                growth[pid] = max(growth[pid], _resident_mb(pid) - before[pid])

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield growth
    finally:
        ended.set()
        thread.join()
