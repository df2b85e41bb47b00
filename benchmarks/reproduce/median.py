"""How many epochs the median stopping rule takes, and how often it stops the best trial.

In each order, 100 configurations of a set of curves are trained, 4 at a time, in virtual time.
Without a scheduler all of them train for 81 epochs; the lowest loss that they ever report is the
goal. A rule has *lost* an order if its lowest loss is worse than the goal. Its *regret* is the
difference, in units of the difference between the goal and the median of the lowest losses of all
configurations.

The default rule compares a trial at each result, the others at epochs 3, 9 and 27 only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

import dasktune as tune
from benchmarks._report import spread, table
from benchmarks.reproduce._result_store import ResultStore
from benchmarks.reproduce.curves import EPOCHS, load, set_names
from dasktune.schedulers import (
    ASHAScheduler,
    MedianStoppingRule,
    PromotingASHAScheduler,
    TrialScheduler,
)
from dasktune.testing import simulate
from dasktune.testing.problems import PROBLEMS

__all__ = ["RULES", "SETS"]

#: The recorded sets, and a synthetic one.
SETS = (*set_names(), "crossing")

_TRIALS, _SLOTS = 100, 4


def _median(**arguments: Any) -> MedianStoppingRule:
    return MedianStoppingRule(time_attr="training_iteration", **arguments)


#: The rules by name.
RULES: Mapping[str, Callable[[], TrialScheduler]] = {
    "median rule at each result": lambda: _median(grace_period=3),
    "median rule at 3, 9, 27": lambda: _median(check_at=[3, 9, 27]),
    "the same, means from epoch 1": lambda: _median(check_at=[3, 9, 27], mean_start=1),
    "ASHA, stopping": lambda: ASHAScheduler(max_t=EPOCHS, reduction_factor=3),
    "ASHA, promoting": lambda: PromotingASHAScheduler(max_t=EPOCHS, reduction_factor=3),
}


@dataclass(frozen=True)
class _Run:
    """The epochs of a search and the lowest loss that it has seen."""

    epochs: int
    best: float


def _curves(name: str, order: int) -> NDArray[np.float64]:
    """Return the losses of the configurations of an order, an array of shape (trials, epochs)."""
    if name in PROBLEMS:
        problem = PROBLEMS[name]()
        return problem.curves(problem.sample(_TRIALS, order), order)
    recorded = load(name)
    rows = default_rng(order).permutation(len(recorded.configs))[:_TRIALS]
    seed = recorded.seeds[order % len(recorded.seeds)]
    losses: NDArray[np.float64] = recorded.loss[rows, recorded.axis(seed)]
    return losses


def _search(curves: NDArray[np.float64], scheduler: TrialScheduler, order: int) -> _Run:
    losses = curves.tolist()
    # Models differ in speed; otherwise results would arrive in the same order at each epoch.
    pace = default_rng([order, 1]).uniform(0.5, 2, len(losses)).tolist()
    epochs, best = 0, inf

    def train(config: dict[str, Any], checkpoint: int | None) -> Any:
        row = config["row"]
        for epoch in range(checkpoint or 0, EPOCHS):
            yield {"loss": losses[row][epoch]}, pace[row], epoch + 1

    def on_result(time: float, metrics: Mapping[str, Any]) -> None:
        nonlocal epochs, best
        epochs, best = epochs + 1, min(best, metrics["loss"])

    simulate(
        train,
        param_space={"row": tune.grid_search(list(range(len(losses))))},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, seed=order),
        slots=_SLOTS,
        store=ResultStore(on_result),
    )
    return _Run(epochs, best)


def _row(name: str, rule: str, curves: Mapping[int, NDArray[np.float64]]) -> tuple[list[Any], int, float]:
    shares, regrets = [], []
    for order, losses in curves.items():
        found = _search(losses, RULES[rule](), order)
        lowest = losses.min(axis=1)
        # Without a scheduler every trial is complete, so that the goal needs no simulation.
        regrets.append((found.best - lowest.min()) / (np.median(lowest) - lowest.min()))
        shares.append(found.epochs / losses.size)
    lost = sum(regret > 0 for regret in regrets)
    cells = [name, rule, spread(shares, ".0%"), f"{lost} of {len(regrets)}", f"{fmean(regrets):.3f}"]
    return cells, lost, float(np.median(shares))


def main(arguments: list[str] | None = None) -> None:
    """Print a row for each set and rule, and one for each rule over all sets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce.median", description=__doc__)
    parser.add_argument("--orders", type=int, default=20, help="orders of each set (20)")
    parser.add_argument("--sets", nargs="+", default=SETS, metavar="name", help=f"{', '.join(SETS)} (all)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), help="rules (all)")
    options = parser.parse_args(arguments if arguments is not None else [])
    rows, losts, shares = [], dict.fromkeys(options.rules, 0), {rule: [] for rule in options.rules}
    for name in options.sets:
        curves = {order: _curves(name, order) for order in range(options.orders)}
        for rule in options.rules:
            cells, lost, share = _row(name, rule, curves)
            rows.append(cells)
            losts[rule] += lost
            shares[rule].append(share)
    print(f"\n{options.orders} orders: median (minimum to maximum), mean regret\n")
    print(table(["curves", "rule", "epochs", "best lost", "regret"], rows))
    runs = options.orders * len(options.sets)
    print("\nall sets: median of the sets (minimum to maximum)\n")
    totals = [[rule, spread(shares[rule], ".0%"), f"{losts[rule]} of {runs}"] for rule in options.rules]
    print(table(["rule", "epochs", "best lost"], totals), flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
