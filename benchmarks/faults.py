"""What each fault costs a trial: ``python -m benchmarks.faults``.

One trial reports every 0.1 s, each time with a checkpoint, on one of two worker processes. Then the
fault is injected. The journal shows after how many seconds the driver noticed it, after how many
the trial reported again, and how many steps were repeated. The clusters are those of the tests.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import cloudpickle
import psutil
from distributed import Client

import dasktune as tune
from benchmarks._measure import load, machine

_TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(_TESTS / "cluster"), str(_TESTS / "faults")]

import cluster_kit  # noqa: E402
import fault_kit  # noqa: E402
from cluster_kit import Fleet, journal, until  # noqa: E402

__all__ = ["main"]

#: Seconds without a heartbeat after which a worker is marked lost, and without the driver.
HEARTBEAT_TIMEOUT = 5.0
DRIVER_TTL = 5.0

#: Of workers with a nanny, which restarts those that exceed it.
_LIMIT = "--memory-limit=600MB"


def train(config: dict[str, Any]) -> None:
    """Report a step every 0.1 s until the file "finish" exists; allocate 900 MB on request."""
    directory = Path(config["directory"])
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while not (directory / "finish").exists():
        time.sleep(0.1)
        step += 1
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        if (directory / "exceed_memory").exists():
            (directory / "exceed_memory").unlink()
            allocated = b"x" * (900 << 20)
            time.sleep(60)
            del allocated


@dataclass
class RunningTrial:
    """A trial that runs, and its cluster."""

    directory: Path
    fleet: Fleet
    client: Client

    def pid(self) -> int:
        """Return the process ID of the trial's worker."""
        address = journal(self.directory, event="TrialStarted")[-1]["worker"]
        return fault_kit.pid_of(self.client, address)


@dataclass(frozen=True)
class Fault:
    """A fault, and the function that injects it."""

    name: str
    inject: Callable[[RunningTrial], None]
    nanny: bool = False


def _signal(number: signal.Signals) -> Callable[[RunningTrial], None]:
    return lambda running: os.kill(running.pid(), number)


def _kill_with_nanny(running: RunningTrial) -> None:
    worker = psutil.Process(running.pid())
    worker.parent().kill()
    worker.kill()


def _exceed_memory(running: RunningTrial) -> None:
    (running.directory / "exceed_memory").touch()


def _restart(running: RunningTrial) -> None:
    running.client.restart(wait_for_workers=False)


def _kill_scheduler(running: RunningTrial) -> None:
    running.fleet.scheduler.kill()
    running.fleet.scheduler.wait()
    for worker in running.fleet.workers:
        cluster_kit.kill(worker)
    running.fleet.start_scheduler()
    running.fleet.workers.clear()
    running.fleet.add_worker()


def _break_connection(running: RunningTrial) -> None:
    [ours] = [one for one in Client._instances if one.status == "running" and one is not running.client]
    ours.loop.add_callback(ours.scheduler_comm.comm.abort)


FAULTS = (
    Fault("worker killed", _signal(signal.SIGKILL)),
    Fault("worker and nanny killed", _kill_with_nanny, nanny=True),
    Fault("worker killed, its nanny starts it again", _signal(signal.SIGKILL), nanny=True),
    Fault("worker exceeds its memory", _exceed_memory, nanny=True),
    Fault("worker frozen", _signal(signal.SIGSTOP)),
    Fault("worker terminated", _signal(signal.SIGTERM)),
    Fault("all workers restarted by another client", _restart, nanny=True),
    Fault("scheduler and all workers killed, and started again", _kill_scheduler),
    Fault("the driver's connection breaks", _break_connection),
)


def measure(fault: Fault) -> tuple[float, float, float]:
    """Return the seconds until it is noticed and until the next result, and the repeated steps."""
    directory = Path(tempfile.mkdtemp(prefix="dasktune-bench-"))
    fleet = Fleet(directory)
    try:
        for _ in range(2):
            fleet.add_worker(*([_LIMIT] if fault.nanny else []), nanny=fault.nanny)
        with fleet.client() as client:
            client.wait_for_workers(2)
            running = RunningTrial(directory, fleet, client)
            with cluster_kit.fitting(_tuner(directory, fleet.address)) as future:
                until(lambda: len(journal(directory, event="ResultReported")) >= 10)
                begun = time.time()
                fault.inject(running)
                until(lambda: _last(directory)["incarnation"] > 1)
                (directory / "finish").touch()
                future.result()
        return _read_off(directory, begun)
    finally:
        fleet.close()
        shutil.rmtree(directory, ignore_errors=True)


def _tuner(directory: Path, address: str) -> tune.Tuner:
    return tune.Tuner(
        train,
        param_space={"directory": str(directory)},
        run_config=tune.RunConfig(
            storage_path=directory,
            name="run",
            verbose=0,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            driver_ttl=DRIVER_TTL,
            queue_trials=True,
        ),
        client=address,
    )


def _last(directory: Path) -> dict[str, Any]:
    return journal(directory, event="ResultReported")[-1]


def _read_off(directory: Path, begun: float) -> tuple[float, float, float]:
    rows = journal(directory, event="ResultReported")
    resumed = next(row for row in rows if row["incarnation"] > 1)
    before = [row for row in rows if row["incarnation"] == 1]
    [lost] = journal(directory, event="TrialLost")[:1]
    twice = before[-1]["metrics"]["step"] - resumed["metrics"]["step"] + 1
    return lost["time"] - begun, resumed["time"] - begun, twice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each fault (3)")
    runs = parser.parse_args().runs
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for module in (cluster_kit, fault_kit, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    print(f"{machine()}\nload average {load():.1f}\n")
    print("| fault | noticed after | next result after | steps done twice |")
    print("|---|---|---|---|")
    for fault in FAULTS:
        noticed, next_result, twice = map(median, zip(*(measure(fault) for _ in range(runs)), strict=True))
        print(f"| {fault.name} | {noticed:.2f} s | {next_result:.2f} s | {twice:g} |", flush=True)
    print(f"\nload average {load():.1f} at the end")


if __name__ == "__main__":
    main()
