"""Tune a pipeline on a Dask data frame, which never comes into this process.

On this machine, with two worker processes (needs scikit-learn, pandas and pyarrow):

    python examples/10_dask_data_frame.py

On a Dask cluster, whose workers also have dasktune and these packages:

    python examples/10_dask_data_frame.py --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from scipy.stats import loguniform
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dasktune.sklearn import TuneSearchCV

WEATHERS = ("sun", "rain", "snow")
RIDES_OF_A_MONTH = 2_000


def month_of_rides(month: int) -> pd.DataFrame:
    """Return made-up rides of bicycles: is the bicycle returned late? A Dask task runs this."""
    rng = np.random.default_rng(month)
    rides = pd.DataFrame(
        {
            "distance_km": rng.gamma(2.0, 2.0, RIDES_OF_A_MONTH),
            "hour": rng.integers(0, 24, RIDES_OF_A_MONTH),
            "weekday": rng.integers(0, 7, RIDES_OF_A_MONTH),
            "weather": rng.choice(WEATHERS, RIDES_OF_A_MONTH, p=(0.6, 0.3, 0.1)),
        }
    )
    effect = rides["weather"].map({"sun": 0.5, "rain": -0.5, "snow": -1.5}).astype(float)
    effect += 0.7 * (rides["weekday"] >= 5) + 0.3 * rides["distance_km"] - 1.6
    rides["late"] = (effect + rng.logistic(0, 0.4, RIDES_OF_A_MONTH) > 0).astype("int64")
    return rides


def rides_of(months: range) -> Any:
    """Return a Dask data frame with a partition for each month; nothing is computed yet."""
    return dd.from_map(month_of_rides, list(months), meta=month_of_rides(0).iloc[:0])


def new_pipeline() -> Pipeline:
    """Return a pipeline that scales numbers, encodes names, and learns in steps."""
    columns = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["distance_km", "hour"]),
            ("names", OneHotEncoder(handle_unknown="ignore"), ["weekday", "weather"]),
        ]
    )
    return Pipeline([("columns", columns), ("model", SGDClassifier(loss="log_loss", random_state=0))])


def main() -> None:
    """Search on ten months of rides; predict the rides of two other months."""
    options = parse_arguments()
    train, test = rides_of(range(1, 11)), rides_of(range(11, 13))
    features = [name for name in train.columns if name != "late"]
    search = TuneSearchCV(
        new_pipeline(),
        {
            "model__alpha": loguniform(1e-6, 1.0),
            "model__eta0": loguniform(1e-3, 1.0),
            "model__learning_rate": ["constant", "adaptive", "invscaling"],
        },
        n_iter=options.num_candidates,
        scheduler="asha",
        max_iters=9,
        cv=3,
        random_state=0,
    )
    search.fit(train[features], train["late"])
    best = {name: str(value) for name, value in search.best_params_.items()}
    print(f"Best of {options.num_candidates} pipelines: {best}")
    print(f"Accuracy of cross-validation: {search.best_score_:.1%}")
    steps = int(np.sum(search.cv_results_["training_iteration"]))
    print(f"Early stopping: {steps} steps instead of {9 * options.num_candidates}, each on three folds.")

    # A lazy collection again: nothing is predicted before it is computed, partition by partition.
    predicted = search.predict(test[features])
    print(
        f"Predictions: {type(predicted).__module__}.{type(predicted).__name__}, {predicted.npartitions} parts"
    )
    late = float(np.mean(predicted.compute()))
    print(f"Accuracy on two other months: {search.score(test[features], test['late']):.1%}")
    print(f"Of their rides {late:.0%} are expected late.")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune a pipeline on a Dask data frame.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--num-candidates", type=int, default=12, help="pipelines; default: 12")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    address = parse_arguments().address
    if address is not None:
        with Client(address):
            main()
    else:
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster),
        ):
            main()
