"""How many epochs each scheduler needs for what random search finds, on recorded curves.

In each of several orders the 500 configurations of a table are tried one after the other, 8 at a
time; a trial's epochs are read from the table, and all of them take it equally long. Random search
trains the first 100 of the order for all 81 epochs. Whatever the lowest validation error is that it
ever sees is the goal, and a scheduler, which meets the same configurations in the same order, has
reached it at the first result that is as good: the *epochs needed* are all that all trials have
trained until then. A scheduler that ends without it has lost.

So nobody gains by other luck with the configurations, and the last place of the error, which hangs
on a few rows of the validation set, is asked of everyone. Beside it stands what random search
needed itself before it was done, and the test error of what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from numpy.random import default_rng

import dasktune as tune
from benchmarks.reproduce._report import spread, table
from benchmarks.reproduce._watch import Watch
from benchmarks.reproduce.curves import EPOCHS, NAMES, SEEDS, Curves, load_curves
from dasktune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PromotingASHAScheduler,
    SuccessiveHalvingScheduler,
    TrialScheduler,
)
from dasktune.testing import simulate

__all__ = ["CONTENDERS", "Search", "compare", "search"]

#: How many configurations random search tries.
_RANDOM = 100

_SLOTS = 8

_ETA = 3

#: Another scheduler needs no more than a line here, unless it copies or changes configurations: then
#: no curve of a table is its trial's. Population based training wants a workload of its own.
CONTENDERS: Mapping[str, Callable[[], TrialScheduler]] = {
    "ASHA, stopping": lambda: ASHAScheduler(max_t=EPOCHS, reduction_factor=_ETA),
    "ASHA, promoting": lambda: PromotingASHAScheduler(max_t=EPOCHS, reduction_factor=_ETA),
    "HyperBand": lambda: HyperBandScheduler(max_t=EPOCHS, reduction_factor=_ETA),
    "successive halving": lambda: SuccessiveHalvingScheduler(
        max_t=EPOCHS, reduction_factor=_ETA, n_trials=EPOCHS
    ),
    "median stopping": lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=3),
}


@dataclass
class Search:
    """What one search has come to, by the epochs that it has spent."""

    epochs: int = 0
    best: float = inf
    #: The test error of the best one.
    test: float = inf
    #: After how many epochs the validation error got better, to what, and the test error there.
    steps: list[tuple[int, float, float]] | None = None

    def look(self, time: float, metrics: Mapping[str, Any]) -> None:
        self.epochs += 1
        if metrics["error"] < self.best:
            self.best, self.test = metrics["error"], metrics["test"]
            self.steps = [*(self.steps or ()), (self.epochs, self.best, self.test)]

    def needed(self, goal: float) -> tuple[float, float]:
        """Return after how many epochs the error was no more than `goal`, and the test error then.

        Infinity stands for never.
        """
        found = (step for step in self.steps or () if step[1] <= goal)
        epochs, _, test = next(found, (inf, inf, self.test))
        return epochs, test


def search(curves: Curves, scheduler: TrialScheduler | None, order: int, trials: int) -> Search:
    """Try the first configurations of an order, each read from one seed of the table."""
    rng, seed = default_rng(order), order % SEEDS
    rows = rng.permutation(len(curves.validation))[:trials]
    # Networks differ in speed, or results would come in the same order at each epoch.
    pace = rng.uniform(0.5, 2, trials)
    validation, test = curves.validation[:, seed], curves.test[:, seed]

    def network(config: dict[str, Any], checkpoint: int | None) -> Any:
        row, seconds = rows[config["number"]], float(pace[config["number"]])
        for epoch in range(checkpoint or 0, EPOCHS):
            metrics = {
                "error": float(validation[row, epoch]),
                "test": float(test[row, epoch]),
            }
            yield metrics, seconds, epoch + 1

    found = Search()
    simulate(
        network,
        param_space={"number": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(metric="error", mode="min", scheduler=scheduler, seed=order),
        slots=_SLOTS,
        store=Watch(found.look),
    )
    return found


@dataclass
class Comparison:
    """What came of one scheduler, one value for each order."""

    needed: list[float]
    tests: list[float]
    finals: list[float]
    budgets: list[int]


def compare(curves: Curves, orders: range) -> dict[str, Comparison]:
    """Return the epochs that all schedulers need for what random search finds."""
    sides = {name: Comparison([], [], [], []) for name in ("random search", *CONTENDERS)}
    for order in orders:
        random = search(curves, None, order, _RANDOM)
        least = curves.validation[:, order % SEEDS].min()
        for name, side in sides.items():
            make = CONTENDERS.get(name)
            own = search(curves, make(), order, len(curves.validation)) if make else random
            needed, test = own.needed(random.best)
            side.needed.append(needed)
            side.tests.append(100 * test)
            side.finals.append(100 * (own.best - least))
            side.budgets.append(own.epochs)
    return sides


def _rows(sides: Mapping[str, Comparison]) -> list[list[str]]:
    whole = sides["random search"].budgets[0]
    rows = []
    for name, side in sides.items():
        shares = [needed / whole for needed in side.needed]
        rows.append(
            [
                name,
                spread(side.needed, ",.0f"),
                spread(shares, ".1%"),
                spread(side.tests, ".1f"),
                spread(side.finals, ".2f"),
                spread(side.budgets, ",.0f"),
            ]
        )
    return rows


def main(orders: int = 12) -> None:
    header = ["scheduler", "epochs needed", "of random search's", "test error then, %"]
    header += ["regret at its end, points", "epochs at its end"]
    for name in NAMES:
        print(f"\n{name}, {orders} orders: median (least to most)\n")
        print(table(header, _rows(compare(load_curves(name), range(orders)))), flush=True)


if __name__ == "__main__":
    main()
