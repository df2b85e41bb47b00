"""What a worker costs driver and scheduler: ``python -m benchmarks.many_workers 100 200 400``.

The workers are real ones of Dask, hundreds of them in a few processes. Each has its own connections
and heartbeats. The scheduler and each driver are processes of their own. The figures are their
processor time from the call of ``fit()`` to its return, which other load changes less than the wall
time. The time of the workers does not count: a real cluster has other machines for them.

Dask's system monitor is off. It lists the open files of its process for each worker, which takes
quadratic time if all workers share a process.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import multiprocessing
import os
import pstats
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import dask
import psutil

import dasktune as tune
from benchmarks._measure import Figures
from benchmarks.concurrency import ContinueAfterDecision

__all__ = ["many_workers"]

#: Results of each trial.
_STEPS = 5

#: Processes that the workers share, and the number of workers that start at a time in each.
_FARMS = 2
_AT_ONCE = 50

#: Seconds for which the scheduler is measured before the experiments, with idle workers.
_IDLE = 10.0

#: Number of functions in a profile.
_SHOWN = 60

_SETTINGS = {
    "distributed.admin.system-monitor.interval": "3600s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}

#: What each worker does many times a second would take a whole processor for hundreds of them.
_WORKER_SETTINGS = {
    **_SETTINGS,
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.profile.enabled": False,
}

_processes = multiprocessing.get_context("spawn")


class _Case(NamedTuple):
    """The size of a measurement."""

    workers: int
    threads: int = 1
    seconds: float = 4.0
    experiments: int = 1
    #: Whether each result waits for the scheduler's decision.
    is_judged: bool = False
    #: A folder for profiles of the scheduler and the drivers, or none.
    profiles: str = ""


def _write_profile(profile: cProfile.Profile, path: str) -> None:
    with suppress(ValueError):
        # Another thread's profile cannot be disabled here.
        profile.disable()
    profile.dump_stats(f"{path}.stats")
    with Path(path).open("w") as text:
        for order in ("tottime", "cumulative"):
            pstats.Stats(profile, stream=text).sort_stats(order).print_stats(_SHOWN)


def _run_scheduler(pipe: Connection, profiles: str) -> None:
    from distributed import Scheduler

    dask.config.set(_SETTINGS)
    logging.getLogger("distributed").setLevel(logging.ERROR)

    async def serve() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            pipe.send(scheduler.address)
            profile = cProfile.Profile(time.thread_time)
            while not pipe.poll():
                await asyncio.sleep(0.1)
            pipe.recv()
            if profiles:
                profile.enable()
            while not pipe.poll():
                await asyncio.sleep(0.1)
            if profiles:
                _write_profile(profile, f"{profiles}/scheduler")
                pipe.send(None)
        os._exit(0)

    asyncio.run(serve())


def _run_workers(pipe: Connection, address: str, names: Sequence[str], threads: int, folder: str) -> None:
    from distributed import Worker

    dask.config.set(_WORKER_SETTINGS)
    logging.getLogger("distributed").setLevel(logging.ERROR)

    async def serve() -> None:
        for first in range(0, len(names), _AT_ONCE):
            starting = [
                Worker(
                    address,
                    name=name,
                    nthreads=threads,
                    memory_limit=0,
                    host="127.0.0.1",
                    dashboard=False,
                    local_directory=folder,
                )
                for name in names[first : first + _AT_ONCE]
            ]
            await asyncio.gather(*starting)
        pipe.send(None)
        while not pipe.poll():
            await asyncio.sleep(0.1)
        # The workers share the process, so none of them needs to end in order.
        os._exit(0)

    asyncio.run(serve())


def _train(config: dict[str, Any]) -> None:
    waited = 0.0
    for step in range(_STEPS):
        time.sleep(config["seconds"])
        begun = time.monotonic()
        tune.report({"loss": config["x"] + step, "waited": waited})
        waited = time.monotonic() - begun


def _run_driver(pipe: Connection, address: str, number: int, case: _Case, folder: str) -> None:
    logging.getLogger("distributed").setLevel(logging.ERROR)
    tuner = tune.Tuner(
        _train,
        param_space={"x": tune.uniform(0, 1), "seconds": case.seconds},
        tune_config=tune.TuneConfig(
            num_samples=case.workers * case.threads // case.experiments,
            metric="loss",
            mode="min",
            scheduler=ContinueAfterDecision() if case.is_judged else None,
        ),
        run_config=tune.RunConfig(storage_path=folder, name=f"many-{number}", verbose=0),
        client=address,
    )
    pipe.send(None)
    pipe.recv()
    if case.profiles:
        with _profiled_threads(f"{case.profiles}/driver-{number}"):
            figures = _fit(tuner)
    else:
        figures = _fit(tuner)
    pipe.send(figures)


@contextmanager
def _profiled_threads(path: str) -> Iterator[None]:
    """Profile this thread, and each thread that begins meanwhile, for itself."""

    def begin(*_: object) -> None:
        # This is the first call in the new thread. The profile replaces this function there.
        profile = cProfile.Profile(time.thread_time)
        profiles[threading.current_thread().name] = profile
        profile.enable()

    profiles: dict[str, cProfile.Profile] = {}
    threading.setprofile(begin)
    begin()
    yield
    threading.setprofile(None)
    for name, profile in profiles.items():
        _write_profile(profile, f"{path}-{name}")


def _fit(tuner: tune.Tuner) -> Figures:
    begun, used = time.time(), time.process_time()
    results = tuner.fit()
    seconds, wall = time.process_time() - used, time.time() - begun
    waits = sorted(row["waited"] for one in results for row in one.history[1:])
    return {
        "wall_s": wall,
        "driver_s": seconds,
        "errors": len(results.errors),
        "results": sum(len(one.history) for one in results),
        "wait_median_s": waits[len(waits) // 2],
        "wait_p99_s": waits[len(waits) * 99 // 100],
    }


def many_workers(case: _Case) -> Figures:
    """Run an experiment, or several, with one trial for each thread of the workers."""
    with TemporaryDirectory() as folder:
        pipe, theirs = _processes.Pipe()
        scheduler = _processes.Process(target=_run_scheduler, args=(theirs, case.profiles), daemon=True)
        scheduler.start()
        address = pipe.recv()
        names = [f"worker-{number}" for number in range(case.workers)]
        shares = [names[farm::_FARMS] for farm in range(_FARMS)]
        farms = [_start(_run_workers, address, share, case.threads, folder) for share in shares]
        numbers = range(case.experiments)
        drivers = [_start(_run_driver, address, number, case, folder) for number in numbers]
        for one, _ in (*farms, *drivers):
            one.recv()
        time.sleep(2)
        idle = _processor_seconds(scheduler.pid)
        time.sleep(_IDLE)
        idle = (_processor_seconds(scheduler.pid) - idle) / _IDLE
        pipe.send(None)
        seconds = _processor_seconds(scheduler.pid), [_processor_seconds(farm.pid) for _, farm in farms]
        begun = time.time()
        for one, _ in drivers:
            one.send(None)
        figures: list[Figures] = [one.recv() for one, _ in drivers]
        wall = time.time() - begun
        after = _processor_seconds(scheduler.pid), [_processor_seconds(farm.pid) for _, farm in farms]
        pipe.send(None)
        if case.profiles:
            pipe.recv()
        for one, _ in farms:
            one.send(None)
        for process in (*(process for _, process in (*drivers, *farms)), scheduler):
            process.join(20)
    return {
        "workers": case.workers,
        "experiments": case.experiments,
        "wall_s": wall,
        "ideal_s": _STEPS * case.seconds,
        "errors": sum(one["errors"] for one in figures),
        "results": sum(one["results"] for one in figures),
        "driver_ms_per_worker": 1e3 * sum(one["driver_s"] for one in figures) / case.workers,
        "scheduler_ms_per_worker": 1e3 * (after[0] - seconds[0]) / case.workers,
        "scheduler_ms_per_worker_above_idle": 1e3 * (after[0] - seconds[0] - idle * wall) / case.workers,
        "scheduler_share_idle": idle,
        "scheduler_share": (after[0] - seconds[0]) / wall,
        "worker_ms_each": 1e3 * (sum(after[1]) - sum(seconds[1])) / case.workers,
        "wait_median_s": max(one["wait_median_s"] for one in figures),
        "wait_p99_s": max(one["wait_p99_s"] for one in figures),
    }


def _start(target: Any, *args: Any) -> tuple[Connection, Any]:
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    return ours, process


def _processor_seconds(pid: int | None) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workers", type=int, nargs="*", default=[100, 200, 400])
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker, one trial each")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each of the five results")
    parser.add_argument("--experiments", type=int, default=1, help="experiments at the same time")
    parser.add_argument("--judged", action="store_true", help="let each result wait for a decision")
    parser.add_argument("--profiles", default="", help="a folder for profiles of scheduler and driver")
    args = parser.parse_args()
    for workers in args.workers:
        case = _Case(workers, args.threads, args.seconds, args.experiments, args.judged, args.profiles)
        figures = many_workers(case)
        print(", ".join(f"{name} {value:,.3g}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
