"""Tune for two objectives at once, accuracy and size, and choose from the Pareto front.

On this machine, with one worker process per CPU (needs scikit-learn):

    python examples/12_pareto_front.py

On a Dask cluster, whose workers also have dasktune and scikit-learn:

    python examples/12_pareto_front.py --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import dasktune as tune
from dasktune.schedulers import MultiObjectiveASHAScheduler

#: The largest number of epochs (passes over the training data).
MAX_EPOCHS = 27


def train(config: dict[str, Any], data: list[np.ndarray]) -> None:
    """Report after each epoch the error, and the number of weights, which stays the same."""
    train_x, val_x, train_y, val_y = data
    network = MLPClassifier(
        hidden_layer_sizes=(config["width"],) * config["layers"],
        learning_rate_init=config["rate"],
        alpha=config["alpha"],
        random_state=0,
    )
    for _ in range(MAX_EPOCHS):
        network.partial_fit(train_x, train_y, classes=range(10))
        weights = sum(part.size for part in (*network.coefs_, *network.intercepts_))
        tune.report({"error": 1 - network.score(val_x, val_y), "weights": weights})


def main() -> None:
    """Run the search; print the front, and the smallest network with few errors."""
    options = parse_arguments()
    x, y = load_digits(return_X_y=True)
    data = train_test_split(x / 16, y, test_size=0.3, stratify=y, random_state=0)
    results = tune.Tuner(
        tune.with_parameters(train, data=data),
        param_space={
            "width": tune.lograndint(2, 257),
            "layers": tune.randint(1, 3),
            "rate": tune.loguniform(1e-4, 1e-1),
            "alpha": tune.loguniform(1e-6, 1e-1),
        },
        tune_config=tune.TuneConfig(
            metric=["error", "weights"],
            mode=["min", "min"],
            num_samples=options.num_samples,
            scheduler=MultiObjectiveASHAScheduler(
                metrics=["error", "weights"], modes=["min", "min"], max_t=MAX_EPOCHS, reduction_factor=3
            ),
            seed=0,
        ),
        run_config=tune.RunConfig(storage_path=options.storage_path),
        client=options.address,
    ).fit()
    show(results)


def show(results: tune.ResultGrid) -> None:
    """Print the trials that no other trial beats in both objectives."""
    front = sorted(results.get_pareto_front(), key=lambda one: one.metrics["weights"])
    print(f"{len(front)} of {len(results)} networks are on the front:")
    print("  weights   error  epochs  width  layers")
    for one in front:
        metrics, config = one.metrics, one.config
        print(
            f"  {metrics['weights']:7}  {metrics['error']:6.1%}  {metrics['training_iteration']:6}"
            f"  {config['width']:5}  {config['layers']:6}"
        )
    # The area between the front and a point that is worse than all: one number for the whole front.
    volume = results.get_hypervolume([1.0, 150_000])
    print(f"Hypervolume: {volume / 150_000:.3f} of 1")
    good = [one for one in front if one.metrics["error"] < 0.1]
    if good:
        print(f"The smallest network with less than 10 % errors: {good[0].config}")
    trained, full = sum(len(result.history) for result in results), len(results) * MAX_EPOCHS
    print(f"Early stopping saved {1 - trained / full:.0%} of the work: {trained} epochs, not {full}.")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune for accuracy and size.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--storage-path", help="where results go; default: ~/dasktune_results")
    parser.add_argument("--num-samples", type=int, default=60, help="configurations; default: 60")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    main()
