"""What `dasktune.whatif` predicts, and what a second run then takes.

``python -m benchmarks.whatif`` prints tables.

The first run trains 100 configurations of a recorded set to their end. `whatif` replays their
curves under several schedulers. The second run has 100 other configurations, and another training
seed where the set has several. It goes through the real runner and scheduler, in virtual time. The
table has, for each set and scheduler, the predicted and the real share of the iterations, the error
of the prediction, how often its 5 to 95 % range held the real share, how often the second run lost
its best configuration, and the prediction of that. A second table has the recommendations.

``--sealed`` takes the sealed curves and seeds of `benchmarks.reproduce.recipes` instead, once, and
the schedulers of `_SEALED_SCHEDULERS` in the second runs. `benchmarks.whatif_cluster` has real
second runs on a LocalCluster.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

import dasktune as tune
from benchmarks._report import table
from benchmarks.reproduce.curves import EPOCHS, load, load_curves
from benchmarks.reproduce.recipes import SEALED_ORDER, SETS
from dasktune.forecast.contenders import FULL_TRAINING, contenders
from dasktune.forecast.recorded_trial import FullCurve
from dasktune.forecast.what_if import WhatIf, replay_all
from dasktune.testing import simulate

__all__ = ["POOLS", "Pair", "compare", "hartmann"]

_TRIALS = 100
_WORKERS = 4

#: The schedulers that have targets, for the sealed half.
_SEALED_SCHEDULERS = (
    "PromotingASHAScheduler(grace_period=1)",
    "ASHAScheduler(grace_period=1)",
    "MedianStoppingRule(check_at=[3, 9, 27])",
)

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


def sealed(name: str) -> Pool:
    """Return the sealed losses of a recorded set: all training seeds of a sealed set, or one."""
    curves = load(name, sealed=True)
    return [curves.loss[:, axis] for axis in range(len(curves.seeds))]


def _sealed_pool(name: str) -> Callable[[], Pool]:
    return lambda: sealed(name)


#: The sealed sets, the sealed training seed of one whose recommendation has a target, and synthetic
#: curves.
SEALED_POOLS: Mapping[str, Callable[[], Pool]] = {
    **{name: _sealed_pool(name) for name, one in SETS.items() if one.sealed},
    "lightgbm_diabetes": _sealed_pool("lightgbm_diabetes"),
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


def compare(
    pool: Pool, runs: int, orders: int, first_seed: int = 0, only: Collection[str] | None = None
) -> tuple[dict[str, Pair], Counter[str]]:
    """Predict and run a second time, `runs` times; return both, and the recommendations.

    Parameters
    ----------
    pool : list of ndarray
        Curves of one training seed or several.
    runs, orders : int
        The number of pairs of runs, and the orders of each prediction.
    first_seed : int, default=0
        The seed of the first pair.
    only : collection of str, optional
        The schedulers that have a second run; by default all.
    """
    pairs: dict[str, Pair] = {}
    recommended: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + runs):
        rows = default_rng([seed, 8]).permutation(len(pool[0]))[: 2 * _TRIALS]
        first, second = pool[seed % len(pool)], pool[(seed + 1) % len(pool)]
        paces = _paces(seed)
        forecast = predict(first[rows[:_TRIALS]], paces[:_TRIALS], orders, seed)
        recommended[forecast.recommended.scheduler] += 1
        schedulers = contenders(None, EPOCHS)
        for row in forecast.rows:
            if row.scheduler == FULL_TRAINING or (only is not None and row.scheduler not in only):
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


def main(names: list[str], runs: int, orders: int, *, is_sealed: bool = False) -> None:
    """Print a table of the sets after each set, and the recommendations."""
    header = ["set", "scheduler", "predicted", "real", "error", "in the range", "P(lost) predicted", "real"]
    pools = SEALED_POOLS if is_sealed else POOLS
    first, only = (SEALED_ORDER, _SEALED_SCHEDULERS) if is_sealed else (0, None)
    advice = []
    every: list[Pair] = []
    for name in names or list(pools):
        began = time.perf_counter()
        pairs, recommended = compare(pools[name](), runs, orders, first, only)
        every += pairs.values()
        lines = _lines(name, pairs)
        print(f"\n{name}: {runs} runs in {time.perf_counter() - began:.0f} s\n")
        print(table(header, lines), flush=True)
        advice.append([name, ", ".join(f"{count} {what}" for what, count in recommended.most_common())])
    print(f"\n{runs} runs, {orders} orders, {_TRIALS} trials of {EPOCHS} epochs, {_WORKERS} at a time")
    print(f"{fmean(pair.held for pair in every):.0%} of the second runs were in the range\n")
    print(table(["set", "recommended"], advice))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whatif", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"sets (all): {', '.join(POOLS)}")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--sealed", action="store_true", help="sealed curves and seeds")
    given = parser.parse_args()
    main(given.names, given.runs, given.orders, is_sealed=given.sealed)
