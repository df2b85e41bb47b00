"""Tune a neural network on handwritten digits, and stop poor configurations early.

On this machine, with one worker process per CPU (needs scikit-learn):

    python examples/01_digits_asha.py

On a Dask cluster, whose workers also have dasktune and scikit-learn:

    dask scheduler
    dask worker tcp://127.0.0.1:8786 --nworkers 2 --nthreads 1
    python examples/01_digits_asha.py --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import dasktune as tune
from dasktune.schedulers import ASHAScheduler

#: The largest number of epochs (passes over the training data). Few configurations reach it.
MAX_EPOCHS = 27


class Digits(NamedTuple):
    """1,797 pictures of 8 x 8 pixels, each a row of 64 numbers from 0 to 1, with their digits."""

    train: tuple[np.ndarray, np.ndarray]
    #: Selects the best configuration. The best of many scores is partly luck, ...
    validation: tuple[np.ndarray, np.ndarray]
    #: ... so the accuracy of the best network is measured on data that had no part in the choice.
    test: tuple[np.ndarray, np.ndarray]


def split_digits() -> Digits:
    """Return a split of 60 %, 20 % and 20 %, the same in every process."""
    pictures, digits = load_digits(return_X_y=True)
    pictures /= 16.0
    train_x, rest_x, train_y, rest_y = train_test_split(
        pictures, digits, test_size=0.4, stratify=digits, random_state=0
    )
    val_x, test_x, val_y, test_y = train_test_split(
        rest_x, rest_y, test_size=0.5, stratify=rest_y, random_state=0
    )
    return Digits((train_x, train_y), (val_x, val_y), (test_x, test_y))


def new_network(config: dict[str, Any]) -> MLPClassifier:
    """Return an untrained network."""
    return MLPClassifier(
        hidden_layer_sizes=[config["width"]] * config["layers"],
        learning_rate_init=config["learning_rate"],
        alpha=config["alpha"],
        batch_size=config["batch_size"],
        random_state=0,
    )


def train(config: dict[str, Any]) -> None:
    """Train a network and report its accuracy after each epoch; the workers run this."""
    # The worker loads the data, so only the configuration is sent. For data in the driver's memory
    # use tune.with_parameters(train, data=...).
    data = split_digits()

    # If the worker dies, the trial starts here again on another worker, and has a checkpoint.
    network, done = new_network(config), 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        saved = checkpoint.to_dict()
        network, done = saved["network"], saved["epoch"]

    for epoch in range(done + 1, MAX_EPOCHS + 1):
        network.partial_fit(*data.train, classes=np.arange(10))
        # In most trials one of these calls never returns: the scheduler stops the trial there.
        tune.report(
            {"accuracy": network.score(*data.validation)},
            checkpoint=tune.Checkpoint.from_dict({"network": network, "epoch": epoch}),
        )


def main() -> None:
    """Run the search and print its results."""
    options = parse_arguments()
    print(f"Tune a neural network on handwritten digits: {options.num_samples} configurations.")
    print(f"Each may train for {MAX_EPOCHS} epochs; ASHA stops the poor ones after 1, 3 or 9.")
    print("Until the search ends, a browser shows it at the address after 'Dashboard:'.", flush=True)
    tuner = tune.Tuner(
        train,
        param_space={
            "learning_rate": tune.loguniform(1e-4, 1e-1),
            "alpha": tune.loguniform(1e-6, 1e0),  # L2 penalty
            "batch_size": tune.choice([32, 64, 128]),
            "layers": tune.randint(1, 3),  # 1 or 2
            "width": tune.choice([16, 32, 64]),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=options.num_samples,
            # After 1, 3 and 9 epochs a trial continues only if it is among the best third of the
            # trials that have reached that epoch. No trial waits for others, so no worker is idle.
            scheduler=ASHAScheduler(max_t=MAX_EPOCHS, grace_period=1, reduction_factor=3),
            seed=options.seed,
        ),
        run_config=tune.RunConfig(
            storage_path=options.storage_path,
            # Keep each trial's best checkpoint (and the last one, for resuming).
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy"),
        ),
        client=options.address,
    )
    show(tuner.fit())


def show(results: tune.ResultGrid) -> None:
    """Print when trials ended, the best configuration, the saved work and the files."""
    show_rungs(results)
    show_best(results)
    show_savings(results)
    show_places(results)


def show_rungs(results: tune.ResultGrid) -> None:
    """Print after how many epochs the trials ended, as a bar chart."""
    print("\nTrials by the epochs for which they were trained:")
    ends = Counter(len(result.history) for result in results)
    for epochs, count in sorted(ends.items()):
        bar = "#" * max(1, round(40 * count / len(results)))
        end = "trained to the end" if epochs == MAX_EPOCHS else "stopped by ASHA"
        print(f"  {epochs:2} {bar:40} {count:3} {end}")


def show_best(results: tune.ResultGrid) -> None:
    """Print the best configuration, and the accuracy of its network on unseen pictures."""
    # A network may be best before its last epoch, hence scope="all".
    best = results.get_best_result(scope="all")
    print("Best configuration:")
    for name, value in best.config.items():
        print(f"  {name:13} {value if isinstance(value, int) else format(value, '.3g')}")

    checkpoint = best.get_best_checkpoint("accuracy", "max")
    assert checkpoint is not None  # every report has one
    saved = checkpoint.to_dict()
    data = split_digits()
    print(f"Its accuracy, after {saved['epoch']} epochs:")
    print(f"  validation    {saved['network'].score(*data.validation):.2%}")
    print(f"  test          {saved['network'].score(*data.test):.2%}")


def show_savings(results: tune.ResultGrid) -> None:
    """Print the epochs that early stopping saved, and the time that they would have taken."""
    spent, full = sum(len(result.history) for result in results), len(results) * MAX_EPOCHS
    print(f"Early stopping saved {1 - spent / full:.0%} of the work: {spent} epochs, not {full}.")
    # The first epoch of a trial also loads the data, so its time does not count.
    seconds = np.mean([row["time_this_iter_s"] for result in results for row in result.history[1:]])
    print(
        f"At {seconds:.3f} s an epoch, the other {full - spent} would take {seconds * (full - spent):.0f} s."
    )


def show_places(results: tune.ResultGrid) -> None:
    """Write a report, and print where it is and how to look at the results again."""
    place = results.experiment_path  # a directory, or a URL such as s3://bucket/experiment
    with results.filesystem.open(f"{place}/report.html", "w", encoding="utf-8") as file:
        file.write(results.to_html())
    print("\nAll results, and a report to open in a browser:")
    print(f"  {place}")
    print(f"  {place}/report.html")

    # The command of this environment, which need not be on the shell's path.
    command = str(Path(sys.executable).with_name("dasktune"))
    command = "dasktune" if shutil.which("dasktune") == command else os.path.relpath(command)
    home = f"{Path.home()}/"
    short = f"~/{place.removeprefix(home)}" if place.startswith(home) else place
    print("To look at them again, in the terminal or as a dashboard:")
    print(f"  {command} show {short}")
    print(f"  {command} dashboard {short}")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune a neural network on handwritten digits.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--storage-path", help="where results go; default: ~/dasktune_results")
    parser.add_argument("--num-samples", type=int, default=40, help="configurations; default: 40")
    parser.add_argument("--seed", type=int, default=0, help="of the configurations; default: 0")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    main()
