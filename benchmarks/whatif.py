"""What `dasktune.whatif` predicts, and what a second run then takes.

``python -m benchmarks.whatif`` prints tables.

The first run trains 100 configurations of a recorded set to their end. `whatif` replays their
curves under several schedulers. The second run has 100 other configurations, and another training
seed where the set has several. It goes through the real runner and scheduler, in virtual time. The
table has, for each set and scheduler, the predicted and the real share of the iterations, the error
of the prediction, how often its 5 to 95 % range held the real share, how often the second run lost
its best configuration, and the prediction of that. A second table has the recommendations.

``python -m benchmarks.whatif cluster`` compares a prediction with real runs on a LocalCluster.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

import dasktune as tune
from benchmarks._report import table
from benchmarks.reproduce.curves import EPOCHS, load_curves
from dasktune.forecast.contenders import FULL_TRAINING, contenders
from dasktune.forecast.full_curve import FullCurve
from dasktune.forecast.what_if import WhatIf, replay_all
from dasktune.testing import simulate

__all__ = ["POOLS", "Pair", "compare", "hartmann"]

_TRIALS = 100
_WORKERS = 4

_CLUSTER_TRIALS = 60
_CLUSTER_EPOCHS = 27

#: Values of each configuration after each epoch, one array for each training seed.
Pool = list[NDArray[np.float64]]


def recorded(name: str) -> Pool:
    """Return the validation errors of a recorded set."""
    validation = load_curves(name).validation
    return [validation[:, seed] for seed in range(validation.shape[1])]


_ALPHA = np.array([1, 1.2, 3, 3.2])
_A = {
    3: np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]]),
    6: np.array(
        [
            [10, 3, 17, 3.5, 1.7, 8],
            [0.05, 10, 17, 0.1, 8, 14],
            [3, 3.5, 1.7, 10, 17, 8],
            [17, 8, 0.05, 10, 0.1, 14],
        ]
    ),
}
_P = {
    3: 1e-4 * np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]),
    6: 1e-4
    * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    ),
}


def hartmann(dimensions: int, rows: int = 1_000) -> Pool:
    """Return curves of a Hartmann function with cheap approximations at few epochs.

    At a share z of the training, z = log(epoch) / log(81), the weights of the function's four terms
    are moved by 0.8 (1 - z) (1.2, 0.6, -1.2, -1.6), and the noise is 0.1 (1 - z): the first epochs
    rank configurations nearly as the last one does.
    """
    rng = default_rng([77, dimensions])
    z = np.log(np.arange(1, EPOCHS + 1)) / np.log(EPOCHS)
    points = rng.random((rows, dimensions))
    distances = (_A[dimensions] * (points[:, None, :] - _P[dimensions]) ** 2).sum(2)
    weights = _ALPHA + 0.8 * (1 - z)[:, None] * np.array([1.2, 0.6, -1.2, -1.6])
    values = -np.einsum("nk,zk->nz", np.exp(-distances), weights) + 0.8 * (1 - z)
    noise = rng.normal(size=values.shape)
    return [values + 0.1 * (1 - z) * noise]


#: The sets by name.
POOLS: Mapping[str, Callable[[], Pool]] = {
    "digits": lambda: recorded("digits"),
    "breast_cancer": lambda: recorded("breast_cancer"),
    "hartmann3": lambda: hartmann(3),
    "hartmann6": lambda: hartmann(6),
}


@dataclass
class Pair:
    """Predictions for one scheduler, and the second runs."""

    predicted: list[Any] = field(default_factory=list)
    iterations: list[float] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)

    @property
    def errors(self) -> list[float]:
        """The errors of the predicted shares of the iterations."""
        pairs = zip(self.predicted, self.iterations, strict=True)
        return [abs(row.iterations.value - real) for row, real in pairs]

    @property
    def held(self) -> float:
        """The share of the 5 to 95 % ranges that hold the real value."""
        pairs = zip(self.predicted, self.iterations, strict=True)
        return fmean(row.iterations.low <= real <= row.iterations.high for row, real in pairs)


def _paces(seed: int) -> NDArray[np.float64]:
    return default_rng([seed, 1]).uniform(0.5, 2, 2 * _TRIALS)


def predict(values: NDArray[np.float64], paces: NDArray[np.float64], orders: int, seed: int) -> WhatIf:
    """Return the forecast from full curves, one row of `values` each."""
    curves = [
        FullCurve(
            [
                {"training_iteration": epoch + 1, "time_total_s": pace * (epoch + 1), "loss": float(loss)}
                for epoch, loss in enumerate(row)
            ],
            "loss",
            "min",
        )
        for row, pace in zip(values, paces.tolist(), strict=True)
    ]
    compared = contenders(None, EPOCHS)
    for scheduler in compared.values():
        scheduler.set_search_properties("loss", "min")
    rows = replay_all(
        curves, compared, workers=_WORKERS, orders=orders, seed=seed, progress=lambda done, total: None
    )
    return WhatIf(
        rows=rows,
        metric="loss",
        mode="min",
        num_curves=len(curves),
        max_t=EPOCHS,
        orders=orders,
        workers=_WORKERS,
        min_kept=0.9,
    )


def real_run(
    values: NDArray[np.float64], paces: NDArray[np.float64], scheduler: Any, seed: int
) -> tuple[float, bool]:
    """Run the scheduler on other curves; return the share of epochs, and if the best is lost."""

    def train(config: dict[str, Any], checkpoint: int | None) -> Any:
        row = values[config["row"]]
        for epoch in range(checkpoint or 0, EPOCHS):
            yield {"loss": float(row[epoch])}, float(paces[config["row"]]), epoch + 1

    results = simulate(
        train,
        param_space={"row": tune.grid_search(list(range(len(values))))},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, seed=seed),
        slots=_WORKERS,
    )
    found = min(row["loss"] for result in results for row in result.history)
    share = sum(len(result.history) for result in results) / values.size
    return share, found > values.min()


def compare(pool: Pool, runs: int, orders: int) -> tuple[dict[str, Pair], Counter[str]]:
    """Predict and run a second time, `runs` times; return both, and the recommendations."""
    pairs: dict[str, Pair] = {}
    recommended: Counter[str] = Counter()
    for seed in range(runs):
        rows = default_rng([seed, 8]).permutation(len(pool[0]))[: 2 * _TRIALS]
        first, second = pool[seed % len(pool)], pool[(seed + 1) % len(pool)]
        paces = _paces(seed)
        forecast = predict(first[rows[:_TRIALS]], paces[:_TRIALS], orders, seed)
        recommended[forecast.recommended.scheduler] += 1
        schedulers = contenders(None, EPOCHS)
        for row in forecast.rows:
            if row.scheduler == FULL_TRAINING:
                continue
            pair = pairs.setdefault(row.scheduler, Pair())
            scheduler = schedulers[row.scheduler]
            share, lost = real_run(second[rows[_TRIALS:]], paces[_TRIALS:], scheduler, seed)
            pair.predicted.append(row)
            pair.iterations.append(share)
            pair.lost.append(lost)
    return pairs, recommended


def _lines(name: str, pairs: Mapping[str, Pair]) -> list[list[str]]:
    return [
        [
            name,
            scheduler,
            f"{median(row.iterations.value for row in pair.predicted):.1%}",
            f"{median(pair.iterations):.1%}",
            f"{median(pair.errors):.3f} (at most {max(pair.errors):.3f})",
            f"{pair.held:.0%}",
            f"{1 - fmean(row.kept.value for row in pair.predicted):.2f}",
            f"{fmean(pair.lost):.2f}",
        ]
        for scheduler, pair in pairs.items()
    ]


def train_network(config: dict[str, Any]) -> None:
    """Train a network on handwritten digits for 27 epochs."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    rows, labels = load_digits(return_X_y=True)
    rows = rows / 16
    network = MLPClassifier(
        hidden_layer_sizes=(config["units"],),
        solver="sgd",
        learning_rate_init=config["learning_rate"],
        momentum=config["momentum"],
        alpha=config["alpha"],
        batch_size=32,
        random_state=0,
    )
    for _ in range(_CLUSTER_EPOCHS):
        network.partial_fit(rows[::2], labels[::2], classes=np.arange(10))
        chances = np.clip(network.predict_proba(rows[1::2]), 1e-9, 1)
        tune.report({"loss": float(-np.log(chances[np.arange(len(chances)), labels[1::2]]).mean())})


