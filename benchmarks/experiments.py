"""Run one experiment of dasktune on a cluster, and return its timeline."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import LocalCluster

import dasktune as tune
from benchmarks import trainables
from benchmarks._measure import Figures, Size, Timeline, now
from dasktune.schedulers.trial_scheduler import TrialScheduler
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

__all__ = ["EXPERIMENTS", "local_cluster", "run", "warm_up"]


@contextmanager
def local_cluster(workers: int = 2, threads: int = 1) -> Iterator[LocalCluster]:
    """Yield a cluster of worker processes; its scheduler runs in this process."""
    with LocalCluster(
        n_workers=workers, threads_per_worker=threads, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


def run(
    cluster: LocalCluster,
    trainable: Any,
    size: Size,
    *,
    space: dict[str, Any] | None = None,
    scheduler: TrialScheduler | None = None,
    search_alg: Any = None,
    scheme: str = "",
    **run_config: Any,
) -> Timeline:
    """Run an experiment, and read the times of its events from its journal.

    So a result counts only if it is durable. `scheme` is the URL scheme of a storage that keeps its
    files in a local directory.
    """
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        tuner = tune.Tuner(
            trainable,
            param_space={"x": tune.uniform(0, 1), "steps": size.steps, **(space or {})},
            tune_config=tune.TuneConfig(
                metric=None,
                num_samples=size.trials,
                scheduler=scheduler,
                search_alg=search_alg,
                seed=0,
            ),
            run_config=tune.RunConfig(name="bench", storage_path=scheme + directory, verbose=0, **run_config),
            client=cluster,
        )
        cpu = _driver_cpu(cluster)
        before = cpu()
        timeline = Timeline(begun=now())
        grid = tuner.fit()
        timeline.ended = now()
        timeline.cpu = cpu() - before
        if grid.num_errors or len(grid) != size.trials:
            raise RuntimeError(f"the workload failed: {list(grid.errors)}")
        timeline.journal = list(read_journal(Storage(str(Path(directory, "bench")))))
        for record in timeline.journal:
            if record["event"] == "ResultReported":
                timeline.results.append(record["time"])
                if "waited_s" in record["metrics"]:
                    timeline.waits.append(record["metrics"]["waited_s"])
            elif record["event"] == "TrialEnded":
                timeline.ends.append(record["time"])
    return timeline


def _driver_cpu(cluster: LocalCluster) -> Callable[[], float]:
    """Return a clock of this process's processor time without the scheduler's thread."""

    async def ident() -> int:
        return threading.get_ident()

    scheduler = time.pthread_getcpuclockid(cluster.sync(ident))
    return lambda: time.process_time() - time.clock_gettime(scheduler)


def warm_up(cluster: LocalCluster) -> None:
    """Run a small experiment, so that the workers have imported what they need."""
    run(cluster, trainables.noop, Size(trials=4))


def noop(cluster: LocalCluster, size: Size) -> Figures:
    return run(cluster, trainables.noop, size).figures()


def function(cluster: LocalCluster, size: Size) -> Figures:
    return run(cluster, trainables.steps, size).figures()


def class_api(cluster: LocalCluster, size: Size) -> Figures:
    return run(cluster, trainables.Steps, size).figures()


def checkpoint(cluster: LocalCluster, size: Size) -> Figures:
    keep_two = tune.CheckpointConfig(num_to_keep=2)
    return run(cluster, trainables.checkpoints, size, checkpoint_config=keep_two).figures()


#: The workloads that share one cluster of two workers with one thread each.
EXPERIMENTS: dict[str, Callable[[LocalCluster, Size], Figures]] = {
    "noop": noop,
    "function": function,
    "class": class_api,
    "checkpoint": checkpoint,
    "first": noop,
}
