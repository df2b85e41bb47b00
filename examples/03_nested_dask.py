"""Tune a random forest whose trees are Dask tasks, on workers that each trial reserves.

A trial requests two workers, and lets them fit trees in parallel. On this machine, with two worker
processes (needs scikit-learn):

    python examples/03_nested_dask.py

On a Dask cluster, whose workers also have dasktune and scikit-learn:

    python examples/03_nested_dask.py --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

import numpy as np
from distributed import LocalCluster
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

import dasktune as tune
from dasktune.schedulers import ASHAScheduler

#: The number of trees between two reports, and the final number of trees.
TREES_AT_A_TIME = 4
MOST_TREES = 32


def fit_tree(pictures: np.ndarray, digits: np.ndarray, seed: int, **options: Any) -> DecisionTreeClassifier:
    """Fit one tree to pictures drawn with replacement. The Dask tasks run this."""
    drawn = np.random.default_rng(seed).integers(len(pictures), size=len(pictures))
    tree = DecisionTreeClassifier(random_state=seed, **options)
    return tree.fit(pictures[drawn], digits[drawn])


def train(config: dict[str, Any], data: tuple[np.ndarray, ...]) -> None:
    """Grow a forest, and report its accuracy after every few trees. A trial runs this."""
    train_x, val_x, train_y, val_y = data
    options = {name: config[name] for name in ("max_depth", "max_features", "min_samples_leaf")}

    # The Dask client of the trial's cluster, and the workers that the trial holds.
    client = tune.get_client()
    workers = tune.get_context().get_bundle_workers()
    # Send the data to one of them, not with every task; the other worker copies it from there.
    on_workers = client.scatter([train_x, train_y], workers=workers, hash=False)

    votes = np.zeros((len(val_x), 10))
    for seed in range(0, MOST_TREES, TREES_AT_A_TIME):
        tasks = [
            # pure=False: trials with equal options must not share results and lose them together.
            client.submit(fit_tree, *on_workers, s, **options, workers=workers, pure=False)
            for s in range(seed, seed + TREES_AT_A_TIME)
        ]
        # While the trial waits here, it occupies no thread of its tasks.
        for tree in client.gather(tasks):
            votes += tree.predict_proba(val_x)
        tune.report({"accuracy": np.mean(votes.argmax(axis=1) == val_y)})


def main() -> None:
    """Run the search on a cluster and print its results."""
    options = parse_arguments()
    pictures, digits = load_digits(return_X_y=True)
    data = train_test_split(pictures, digits, test_size=0.3, stratify=digits, random_state=0)
    # A trial holds two bundles of one CPU each, so two trials run at a time here.
    two_workers = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}], strategy="SPREAD")
    with local_cluster() if options.address is None else nullcontext(options.address) as client:
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(train, data=data), two_workers),
            param_space={
                "max_depth": tune.randint(3, 16),
                "max_features": tune.uniform(0.05, 1.0),
                "min_samples_leaf": tune.randint(1, 8),
            },
            tune_config=tune.TuneConfig(
                metric="accuracy",
                mode="max",
                num_samples=options.num_samples,
                scheduler=ASHAScheduler(max_t=MOST_TREES // TREES_AT_A_TIME, reduction_factor=2),
                seed=0,
            ),
            run_config=tune.RunConfig(storage_path=options.storage_path),
            client=client,
        )
        show(tuner.fit())


def local_cluster() -> LocalCluster:
    """Start two worker processes of two threads each."""
    return LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0")


def show(results: tune.ResultGrid) -> None:
    """Print the best configuration and how many trees were fitted."""
    best = results.get_best_result()
    trees = TREES_AT_A_TIME * sum(len(result.history) for result in results)
    print("\nBest configuration:")
    for name, value in best.config.items():
        print(f"  {name:17} {value:.3g}")
    print(f"Its accuracy: {best.metrics['accuracy']:.2%}")
    print(f"{trees} of {len(results) * MOST_TREES} trees were fitted, each by a Dask task.")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune a random forest that Dask tasks fit.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--storage-path", help="where results go; default: ~/dasktune_results")
    parser.add_argument("--num-samples", type=int, default=12, help="configurations; default: 12")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    main()
