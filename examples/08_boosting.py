"""Tune boosted trees that report each round, so poor configurations stop during training.

On this machine, with two worker processes (needs scikit-learn, and XGBoost or LightGBM):

    python examples/08_boosting.py

On a Dask cluster, whose workers also have dasktune and these packages:

    python examples/08_boosting.py --package lightgbm --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

import dasktune as tune
from dasktune.schedulers import ASHAScheduler

#: The largest number of trees. Few configurations reach it.
MAX_ROUNDS = 60


class Patients(NamedTuple):
    """569 tumours, each with 30 measures, and whether it was benign."""

    train: tuple[np.ndarray, np.ndarray]
    #: Selects the best configuration.
    validation: tuple[np.ndarray, np.ndarray]
    #: Measures the accuracy of the best configuration.
    test: tuple[np.ndarray, np.ndarray]


def split_patients() -> Patients:
    """Return a split of 60 %, 20 % and 20 %, the same in every process."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    x, y = load_breast_cancer(return_X_y=True)
    train_x, rest_x, train_y, rest_y = train_test_split(x, y, test_size=0.4, stratify=y, random_state=0)
    val_x, test_x, val_y, test_y = train_test_split(
        rest_x, rest_y, test_size=0.5, stratify=rest_y, random_state=0
    )
    return Patients((train_x, train_y), (val_x, val_y), (test_x, test_y))


def train_xgboost(config: dict[str, Any]) -> None:
    """Train with XGBoost; the workers run this."""
    import xgboost

    from dasktune.integration.xgboost import TuneReportCheckpointCallback

    data = split_patients()
    # A trial whose worker was lost resumes with its saved trees.
    checkpoint = tune.get_checkpoint()
    model = TuneReportCheckpointCallback.get_model(checkpoint) if checkpoint else None
    xgboost.train(
        {
            "objective": "binary:logistic",
            "eta": config["learning_rate"],
            "max_depth": config["depth"],
            "subsample": config["subsample"],
            "nthread": 1,
        },
        xgboost.DMatrix(*data.train),
        MAX_ROUNDS - (model.num_boosted_rounds() if model else 0),
        evals=[(xgboost.DMatrix(*data.validation), "eval")],
        verbose_eval=False,
        xgb_model=model,
        callbacks=[TuneReportCheckpointCallback({"loss": "eval-logloss"}, frequency=10)],
    )


def train_lightgbm(config: dict[str, Any]) -> None:
    """Train with LightGBM; the workers run this."""
    import lightgbm

    from dasktune.integration.lightgbm import TuneReportCheckpointCallback

    data = split_patients()
    checkpoint = tune.get_checkpoint()
    model = TuneReportCheckpointCallback.get_model(checkpoint) if checkpoint else None
    rounds = MAX_ROUNDS - (model.current_iteration() if model else 0)
    if rounds == 0:
        return
    train_set = lightgbm.Dataset(*data.train)
    lightgbm.train(
        {
            "objective": "binary",
            "learning_rate": config["learning_rate"],
            "max_depth": config["depth"],
            "bagging_fraction": config["subsample"],
            "bagging_freq": 1,
            "num_threads": 1,
            "verbosity": -1,
        },
        train_set,
        rounds,
        valid_sets=[train_set.create_valid(*data.validation)],
        valid_names=["eval"],
        init_model=model,
        callbacks=[TuneReportCheckpointCallback({"loss": "eval-binary_logloss"}, frequency=10)],
    )


def predict(package: str, checkpoint: tune.Checkpoint, x: np.ndarray) -> np.ndarray:
    """Return the probability that each tumour is benign."""
    if package == "xgboost":
        import xgboost

        from dasktune.integration.xgboost import TuneReportCheckpointCallback

        return TuneReportCheckpointCallback.get_model(checkpoint).predict(xgboost.DMatrix(x))
    from dasktune.integration.lightgbm import TuneReportCheckpointCallback

    return np.asarray(TuneReportCheckpointCallback.get_model(checkpoint).predict(x))


def main() -> None:
    """Run the search; print its results and its cost."""
    options = parse_arguments()
    package = options.package or next((name for name in ("xgboost", "lightgbm") if find_spec(name)), None)
    if package is None or find_spec(package) is None:
        print(f"Nothing done: install {package or 'xgboost or lightgbm'} first.")
        return
    results = tune.Tuner(
        train_xgboost if package == "xgboost" else train_lightgbm,
        param_space={
            "learning_rate": tune.loguniform(0.005, 0.5),
            "depth": tune.randint(1, 8),
            "subsample": tune.uniform(0.5, 1.0),
        },
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=options.num_samples,
            scheduler=ASHAScheduler(max_t=MAX_ROUNDS, grace_period=5, reduction_factor=3),
            seed=0,
        ),
        run_config=tune.RunConfig(storage_path=options.storage_path),
        client=options.address,
    ).fit()

    best = results.get_best_result()
    shown = {key: round(value, 3) for key, value in best.config.items()}
    print(f"Best of {len(results)} configurations with {package}: {shown}")
    # Every tenth round and the last one have saved a model.
    checkpoint = best.get_best_checkpoint("loss", "min")
    assert checkpoint is not None
    x, y = split_patients().test
    accuracy = np.mean((predict(package, checkpoint, x) > 0.5) == y)
    print(f"Accuracy on patients that it has never seen: {accuracy:.1%}")
    grown, full = sum(len(result.history) for result in results), len(results) * MAX_ROUNDS
    print(f"Early stopping saved {1 - grown / full:.0%} of the work: {grown} trees, not {full}.")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune boosted trees on measures of tumours.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--package", choices=["xgboost", "lightgbm"], help="default: what is there")
    parser.add_argument("--storage-path", help="where results go; default: ~/dasktune_results")
    parser.add_argument("--num-samples", type=int, default=20, help="configurations; default: 20")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    main()
