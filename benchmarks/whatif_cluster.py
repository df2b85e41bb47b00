"""`dasktune.whatif` against real second runs: ``python -m benchmarks.whatif_cluster``.

For each set, 60 models are trained for 27 epochs on the 2 workers of a LocalCluster, without a
scheduler. `whatif` predicts from their curves what schedulers would take. Then the experiment is
really run under the scheduler that it recommends and under promoting and stopping ASHA with the
same configurations, and under the recommended one with 60 others, too. All models save a checkpoint
after each epoch, so that paused trials resume. Training is deterministic, also after a resume, so
that the run with the same configurations can be asked whether it has kept the best one.
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import dasktune as tune
from benchmarks._measure import load, machine
from benchmarks._report import table
from dasktune.forecast.contenders import FULL_TRAINING, contenders

__all__ = ["SETS", "RealSet"]

_TRIALS, _EPOCHS = 60, 27

#: Compared beside the scheduler that is recommended.
_ALWAYS = ("PromotingASHAScheduler(grace_period=1)", "ASHAScheduler(grace_period=1)")


def _train(config: dict[str, Any], begin: Callable[..., Iterator[tuple[float, Any]]]) -> None:
    """Report the loss of each epoch with a checkpoint, from the last checkpoint on."""
    state, done = None, 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as directory:
            state, done = pickle.loads((Path(directory) / "state").read_bytes())
    epochs = begin(config, state)
    # A trial that was paused after its last epoch has nothing left to do when it is resumed.
    while done < _EPOCHS:
        loss, reached = next(epochs)
        done += 1
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "state").write_bytes(pickle.dumps((reached, done)))
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(directory))


def _network(config: dict[str, Any], network: Any, make: Any, options: Any, data: Any) -> Any:
    """Train a network of scikit-learn; yield it and the validation data after each epoch."""
    rows, labels = data
    rows = (rows - rows[::2].mean(axis=0)) / (rows[::2].std(axis=0) + 1e-9)
    network = network or make(
        hidden_layer_sizes=(config["units"],),
        solver="sgd",
        learning_rate_init=config["learning_rate"],
        momentum=config["momentum"],
        alpha=config["alpha"],
        batch_size=32,
        random_state=0,
    )
    while True:
        network.partial_fit(rows[::2], labels[::2], **options)
        yield network, rows[1::2], labels[1::2]


def _digits_epochs(config: dict[str, Any], state: Any) -> Iterator[tuple[float, Any]]:
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    data = load_digits(return_X_y=True)
    epochs = _network(config, state, MLPClassifier, {"classes": np.arange(10)}, data)
    for network, rows, labels in epochs:
        chances = np.clip(network.predict_proba(rows), 1e-9, 1)
        yield float(-np.log(chances[np.arange(len(labels)), labels]).mean()), network


def _friedman_epochs(config: dict[str, Any], state: Any) -> Iterator[tuple[float, Any]]:
    from sklearn.datasets import make_friedman1
    from sklearn.neural_network import MLPRegressor

    rows, labels = make_friedman1(n_samples=3000, noise=1.0, random_state=1)
    data = rows, (labels - labels.mean()) / labels.std()
    for network, validation, targets in _network(config, state, MLPRegressor, {}, data):
        loss = float(np.mean((network.predict(validation) - targets) ** 2))
        # A network that diverges is worse than a constant.
        yield loss if np.isfinite(loss) and loss < 10 else 10.0, network


def _boosting_epochs(config: dict[str, Any], state: Any) -> Iterator[tuple[float, Any]]:
    import lightgbm
    from sklearn.datasets import make_classification

    rows, labels = make_classification(
        n_samples=3000, n_features=20, n_informative=8, n_classes=3, flip_y=0.05, random_state=1
    )
    fixed = {"objective": "multiclass", "num_class": 3, "num_threads": 1, "verbose": -1}
    params = {**config, **fixed, "deterministic": True, "force_row_wise": True}
    train = lightgbm.Dataset(rows[::2], labels[::2], params=params, free_raw_data=False)
    labels = labels[1::2]
    while True:
        # Two rounds are an epoch.
        init = lightgbm.Booster(model_str=state) if state else None
        model = lightgbm.train(params, train, 2, init_model=init)
        state = model.model_to_string()
        chances = np.clip(model.predict(rows[1::2]), 1e-9, 1)
        yield float(-np.log(chances[np.arange(len(labels)), labels]).mean()), state


def train_digits(config: dict[str, Any]) -> None:
    """Train a network on handwritten digits."""
    _train(config, _digits_epochs)


def train_friedman(config: dict[str, Any]) -> None:
    """Train a network on a regression."""
    _train(config, _friedman_epochs)


def train_boosting(config: dict[str, Any]) -> None:
    """Train boosted trees on a generated classification."""
    _train(config, _boosting_epochs)


@dataclass(frozen=True)
class RealSet:
    """What is trained."""

    train: Callable[[dict[str, Any]], None]
    space: Mapping[str, Any]


_NETWORKS = {
    "units": tune.lograndint(8, 129),
    "learning_rate": tune.loguniform(1e-3, 1.0),
    "momentum": tune.uniform(0, 0.99),
    "alpha": tune.loguniform(1e-6, 1e-1),
}

#: The sets by name.
SETS: Mapping[str, RealSet] = {
    "digits": RealSet(train_digits, _NETWORKS),
    "friedman": RealSet(train_friedman, {**_NETWORKS, "learning_rate": tune.loguniform(1e-4, 0.1)}),
    "boosting": RealSet(
        train_boosting,
        {
            "learning_rate": tune.loguniform(0.005, 1.0),
            "num_leaves": tune.lograndint(2, 65),
            "min_child_samples": tune.lograndint(1, 61),
            "lambda_l2": tune.loguniform(1e-4, 100.0),
            "max_bin": tune.lograndint(8, 256),
        },
    ),
}


def _fit(place: str, name: str, seed: int, scheduler: Any) -> tuple[Any, float]:
    """Run an experiment on the cluster; return the results, and the seconds from start to end."""
    began = time.perf_counter()
    results = tune.Tuner(
        SETS[name].train,
        param_space=dict(SETS[name].space),
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=_TRIALS, scheduler=scheduler, seed=seed
        ),
        run_config=tune.RunConfig(storage_path=place, verbose=0),
    ).fit()
    assert not results.errors
    return results, time.perf_counter() - began


def _lowest(results: Any) -> list[float]:
    return [min(row["loss"] for row in result.history) for result in results]


def _second(place: str, name: str, seed: int, label: str, lowest: Sequence[float]) -> dict[str, Any]:
    """Run an experiment under a scheduler; `lowest` are losses that its regret is measured by."""
    results, seconds = _fit(place, name, seed, contenders(None, _EPOCHS)[label])
    share = sum(len(result.history) for result in results) / (_EPOCHS * _TRIALS)
    regret = (min(_lowest(results)) - min(lowest)) / (median(lowest) - min(lowest))
    return {"share": share, "seconds": seconds, "regret": regret}


def measure(name: str) -> list[dict[str, Any]]:
    """Predict from a first run on the running cluster, and run the schedulers."""
    with tempfile.TemporaryDirectory() as place:
        before = load()
        results, full = _fit(place, name, 0, None)
        forecast = tune.whatif(results)
        recommended = forecast.recommended.scheduler
        print(f"{name}: {forecast.recommendation}\n{forecast}", flush=True)
        same = _lowest(results)
        rows = []
        for row in forecast.rows[1:]:
            if row.scheduler not in {*_ALWAYS, recommended}:
                continue
            is_best = row.scheduler == recommended
            rows.append(
                {
                    "set": name,
                    "scheduler": row.scheduler,
                    "recommended": is_best,
                    "iterations": list(row.iterations),
                    "kept": row.kept.value,
                    "expected_regret": list(row.regret),
                    "time": list(row.time),
                    "full_seconds": full,
                    "same": _second(place, name, 0, row.scheduler, same),
                    "others": _second(place, name, 1, row.scheduler, same) if is_best else None,
                    "load": [before, load()],
                    "about": machine(),
                }
            )
            print(json.dumps(rows[-1], default=str), flush=True)
        if recommended == FULL_TRAINING:
            print(f"{name}: full training is recommended", flush=True)
        return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table."""
    lines = []
    for row in rows:
        low, value, high = row["iterations"]
        same, others = row["same"], row["others"]
        lines.append(
            [
                row["set"],
                row["scheduler"] + (" (recommended)" if row["recommended"] else ""),
                f"{value:.1%} ({low:.1%} to {high:.1%})",
                f"{same['share']:.1%}",
                f"{others['share']:.1%}" if others else "",
                f"{row['kept']:.0%}",
                "yes" if same["regret"] < 1e-9 else f"no, regret {same['regret']:.3f}",
                f"{row['time'][1]:.0%}",
                f"{same['seconds'] / row['full_seconds']:.0%}",
            ]
        )
    header = ["set", "scheduler", "epochs predicted", "same configurations", "others"]
    header += ["best kept: predicted", "really", "time predicted", "really"]
    print(table(header, lines), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure sets that a file does not have yet, and print the table of all."""
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(prog="python -m benchmarks.whatif_cluster", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"sets (all): {', '.join(SETS)}")
    parser.add_argument("--runs", type=Path, help="a file with a line for each scheduler (none)")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    if options.runs and options.runs.exists():
        rows = [json.loads(line) for line in options.runs.read_text().splitlines()]
    known = {row["set"] for row in rows}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made,
        Client(made),
    ):
        for name in options.names or SETS:
            if name in known:
                continue
            found = measure(name)
            rows += found
            if options.runs:
                with options.runs.open("a") as file:
                    file.writelines(json.dumps(row, default=str) + "\n" for row in found)
    show(rows)


if __name__ == "__main__":
    main()
