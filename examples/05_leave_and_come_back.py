"""Kill a driver and resume its experiment; then run a driver on the cluster.

    python examples/05_leave_and_come_back.py

A process begins an experiment on a Dask cluster, and is killed with SIGKILL in the middle of it, as
if a notebook had crashed or a battery were empty. Another process resumes the experiment from its
journal: no result is lost, and only results since the last checkpoint are computed again.

Then a process submits an experiment. Its driver runs on the cluster, so the process may end,
and any other process can attach to the experiment by its name.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

from distributed import LocalCluster

import dasktune as tune
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

STEPS = 20


def train(config: dict[str, Any]) -> None:
    """Minimise x**2, and save each step."""
    checkpoint = tune.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"step": 0, "x": 10.0}
    for step in range(state["step"] + 1, STEPS + 1):
        time.sleep(0.05)  # as if this were work
        state = {"step": step, "x": state["x"] * (1 - 2 * config["lr"])}
        loss = state["x"] ** 2
        tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict(state))


def tuner(address: str, place: Path, name: str) -> tune.Tuner:
    """Return a tuner of four trials with sampled learning rates."""
    return tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-3, 0.5)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=4, seed=0),
        run_config=tune.RunConfig(name=name, storage_path=place, verbose=0, driver_ttl=2.0),
        client=address,
    )


def begin(address: str, place: str) -> None:
    """Run the experiment in a process that will be killed."""
    tuner(address, Path(place), "killed").fit()


def submit(address: str, place: str) -> None:
    """Submit an experiment to the cluster."""
    print("Submitted:", tuner(address, Path(place), "submitted").submit())


def count_results(experiment: Path) -> int:
    """Return the number of results in the journal."""
    if not (experiment / "experiment.json").exists():
        return 0
    records = read_journal(Storage(str(experiment)))
    return sum(record["event"] == "ResultReported" for record in records)


def kill_the_driver(address: str, place: Path) -> int:
    """Begin an experiment, kill its driver in the middle, and return the number of results."""
    driver = multiprocessing.get_context("spawn").Process(target=begin, args=(address, str(place)))
    driver.start()
    while count_results(place / "killed") < STEPS:
        time.sleep(0.05)
    driver.kill()
    driver.join()
    return count_results(place / "killed")


def resume(address: str, place: Path) -> None:
    """Resume the experiment of the killed driver."""
    recorded = kill_the_driver(address, place)
    print(f"*** Killed the driver when {recorded} of {4 * STEPS} results were recorded.")
    restored = tune.Tuner.restore(place / "killed", train, client=address)
    results = restored.fit()
    complete = [
        [row["training_iteration"] for row in result.history] == list(range(1, STEPS + 1))
        for result in results
    ]
    print(f"Another driver finished it: {sum(complete)} of {len(results)} trials have each")
    print(f"iteration once. The best learning rate is {results.get_best_result().config['lr']:.3f}.")


def submit_and_attach(address: str, place: Path) -> None:
    """Submit an experiment from a process that ends, and attach to it from this one."""
    client = multiprocessing.get_context("spawn").Process(target=submit, args=(address, str(place)))
    client.start()
    client.join()
    with tune.attach("submitted", client=address) as experiment:
        results = experiment.result()
        print(f"Found again, and {experiment.status}: {len(results)} trials.")
        experiment.forget()


def main() -> None:
    """Run both parts on a cluster of two processes that outlives the drivers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        resume(cluster.scheduler_address, Path(directory))
        submit_and_attach(cluster.scheduler_address, Path(directory))


if __name__ == "__main__":
    main()
