"""A driver that the tests of live pages start, and kill: ``driver_of_a_run.py DIRECTORY GATES``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from distributed import LocalCluster

import dasktune as tune


def train(config):
    gates = Path(config["gates"])
    for iteration in range(1, 10):
        while not (gates / str(iteration)).exists():
            time.sleep(0.05)  # the test opens the next gate
        if config["x"] == 3.0 and iteration == 2:
            raise ValueError("the third one breaks")
        tune.report({"loss": config["x"] / iteration})


def main(directory, gates):
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster:
        tune.Tuner(
            train,
            param_space={"x": tune.grid_search([1.0, 2.0, 3.0, 4.0]), "gates": gates},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(name="watched", storage_path=directory, dashboard=True),
            client=cluster,
        ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
