"""A driver that the tests of buttons start: ``driver_with_buttons.py DIRECTORY``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from distributed import LocalCluster

import dasktune as tune


def train(config):
    for iteration in range(1, 100_000):  # until somebody presses a button
        tune.report({"loss": config["x"] / iteration})
        time.sleep(0.1)


def main(directory):
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        grid = tune.Tuner(
            train,
            param_space={"x": tune.grid_search([1.0, 2.0, 3.0])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(
                name="pressed",
                storage_path=directory,
                dashboard=True,
                dashboard_controls=True,
                verbose=0,
            ),
            client=cluster,
        ).fit()
    text = f"{len(grid)} trials, {grid.num_errors} failed"
    Path(directory, "over.txt").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
