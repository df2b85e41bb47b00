"""Kill a worker in the middle of a run, and see that it costs time, not the answer.

    python examples/02_survive_a_killed_worker.py

Four trials share two worker processes, and save a checkpoint now and then. As soon as one of them
is past its first checkpoint its worker is killed with SIGKILL: no process can catch that, so it is
what running out of memory or losing a machine looks like. The trial goes on from its checkpoint, on
the first worker that has room. Nothing has to be asked for; the code below only kills and looks.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from math import isclose
from pathlib import Path
from typing import Any

from distributed import LocalCluster

import dasktune as tune
from dasktune.storage.journal import read_journal
from dasktune.storage.location import Storage

ITERATIONS = 30
SAVE_EVERY = 5
#: Past the checkpoint of iteration 5, so that 6, 7 and 8 are lost and must be done again.
KILL_AT = 8


class Descent(tune.Trainable):
    """Walks down the slope of x**2 from x = 10. Any training that can be saved would do.

    dasktune calls these methods. It loads a checkpoint only where there is something to repair.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start at the top."""
        self.x = 10.0

    def step(self) -> dict[str, Any]:
        """Go one step down. What is returned is one row of the trial's history."""
        time.sleep(0.1)  # as if this were work
        self.x -= self.config["lr"] * 2 * self.x
        return {"x": self.x}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return all that is needed to go on from here."""
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from there."""
        self.x = checkpoint["x"]


def main() -> None:
    """Run the trials, kill a worker meanwhile, and show what came of it."""
    with (
        tempfile.TemporaryDirectory() as storage_path,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        tuner = tune.Tuner(
            Descent,
            param_space={"lr": tune.grid_search([0.01, 0.02, 0.03, 0.04])},
            tune_config=tune.TuneConfig(metric="x", mode="min"),
            run_config=tune.RunConfig(
                name="survivor",
                storage_path=storage_path,
                stop={"training_iteration": ITERATIONS},
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=SAVE_EVERY),
            ),
            client=cluster,
        )
        # fit() returns when all is over, so the killer needs a thread of its own.
        experiment = Storage(str(Path(storage_path, "survivor")))
        threading.Thread(target=kill_a_worker, args=[experiment], daemon=True).start()
        results = tuner.fit()
    show(results)


def kill_a_worker(experiment: Storage) -> None:
    """Kill the process of the first trial that comes to iteration KILL_AT."""
    result = wait_for_result(experiment, KILL_AT)
    os.kill(result["pid"], signal.SIGKILL)
    print(
        f"\n*** Killed process {result['pid']}, in which trial {result['trial_id']} "
        f"had come to iteration {KILL_AT}. The warnings are about that.\n",
        flush=True,
    )


def wait_for_result(experiment: Storage, iteration: int) -> dict[str, Any]:
    """Return the first result of this iteration as soon as it is known.

    The journal holds all that happened, as it happens.
    """
    while True:
        for record in read_journal(experiment):
            result: dict[str, Any] = record.get("metrics", {})
            if result.get("training_iteration") == iteration:
                return result
        time.sleep(0.05)


def show(results: tune.ResultGrid) -> None:
    """Print which process each trial was in, and check that no iteration is missing or double."""
    print("\ntrial        processes         iterations  restarted after  final x")
    for result in results:
        rows = result.history
        processes = " > ".join(str(pid) for pid in dict.fromkeys(row["pid"] for row in rows))
        # The first row since a restart counts from 1 again what it counts since the restart.
        restarts = [
            str(row["training_iteration"] - 1)
            for row in rows[1:]
            if row["iterations_since_restore"] == 1
        ]
        first, last = rows[0]["training_iteration"], rows[-1]["training_iteration"]
        print(
            f"{result.trial_id}  {processes:16}  {first:>4} to {last:<2}  "
            f"{', '.join(restarts) or '-':>15}  {result.metrics['x']:>7.4f}"
        )
        assert [row["training_iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
        assert isclose(result.metrics["x"], 10 * (1 - 2 * result.config["lr"]) ** ITERATIONS)
    print("\nEvery trial has each iteration once, and the x that it would have had undisturbed.")


# The worker processes import this file. They must not start a cluster of their own.
if __name__ == "__main__":
    main()