def on_cluster(place: str, seed: int, scheduler: Any = None) -> tuple[Any, float]:
    """Tune the network on the cluster; return the results, and the seconds from start to end."""
    began = time.perf_counter()
    results = tune.Tuner(
        train_network,
        param_space={
            "units": tune.lograndint(8, 129),
            "learning_rate": tune.loguniform(1e-3, 1.0),
            "momentum": tune.uniform(0, 0.99),
            "alpha": tune.loguniform(1e-6, 1e-1),
        },
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=_CLUSTER_TRIALS, scheduler=scheduler, seed=seed
        ),
        run_config=tune.RunConfig(storage_path=place),
    ).fit()
    return results, time.perf_counter() - began


def cluster() -> None:
    """Predict from a first run on a LocalCluster, and print what real second runs take."""
    from distributed import Client, LocalCluster

    with (
        TemporaryDirectory() as place,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made,
        Client(made),
    ):
        results, full_seconds = on_cluster(place, 0)
        forecast = tune.whatif(results)
        print(forecast)
        lines = [["FIFOScheduler", "100.0%", "100.0%", f"{3600 * forecast.rows[0].hours.value:.1f}"]]
        lines[0].append(f"{full_seconds:.1f}")
        for row in forecast.rows[1:]:
            if "Promoting" in row.scheduler or "HyperBand" in row.scheduler:
                continue  # They pause trials, and the network saves no checkpoints.
            scheduler = contenders(None, _CLUSTER_EPOCHS)[row.scheduler]
            second, seconds = on_cluster(place, 1, scheduler)
            epochs = sum(len(result.history) for result in second)
            lines.append(
                [
                    row.scheduler,
                    f"{row.iterations.value:.1%} ({row.iterations.low:.1%} to {row.iterations.high:.1%})",
                    f"{epochs / (_CLUSTER_EPOCHS * _CLUSTER_TRIALS):.1%}",
                    f"{3600 * row.hours.value:.1f}",
                    f"{seconds:.1f}",
                ]
            )
    print(table(["scheduler", "epochs predicted", "real", "seconds predicted", "real"], lines))


def main(names: list[str], runs: int, orders: int) -> None:
    header = ["set", "scheduler", "predicted", "real", "error", "in the range", "P(lost) predicted", "real"]
    advice = []
    lines: list[list[str]] = []
    for name in names:
        began = time.perf_counter()
        pairs, recommended = compare(POOLS[name](), runs, orders)
        lines += _lines(name, pairs)
        advice.append([name, ", ".join(f"{count} {what}" for what, count in recommended.most_common())])
        print(f"{name}: {runs} runs in {time.perf_counter() - began:.0f} s", flush=True)
    print(f"\n{runs} runs, {orders} orders, {_TRIALS} trials of {EPOCHS} epochs, {_WORKERS} at a time\n")
    print(table(header, lines))
    print()
    print(table(["set", "recommended"], advice))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whatif", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"sets (all): {', '.join(POOLS)}")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--orders", type=int, default=200)
    given = parser.parse_args()
    if given.names == ["cluster"]:
        cluster()
    else:
        main(given.names or list(POOLS), given.runs, given.orders)
