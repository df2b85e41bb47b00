"""A cluster in a storm: workers, scheduler and driver die, freeze and leave, by a seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from cluster_kit import PATIENCE, Fleet, until

#: Workers that there should be.
WORKERS = 6

#: Trains `train` of this module, or goes on. Takes a directory, an address, trials and steps.
DRIVER = """
import logging
import sys
from pathlib import Path
sys.path[:0] = sys.argv[5:]
import dasktune as tune
from storm import train
place, address, trials, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if tune.Tuner.can_restore(place / "run"):
        tuner = tune.Tuner.restore(place / "run", train, client=address)
    else:
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.grid_search(list(range(trials))), "steps": steps},
            tune_config=tune.TuneConfig(metric="loss", mode="min", seed=0),
            run_config=tune.RunConfig(
                storage_path=place,
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
"""


def loss_of(x: int, step: int) -> float:
    """Return what trial `x` reports at a step, whatever happened to it."""
    return ((x * 37) % 101) / step


def train(config: dict[str, int]) -> None:
    """Report deterministic losses, each with a checkpoint."""
    import dasktune as tune

    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(done + 1, config["steps"] + 1):
        time.sleep(0.1)
        loss = loss_of(config["x"], step)
        tune.report(
            {"step": step, "loss": loss}, checkpoint=tune.Checkpoint.from_dict({"step": step})
        )


class Storm:
    """Faults of all kinds, one each second or so, until the driver has come to the end.

    Parameters
    ----------
    place : Path
        Where everything goes.
    seed : int
        Chooses the faults.
    trials, steps : int
        What the driver is to get through.
    """

    def __init__(self, place: Path, seed: int, trials: int, steps: int) -> None:
        self.place = place
        self.random = random.Random(seed)
        self.fleet = Fleet(place)
        self.size = (str(trials), str(steps))
        self.faults: Counter[str] = Counter()
        #: Frozen processes and when they go on.
        self.frozen: dict[int, float] = {}
        #: How often each of those is still to die.
        self.left = {"driver": 3, "scheduler": 2}
        self.driver: subprocess.Popen[bytes] | None = None

    def rage(self) -> None:
        """Run the experiment to its end."""
        try:
            self._refill()
            self._drive()
            while self._step():
                time.sleep(self.random.uniform(0.5, 1.5))
                self._thaw()
            self._thaw(everybody=True)
        except BaseException:
            self.end()
            raise

    def calm(self) -> None:
        """Wait until all workers are there again."""
        self._refill()
        with self.fleet.client() as client:
            until(lambda: len(client.nthreads()) >= WORKERS, PATIENCE)

    def end(self) -> None:
        """Leave no process behind."""
        self._thaw(everybody=True)
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
        self.fleet.close()

    def _step(self) -> bool:
        """Do harm, and say whether the driver is still there to be harmed."""
        assert self.driver is not None
        status = self.driver.poll()
        if status == 0:
            return False
        if status is not None:
            told = (self.place / "driver.log").read_text()[-4000:]
            # Its scheduler died while it started: whoever started it does so again.
            assert "dasktune.errors.ClusterError: the Dask scheduler at" in told, told
            self.faults["start the driver in vain"] += 1
            self._drive()
        name, harm = self.random.choices(
            [
                ("kill a worker", self._kill),
                ("freeze a worker", self._freeze),
                ("have a worker retire", self._terminate),
                ("kill the driver", self._kill_driver),
                ("kill the scheduler", self._kill_scheduler),
            ],
            weights=[6, 4, 4, 2, 1],
        )[0]
        if harm() is not False:
            self.faults[name] += 1
        self._refill()
        return True

    # Faults

    def _victim(self) -> subprocess.Popen[bytes] | None:
        there = [one for one in self.fleet.workers if one.poll() is None]
        awake = [one for one in there if one.pid not in self.frozen]
        return self.random.choice(awake) if len(awake) > 1 else None

    def _kill(self) -> bool:
        victim = self._victim()
        return victim is not None and self._signal(victim.pid, signal.SIGKILL)

    def _terminate(self) -> bool:
        victim = self._victim()
        return victim is not None and self._signal(victim.pid, signal.SIGTERM)

    def _freeze(self) -> bool:
        victim = self._victim()
        if victim is None or len(self.frozen) > 1:
            return False
        self.frozen[victim.pid] = time.monotonic() + self.random.uniform(2, 14)
        return self._signal(victim.pid, signal.SIGSTOP)

    def _kill_driver(self) -> bool:
        # Only one that has got somewhere, or none ever would.
        if not self.left["driver"] or self._trials_ended() <= self._at_last_start:
            return False
        self.left["driver"] -= 1
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()
        self._drive()
        return True

    def _kill_scheduler(self) -> bool:
        if not self.left["scheduler"]:
            return False
        self.left["scheduler"] -= 1
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
        here = Path(__file__).parent
        paths = [str(here), str(here.parent / "cluster")]
        self._at_last_start = self._trials_ended()
        with (self.place / "driver.log").open("ab") as log:
            arguments = [str(self.place), self.fleet.address, *self.size, *paths]
            self.driver = subprocess.Popen(
                [sys.executable, "-c", DRIVER, *arguments], stdout=log, stderr=log
            )

    def _trials_ended(self) -> int:
        total = 0
        for path in (self.place / "run" / "journal").glob("*.jsonl"):
            total += path.read_bytes().count(b'"TrialEnded"')
        return total

    def _refill(self) -> None:
        self.fleet.workers = [one for one in self.fleet.workers if one.poll() is None]
        while len(self.fleet.workers) < WORKERS:
            self.fleet.add_worker()

    def _thaw(self, everybody: bool = False) -> None:
        for pid, until_when in tuple(self.frozen.items()):
            if everybody or time.monotonic() > until_when:
                del self.frozen[pid]
                self._signal(pid, signal.SIGCONT)
