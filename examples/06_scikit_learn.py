"""Run scikit-learn's searches on a Dask cluster: only the import changes.

On this machine, with two worker processes (needs scikit-learn):

    python examples/06_scikit_learn.py

On a Dask cluster, whose workers also have dasktune and scikit-learn:

    python examples/06_scikit_learn.py --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
from collections import Counter

from distributed import Client, LocalCluster
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

# In scikit-learn: from sklearn.model_selection import GridSearchCV, HalvingRandomSearchCV
from dasktune.sklearn import GridSearchCV, HalvingRandomSearchCV


def main() -> None:
    """Search twice: all points of a grid, and random candidates by successive halving."""
    options = parse_arguments()
    X, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(X, y, random_state=0, stratify=y)
    pipeline = make_pipeline(PCA(random_state=0), SVC())

    grid = GridSearchCV(
        pipeline,
        {"pca__n_components": [8, 16, 32], "svc__C": [1, 10], "svc__gamma": [1e-4, 1e-3]},
        cv=3,
    )
    grid.fit(train_x, train_y)
    print(f"Grid of {len(grid.cv_results_['params'])}: {grid.best_params_}")
    print(f"  accuracy on unseen pictures: {grid.score(test_x, test_y):.2%}")

    halving = HalvingRandomSearchCV(
        pipeline,
        {
            "pca__n_components": range(4, 49),
            "svc__C": loguniform(1e-1, 1e2),
            "svc__gamma": loguniform(1e-5, 1e-2),
        },
        n_candidates=options.num_candidates,
        min_resources="exhaust",
        cv=3,
        random_state=0,
    )
    halving.fit(train_x, train_y)
    for samples, candidates in zip(halving.n_resources_, halving.n_candidates_, strict=True):
        print(f"Halving: {candidates:3} candidates on {samples:4} samples")
    print(f"  {halving.best_params_}")
    print(f"  accuracy on unseen pictures: {halving.score(test_x, test_y):.2%}")
    counts = Counter(halving.cv_results_["iter"].tolist())
    assert [counts[i] for i in range(halving.n_iterations_)] == halving.n_candidates_


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune a pipeline as scikit-learn does.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--num-candidates", type=int, default=27, help="to halve; default: 27")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    address = parse_arguments().address
    if address:
        # The searches use the current client.
        with Client(address):
            main()
    else:
        with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster):
            main()
