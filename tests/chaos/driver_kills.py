"""Drivers that are killed at random moments of their lives, from the first millisecond on."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from checker import check_ended
from cluster_kit import PATIENCE
from forks import Fork, fork_server
from storm import PATHS, Ground, step_in, train, undisturbed

import dasktune as tune
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

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
        self._place = place
        self._work = address, ground.reached, steps, seconds
        self._driver: Fork | None = None

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
        run, longest = self.ground.direct.child(name), self.longest
        while not self._drive(name, self.ends["killed"] < deaths):
            if self.ends["killed"] % 5 == 0:
                # The next driver reads at least as much: a late write only adds to it.
                now = list(read_journal(run))
                assert now[: len(before)] == before
                if len(now) == len(before):
                    # On a loaded machine none of them has come far enough.
                    self.longest = min(2 * self.longest, PATIENCE)
                before = now
        self.longest = longest
        now = list(read_journal(run))
        assert now[: len(before)] == before
        assert check_ended(run, undisturbed, step_in) == []
        assert sum(record["event"] == "TrialEnded" for record in now) == TRIALS

    def _drive(self, name: str, mortal: bool) -> bool:
        """Start a driver, and return whether it finished before it was killed."""
        log = self._place / "drivers.log"
        self._driver = fork_server().start(
            "driver_kills:drive", *self._work, name, log=log, directory=self._place, paths=PATHS
        )
        seconds = self._moment() if mortal else 5 * PATIENCE
        deadline = time.monotonic() + seconds
        while self._driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if mortal:
            self._driver.kill()
        status = self._driver.wait()
        if status == -signal.SIGKILL:
            self.ends["killed"] += 1
            return False
        assert status == 0, log.read_text()[-6000:]
        return True

    def _moment(self) -> float:
        """Return the seconds of a driver's life. A third of them end before the first result."""
        return self.random.uniform(0, self.random.choice([self.longest / 4, self.longest, self.longest]))

    def close(self) -> None:
        """End a driver that still runs."""
        if self._driver is not None:
            self._driver.kill()
