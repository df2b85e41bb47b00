"""What each fault costs a trial: ``python -m benchmarks.faults``.

One trial reports every 0.1 s, each time with a checkpoint, on one of two worker processes. Then
something happens to it. The journal tells after how many seconds the driver noticed, after how many
the trial reported again, and how many steps it did twice. The clusters are those of the tests.
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

#: The settings, in seconds; a silent worker is given up after the first.
HEARTBEAT_TIMEOUT = 5.0
DRIVER_TTL = 5.0

#: Where the worker of a trial takes too much memory.
_LIMIT = "--memory-limit=600MB"


def train(config: dict[str, Any]) -> None:
    """Report a step each 0.1 s, until somebody makes a file; gorge once if told to."""
    place = Path(config["place"])
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while not (place / "go").exists():
        time.sleep(0.1)
        step += 1
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        if (place / "gorge").exists():
            (place / "gorge").unlink()
            gorged = b"x" * (900 << 20)
            time.sleep(60)
            del gorged


@dataclass
class Scene:
    """A cluster on which a trial runs."""

    place: Path
    fleet: Fleet
    client: Client

    def pid(self) -> int:
        """Return the process of the trial's worker."""
        address = journal(self.place, event="TrialStarted")[-1]["worker"]
        return fault_kit.pid_of(self.client, address)


@dataclass(frozen=True)
class Fault:
    """Something that may happen."""

    name: str
    harm: Callable[[Scene], None]
    nanny: bool = False


def _signal(number: signal.Signals) -> Callable[[Scene], None]:
    return lambda scene: os.kill(scene.pid(), number)


def _kill_with_nanny(scene: Scene) -> None:
    worker = psutil.Process(scene.pid())
    worker.parent().kill()
    worker.kill()


def _gorge(scene: Scene) -> None:
    (scene.place / "gorge").touch()


def _restart(scene: Scene) -> None:
    scene.client.restart(wait_for_workers=False)


def _kill_scheduler(scene: Scene) -> None:
    scene.fleet.scheduler.kill()
    scene.fleet.scheduler.wait()
    for worker in scene.fleet.workers:
        cluster_kit.kill(worker)
    scene.fleet.start_scheduler()
    scene.fleet.workers.clear()
    scene.fleet.add_worker()


def _break_connection(scene: Scene) -> None:
    [ours] = [one for one in Client._instances if one.status == "running" and one is not scene.client]
    ours.loop.add_callback(ours.scheduler_comm.comm.abort)


FAULTS = (
    Fault("worker killed", _signal(signal.SIGKILL)),
    Fault("worker and nanny killed", _kill_with_nanny, nanny=True),
    Fault("worker killed, its nanny starts it again", _signal(signal.SIGKILL), nanny=True),
    Fault("worker exceeds its memory", _gorge, nanny=True),
    Fault("worker frozen", _signal(signal.SIGSTOP)),
    Fault("worker terminated", _signal(signal.SIGTERM)),
    Fault("all workers restarted by another client", _restart, nanny=True),
    Fault("scheduler and all workers killed, and started again", _kill_scheduler),
    Fault("the driver's connection breaks", _break_connection),
)


def measure(fault: Fault) -> tuple[float, float, float]:
    """Return seconds until it is noticed, until the next result, and steps that were done twice."""
    place = Path(tempfile.mkdtemp(prefix="dasktune-bench-"))
    fleet = Fleet(place)
    try:
        for _ in range(2):
            fleet.add_worker(*([_LIMIT] if fault.nanny else []), nanny=fault.nanny)
        with fleet.client() as client:
            client.wait_for_workers(2)
            scene = Scene(place, fleet, client)
            with cluster_kit.fitting(_tuner(place, fleet.address)) as future:
                until(lambda: len(journal(place, event="ResultReported")) >= 10)
                begun = time.time()
                fault.harm(scene)
                until(lambda: _last(place)["incarnation"] > 1)
                (place / "go").touch()
                future.result()
        return _read_off(place, begun)
    finally:
        fleet.close()
        shutil.rmtree(place, ignore_errors=True)


def _tuner(place: Path, address: str) -> tune.Tuner:
    return tune.Tuner(
        train,
        param_space={"place": str(place)},
        run_config=tune.RunConfig(
            storage_path=place,
            name="run",
            verbose=0,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            driver_ttl=DRIVER_TTL,
            queue_trials=True,
        ),
        client=address,
    )


def _last(place: Path) -> dict[str, Any]:
    return journal(place, event="ResultReported")[-1]


def _read_off(place: Path, begun: float) -> tuple[float, float, float]:
    rows = journal(place, event="ResultReported")
    again = next(row for row in rows if row["incarnation"] > 1)
    before = [row for row in rows if row["incarnation"] == 1]
    [lost] = journal(place, event="TrialLost")[:1]
    twice = before[-1]["metrics"]["step"] - again["metrics"]["step"] + 1
    return lost["time"] - begun, again["time"] - begun, twice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for module in (cluster_kit, fault_kit, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    print(f"{machine()}\nload average {load():.1f}\n")
    print("| fault | noticed after | next result after | steps done twice |")
    print("|---|---|---|---|")
    for fault in FAULTS:
        noticed, back, twice = map(median, zip(*(measure(fault) for _ in range(runs)), strict=True))
        print(f"| {fault.name} | {noticed:.2f} s | {back:.2f} s | {twice:g} |", flush=True)
    print(f"\nload average {load():.1f} at the end")


if __name__ == "__main__":
    main()
