"""What the benchmarks of trials that move between workers have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from distributed import LocalCluster

from benchmarks._measure import load, machine
from benchmarks._report import table
from benchmarks.checkpoints import register_slow_store
from benchmarks.experiments import local_cluster, warm_up

__all__ = ["print_table"]


def print_table(
    header: Sequence[str],
    cases: Iterable[tuple[str, str]],
    row: Callable[[LocalCluster, str, str], Sequence[str]],
    *,
    threads: int = 1,
) -> None:
    """Measure cases one after the other on a cluster of two workers, and print a table of them.

    Parameters
    ----------
    header : sequence of str
        Names of the columns.
    cases : iterable of (str, str)
        The label of each case, and where its checkpoints are kept.
    row : callable
        ``row(cluster, *case)`` returns a row of the table; the times are medians in ms.
    threads : int, default=1
        Threads of each worker.
    """
    about, before = machine(), load()
    rows = []
    with local_cluster(workers=2, threads=threads) as cluster:
        warm_up(cluster)
        register_slow_store(cluster)
        for case in cases:
            print(*case, sep=", ", file=sys.stderr, flush=True)
            rows.append(row(cluster, *case))
    print(f"{about['date']}, {about['cores']} cores, revision {about['revision']}, {about['system']}")
    print(f"load {before:.1f} to {load():.1f}, medians in ms\n")
    print(table(header, rows))
