"""Early stopping with cross-validation: most candidates are stopped after a few steps.

On this machine, with two worker processes (needs scikit-learn):

    python examples/07_early_stopping_cv.py

On a Dask cluster, whose workers also have dasktune and scikit-learn:

    python examples/07_early_stopping_cv.py --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse

from distributed import Client, LocalCluster
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dasktune.sklearn import TuneSearchCV


def main() -> None:
    """Search a pipeline; its last step is trained epoch by epoch, on five folds at once."""
    options = parse_arguments()
    X, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(X, y, random_state=0, stratify=y)
    search = TuneSearchCV(
        make_pipeline(StandardScaler(), SGDClassifier(random_state=0)),
        {
            "sgdclassifier__alpha": loguniform(1e-6, 10),
            "sgdclassifier__penalty": ["l2", "l1", "elasticnet"],
        },
        n_iter=options.num_candidates,
        scheduler="asha",
        max_iters=9,
        cv=5,
        random_state=0,
    )
    search.fit(train_x, train_y)
    steps = search.cv_results_["training_iteration"]
    print(f"{search.n_trials_} candidates, {search.stopped_early_.sum()} of them stopped early")
    print(f"{steps.sum()} steps instead of {search.n_trials_ * search.max_iters}")
    best = {name: str(value) for name, value in search.best_params_.items()}
    print(f"best: {best} after {search.best_iteration_} epochs")
    print(f"  accuracy on five folds: {search.best_score_:.2%}")
    print(f"  accuracy on unseen pictures: {search.score(test_x, test_y):.2%}")
    assert search.stopped_early_.any()


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune a pipeline and stop early.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--num-candidates", type=int, default=30, help="to try; default: 30")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    address = parse_arguments().address
    if address:
        # The search uses the current client.
        with Client(address):
            main()
    else:
        with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster):
            main()
