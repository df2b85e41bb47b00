"""Drivers that are killed at random moments of their lives, from the first millisecond on.

A process that has imported all modules forks a driver whenever it is told to. So a driver costs no
import, and a hundred deaths take two minutes.
"""

from __future__ import annotations

import os
import pickle
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from checker import check_ended
from cluster_kit import PATIENCE
from storm import Ground, step_in, train, undisturbed

import dasktune as tune
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

#: Forks a driver for each line that it reads, the name of an experiment. It writes the process id
#: of the driver, then its exit code. Takes the first arguments of `drive` as a pickle, then paths
#: to import from.
FORKS = """
import os, pickle, sys, traceback
sys.path[:0] = sys.argv[2:]
import s3fs
import dasktune.cluster.driver.launch
from driver_kills import drive
task = pickle.loads(bytes.fromhex(sys.argv[1]))
while name := sys.stdin.readline().strip():
    child = os.fork()
    if child == 0:
        code = 1
        try:
            drive(*task, name)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

TRIALS = 4


def drive(address: str, storage: Storage, steps: int, seconds: float, name: str) -> None:
    """Run or resume an experiment to its end; its trials have so many steps, of so many seconds."""
    url, options = storage.child(name).url, dict(storage.storage_options)
    if tune.Tuner.can_restore(url, storage_options=options):
        tuner = tune.Tuner.restore(url, train, storage_options=options, client=address)
    else:
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.grid_search(list(range(TRIALS))), "steps": steps, "seconds": seconds},
            tune_config=tune.TuneConfig(metric="loss", mode="min", seed=0),
            run_config=tune.RunConfig(
                storage_path=storage.url,
                storage_options=options,
                name=name,
                verbose=0,
                driver_ttl=1.0,
                stop_grace=1.0,
                checkpoint_period=0.5,
                checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            ),
            client=address,
        )
    tuner.fit()


class DriverKills:
    """Kills drivers until there were enough deaths, then lets the last experiment end.

    Parameters
    ----------
    place : Path
        The directory of the log.
    ground : Ground
        The directory of the experiments.
    address : str
        The cluster.
    seed : int
        Chooses the moments.
    steps, seconds
        The work of each trial.
    """

    def __init__(
        self,
        place: Path,
        ground: Ground,
        address: str,
        *,
        seed: int,
        steps: int,
        seconds: float,
    ) -> None:
        self.ground = ground
        #: Seconds after which a driver is killed at the latest: less than an experiment takes.
        self.longest = 0.0
        self.random = random.Random(seed)
        #: How drivers ended, and how many experiments ended.
        self.ends: Counter[str] = Counter()
        self._log = place / "drivers.log"
        here = Path(__file__).parent
        paths = [str(here), str(here.parent / "cluster"), str(here.parent)]
        task = pickle.dumps((address, ground.reached, steps, seconds)).hex()
        with self._log.open("ab") as log:
            self._forks = subprocess.Popen(
                [sys.executable, "-c", FORKS, task, *paths],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )

    def rage(self, deaths: int) -> None:
        """Kill so many drivers, and check each experiment that ends."""
        begun = time.monotonic()
        self._one_experiment("calm", 0)
        # On a loaded machine the calm one may take minutes.
        self.longest = min(8.0, 0.8 * (time.monotonic() - begun))
        while self.ends["killed"] < deaths:
            self._one_experiment(f"run-{self.ends['experiment']}", deaths)
            self.ends["experiment"] += 1

    def _one_experiment(self, name: str, deaths: int) -> None:
        """Run an experiment to its end, with drivers that are killed while deaths are left."""
        before: list[Any] = []
        run = self.ground.direct.child(name)
        while not self._drive(name, self.ends["killed"] < deaths):
            if self.ends["killed"] % 5 == 0:
                # The next driver reads at least as much: a late write only adds to it.
                now = list(read_journal(run))
                assert now[: len(before)] == before
                before = now
        now = list(read_journal(run))
        assert now[: len(before)] == before
        assert check_ended(run, undisturbed, step_in) == []
        assert sum(record["event"] == "TrialEnded" for record in now) == TRIALS

    def _drive(self, name: str, mortal: bool) -> bool:
        """Start a driver, and return whether it came to the end before its death."""
        self._write(name)
        pid = int(self._read(PATIENCE))
        if mortal:
            status = self._read(self._moment())
            if not status:
                os.kill(pid, signal.SIGKILL)
                status = self._read(PATIENCE)
        else:
            status = self._read(5 * PATIENCE)
        if int(status) == -signal.SIGKILL:
            self.ends["killed"] += 1
            return False
        assert int(status) == 0, self._log.read_text()[-6000:]
        return True

    def _moment(self) -> float:
        """Return the seconds of a driver's life. A third of them end before the first result."""
        return self.random.uniform(0, self.random.choice([self.longest / 4, self.longest, self.longest]))

    def _write(self, name: str) -> None:
        assert self._forks.stdin is not None
        self._forks.stdin.write(f"{name}\n".encode())

    def _read(self, timeout: float) -> str:
        """Return the next line of the forking process; empty if there is none in time."""
        assert self._forks.stdout is not None
        if not select.select([self._forks.stdout], [], [], timeout)[0]:
            return ""
        return self._forks.stdout.readline().decode().strip()

    def close(self) -> None:
        """End the forking process, and a driver that still runs."""
        with suppress(ProcessLookupError):
            os.killpg(self._forks.pid, signal.SIGKILL)
        self._forks.communicate()
