"""A cluster in a storm: workers, scheduler and driver die, freeze and leave, by a seed.

The experiment is on a local disk, or on S3 behind a line whose requests fail.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster_kit
import psutil
from cluster_kit import PATIENCE, until
from faulty_line import CLIENT, FaultyLine
from forks import Fork, fork_server
from s3_kit import S3Server

import dasktune as tune
from dasktune.storage.fs.storage import Storage

#: From where the driver and the workers import this module, and what it imports.
PATHS = [Path(__file__).parent, Path(cluster_kit.__file__).parent, Path(__file__).parents[1]]

#: Workers that there should be, and how many of them should have a nanny. Nannies import everything
#: in each new worker.
WORKERS, NANNIES = 6, 2
#: Seconds between two faults, at least and at most, while trials report results.
PACE = (0.1, 0.6)

#: Lets a worker take more memory than its nanny allows, when it receives SIGUSR1.
GORGES = """
import signal

async def dask_setup(worker):
    def gorge(number, frame):
        worker.gorged = b"x" * (900 << 20)

    signal.signal(signal.SIGUSR1, gorge)
"""


def drive(address: str, storage: Storage, space: dict[str, Any]) -> None:
    """Train `train`, or resume."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for noisy in ("aiobotocore", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    url, options = storage.url, dict(storage.storage_options)
    run = url + "/run"
    if tune.Tuner.can_restore(run, storage_options=options):
        tuner = tune.Tuner.restore(run, train, storage_options=options, client=address)
    else:
        tuner = tune.Tuner(
            train,
            param_space={**space, "x": tune.grid_search(space["x"])},
            tune_config=tune.TuneConfig(metric="loss", mode="min", seed=0),
            run_config=tune.RunConfig(
                storage_path=url,
                storage_options=options,
                name="run",
                verbose=0,
                heartbeat_timeout=4.0,
                driver_ttl=4.0,
                stop_grace=2.0,
                queue_trials=True,
                checkpoint_period=2.0,
                checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
                # The storm kills workers, trials do not.
                failure_config=tune.FailureConfig(max_worker_losses=1000),
            ),
            client=address,
        )
    tuner.fit()


@dataclass
class Ground:
    """The directory of a storm's experiments: undisturbed, and as drivers and workers reach it."""

    direct: Storage
    reached: Storage
    line: FaultyLine | None = None

    @property
    def faults(self) -> dict[str, int]:
        """How often each fault of the line came."""
        return dict(self.line.faults) if self.line else {}


@contextmanager
def ground(
    directory: Path, server: S3Server | None = None, seed: int = 0, rate: float = 0.0
) -> Iterator[Ground]:
    """Yield a directory on the disk, or on an S3 server behind a line with faults."""
    if server is None:
        yield Ground(Storage(str(directory)), Storage(str(directory)))
        return
    direct, line = server.storage(), FaultyLine(server.port, seed, rate)
    options = {**server.options(), "endpoint_url": f"http://127.0.0.1:{line.port}", "config_kwargs": CLIENT}
    try:
        yield Ground(direct, Storage(direct.url, options), line)
        assert line.errors == []
    finally:
        line.close()


def loss_of(x: int, step: int) -> float:
    """Return what trial `x` reports at a step, whatever happened to it."""
    return ((x * 37) % 101) / step


