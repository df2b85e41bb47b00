"""Kill a worker in the middle of a run: it costs time, but no results.

    python examples/02_survive_a_killed_worker.py

Four trials share two worker processes, and save a checkpoint every five iterations. When a trial
is past its first checkpoint, its worker is killed with SIGKILL. No process can catch that
signal, so the effect is the same as running out of memory or losing a machine. The trial resumes
from its checkpoint, on the first worker that has room. This needs no setting; the code below only
kills a worker and prints the results.
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
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

ITERATIONS = 30
SAVE_EVERY = 5
#: Past the checkpoint of iteration 5, so 6, 7 and 8 are lost and must be repeated.
KILL_AT = 8


class Descent(tune.Trainable):
    """Gradient descent on x**2 from x = 10, in place of a real training.

    dasktune calls these methods. It loads a checkpoint only after a failure or a pause.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start at the top."""
        self.x = 10.0

    def step(self) -> dict[str, Any]:
        """Go one step down, and return one row of the trial's history."""
        time.sleep(0.1)  # as if this were work
        self.x -= self.config["lr"] * 2 * self.x
        return {"x": self.x}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return the state from which training can resume."""
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state."""
        self.x = checkpoint["x"]


def main() -> None:
    """Run the trials, kill a worker meanwhile, and print the results."""
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
        # fit() returns at the end of the experiment, so the worker is killed from another thread.
        experiment = Storage(str(Path(storage_path, "survivor")))
        threading.Thread(target=kill_a_worker, args=[experiment], daemon=True).start()
        results = tuner.fit()
    show(results)


def kill_a_worker(experiment: Storage) -> None:
    """Kill the process of the first trial that reaches iteration KILL_AT."""
    result = wait_for_result(experiment, KILL_AT)
    os.kill(result["pid"], signal.SIGKILL)
    print(
        f"\n*** Killed process {result['pid']}, in which trial {result['trial_id']} "
        f"had reached iteration {KILL_AT}. The next warnings report this.\n",
        flush=True,
    )


def wait_for_result(experiment: Storage, iteration: int) -> dict[str, Any]:
    """Wait for the first result of this iteration and return it.

    The driver writes every event to the journal at once.
    """
    while True:
        for record in read_journal(experiment):
            result: dict[str, Any] = record.get("metrics", {})
            if result.get("training_iteration") == iteration:
                return result
        time.sleep(0.05)


def show(results: tune.ResultGrid) -> None:
    """Print each trial's processes, and check that no iteration is missing or duplicated."""
    print("\ntrial        processes         iterations  restarted after  final x")
    for result in results:
        rows = result.history
        processes = " > ".join(str(pid) for pid in dict.fromkeys(row["pid"] for row in rows))
        # iterations_since_restore starts at 1 again after each restart.
        restarts = [
            str(row["training_iteration"] - 1) for row in rows[1:] if row["iterations_since_restore"] == 1
        ]
        first, last = rows[0]["training_iteration"], rows[-1]["training_iteration"]
        print(
            f"{result.trial_id}  {processes:16}  {first:>4} to {last:<2}  "
            f"{', '.join(restarts) or '-':>15}  {result.metrics['x']:>7.4f}"
        )
        assert [row["training_iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
        assert isclose(result.metrics["x"], 10 * (1 - 2 * result.config["lr"]) ** ITERATIONS)
    print("\nEvery trial has each iteration once, and the same x as without the loss.")


# The worker processes import this file. They must not start another cluster.
if __name__ == "__main__":
    main()