def undisturbed(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what trial `x` reports if nothing happens."""
    steps = range(1, config["steps"] + 1)
    return [{"step": step, "loss": loss_of(config["x"], step)} for step in steps]


def step_in(content: dict[str, int]) -> int:
    """Return the step of a checkpoint."""
    return content["step"]


def train(config: dict[str, Any]) -> None:
    """Report deterministic losses, each with a checkpoint."""
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(done + 1, config["steps"] + 1):
        time.sleep(config["seconds"])
        loss = loss_of(config["x"], step)
        tune.report({"step": step, "loss": loss}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


class Storm:
    """Faults of all kinds, two or three a second, until the driver has come to the end.

    Each fault waits for a result, so a slow machine makes them rarer.

    Parameters
    ----------
    place : Path
        The directory of the processes, and of their logs.
    ground : Ground
        The directory of the experiment.
    seed : int
        Chooses the faults.
    trials, steps : int
        The driver's task.
    seconds : float
        Duration of a step.
    """

    def __init__(
        self, place: Path, ground: Ground, seed: int, trials: int, steps: int, seconds: float = 0.1
    ) -> None:
        self.place, self.ground, self.seconds = place, ground, seconds
        #: Content of the journal's objects in a store, which do not change.
        self._objects: dict[str, bytes] = {}
        self.random = random.Random(seed)
        self.fleet = cluster_kit.Fleet(place, paths=PATHS)
        self.trials, self.steps = trials, steps
        self.faults: Counter[str] = Counter()
        #: Frozen processes and when they resume.
        self.frozen: dict[int, float] = {}
        #: How many trials must have ended before the driver dies, or the scheduler.
        self.deaths = {
            self._kill_driver: [trials * part // 4 for part in (1, 2, 3)],
            self._kill_scheduler: [trials * part // 3 for part in (1, 2)],
        }
        self.nannies: set[int] = set()
        #: Nannies without a worker, and since when.
        self.barren: dict[int, float] = {}
        self.preload = place / "gorges.py"
        self.preload.write_text(GORGES)
        self.driver: Fork | None = None

    def rage(self) -> None:
        """Run the experiment to its end."""
        try:
            self._refill()
            self._drive()
            while self._step():
                time.sleep(self.random.uniform(*PACE))
                self._let_it_get_on()
                self._thaw()
            self._thaw(everybody=True)
        except BaseException:
            self.end()
            raise

    def calm(self) -> None:
        """Wait until all workers are there again."""
        with self.fleet.client() as client:

            def are_there() -> bool:
                self._refill()
                return len(client.nthreads()) >= WORKERS

            until(are_there, 2 * PATIENCE)

    def end(self) -> None:
        """Leave no process behind."""
        self._thaw(everybody=True)
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
        self.fleet.close()

    def _let_it_get_on(self) -> None:
        """Wait for a result: on a slow machine no trial would ever end.

        Not for ever, because the fault may be what keeps the experiment from its next result.
        """
        deadline = time.monotonic() + 30
        before = self._count(b'"ResultReported"')
        while self._count(b'"ResultReported"') == before and time.monotonic() < deadline:
            if self.driver is None or self.driver.poll() is not None:
                return
            time.sleep(0.1 if self.ground.line is None else 0.5)

    def _step(self) -> bool:
        """Do harm, and say whether the driver is still there to be harmed."""
        assert self.driver is not None
        status = self.driver.poll()
        if status == 0:
            return False
        if status is not None:
            told = (self.place / "driver.log").read_text()[-4000:]
            # Its scheduler or all workers died while it started: a user would start it again.
            gone = ("the Dask scheduler at", "none of ")
            assert any(f"dasktune.errors.ClusterError: {what}" in told for what in gone), told
            self.faults["fail to start the driver"] += 1
            self._drive()
        if (death := self._death_that_is_due()) is not None:
            name, done = death.__name__, death()
        else:
            harm = self.random.choices(
                [
                    self._kill_worker,
                    self._freeze_worker,
                    self._terminate_worker,
                    self._kill_nanny,
                    self._exceed_memory,
                    self._retire_worker,
                ],
                weights=[6, 4, 4, 2, 1, 2],
            )[0]
            name, done = harm.__name__, harm()
        if done:
            self.faults[name.strip("_").replace("_", " ")] += 1
        self._refill()
        return True

    # Faults; each says whether it has found a victim

    def _death_that_is_due(self) -> Callable[[], bool] | None:
        ended = self._count(b'"TrialEnded"')
        for death, at in self.deaths.items():
            if at and ended >= at[0]:
                del at[0]
                return death
        return None

    def _victim(self, nanny: bool | None = None) -> Any | None:
        """Return one of several that are there and awake, with a nanny or without or whatever."""
        there = [one for one in self.fleet.workers if one.poll() is None]
        awake = [one for one in there if self._pid(one) not in {None, *self.frozen}]
        fit = [one for one in awake if nanny is None or nanny is (one.pid in self.nannies)]
        return self.random.choice(fit) if len(awake) > 1 and fit else None

    def _pid(self, worker: Any) -> int | None:
        """Return the worker itself; None while its nanny starts it."""
        if worker.pid not in self.nannies:
            return worker.pid
        with suppress(psutil.Error):
            for child in psutil.Process(worker.pid).children():
                if any("spawn_main" in part for part in child.cmdline()):
                    return child.pid
        return None

    def _harm(self, number: signal.Signals, nanny: bool | None = None) -> bool:
        victim = self._victim(nanny)
        pid = None if victim is None else self._pid(victim)
        return pid is not None and self._signal(pid, number)

    def _kill_worker(self) -> bool:
        return self._harm(signal.SIGKILL)

    def _terminate_worker(self) -> bool:
        victim = self._victim()
        return victim is not None and self._signal(victim.pid, signal.SIGTERM)

    def _kill_nanny(self) -> bool:
        victim = self._victim(nanny=True)
        return victim is not None and self._signal(victim.pid, signal.SIGKILL)

    def _exceed_memory(self) -> bool:
        return self._harm(signal.SIGUSR1, nanny=True)

    def _freeze_worker(self) -> bool:
        victim = self._victim()
        pid = None if victim is None else self._pid(victim)
        if pid is None or len(self.frozen) > 1:
            return False
        self.frozen[pid] = time.monotonic() + self.random.uniform(2, 14)
        return self._signal(pid, signal.SIGSTOP)

    def _retire_worker(self) -> bool:
        with self.fleet.client() as client:
            workers = sorted(client.nthreads())
            if len(workers) < 2:
                return False
            address = self.random.choice(workers)
            retire = client.scheduler.retire_workers
            with suppress(TimeoutError):  # it may be frozen
                client.sync(retire, workers=[address], close_workers=True, callback_timeout=5)
        return True

    def _kill_driver(self) -> bool:
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()
        self._drive()
        return True

    def _kill_scheduler(self) -> bool:
        self._thaw(everybody=True)
        self._signal(self.fleet.scheduler.pid, signal.SIGKILL)
        self.fleet.scheduler.wait()
        # Its workers end by themselves, in their own time.
        for worker in self.fleet.workers:
            self._signal(worker.pid, signal.SIGKILL)
        self.fleet.start_scheduler()
        return True

    def _signal(self, pid: int, number: signal.Signals) -> bool:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    # What there is

    def _drive(self) -> None:
        space = {"x": list(range(self.trials)), "steps": self.steps, "seconds": self.seconds}
        self.driver = fork_server().start(
            "storm:drive",
            self.fleet.address,
            self.ground.reached,
            space,
            log=self.place / "driver.log",
            directory=self.place,
            paths=PATHS,
        )

    def _count(self, text: bytes) -> int:
        """Return how often the journal has a text."""
        run = self.ground.direct.child("run")
        count = 0
        for name in run.names("journal"):
            if run.is_local or name not in self._objects:
                self._objects[name] = run.read_bytes("journal", name)
            count += self._objects[name].count(text)
        return count

    def _refill(self) -> None:
        self._kill_barren_nannies()
        self.fleet.workers = [one for one in self.fleet.workers if one.poll() is None]
        while len(self.fleet.workers) < WORKERS:
            with_nanny = sum(one.pid in self.nannies for one in self.fleet.workers) < NANNIES
            if with_nanny:
                options = ("--memory-limit=600MB", f"--preload={self.preload}")
                self.nannies.add(self.fleet.add_worker(*options, nanny=True).pid)
            else:
                self.fleet.add_worker()

    def _kill_barren_nannies(self) -> None:
        """End what has no worker and starts none, as its worker died when it was starting."""
        for worker in self.fleet.workers:
            if worker.poll() is not None or self._pid(worker) is not None:
                self.barren.pop(worker.pid, None)
            elif time.monotonic() - self.barren.setdefault(worker.pid, time.monotonic()) > 20:
                cluster_kit.kill(worker)

    def _thaw(self, everybody: bool = False) -> None:
        for pid, until_when in tuple(self.frozen.items()):
            if everybody or time.monotonic() > until_when:
                del self.frozen[pid]
                self._signal(pid, signal.SIGCONT)
