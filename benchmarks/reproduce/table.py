"""How many epochs each scheduler needs for what random search finds, on recorded curves.

In each of several orders the 500 configurations of a table are tried one after the other, 8 at a
time; a trial's epochs are read from one seed of the table. Random search trains the first 100 of
the order for all 81 epochs. The goal is the lowest validation error that it ever reports. A
scheduler runs the same configurations in the same order, and reaches the goal at the first result
that is as good. The *epochs needed* are those of all trials until then. A scheduler that ends
without reaching the goal has lost, and counts as infinity in the median.

So no scheduler gains by a lucky draw of configurations. But the goal depends on a few rows of the
validation set, and random search has three times as many results to choose from. So the table also
has the epochs after which the mean over all orders of the best error is no more than that of random
search at its end.

The second table of each data set has the opposite: the errors of all after the same epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

import dasktune as tune
from benchmarks._report import lead, spread, table
from benchmarks.reproduce._result_store import ResultStore
from benchmarks.reproduce.curves import CONFIGS, EPOCHS, NAMES, SEEDS, Curves, load_curves
from dasktune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PromotingASHAScheduler,
    SuccessiveHalvingScheduler,
    TrialScheduler,
)
from dasktune.testing import simulate

__all__ = ["BUDGET", "CONTENDERS", "RANDOM_SEARCH", "Search", "Side", "compare", "search", "tried"]

#: How many configurations random search tries.
_RANDOM = 100

#: The epochs of random search in all.
BUDGET = _RANDOM * EPOCHS

RANDOM_SEARCH = "random search"

#: Shares of these epochs after which all are compared.
_SHARES = (0.1, 0.25)

_SLOTS = 8

_ETA = 3

#: The schedulers. Those that change configurations or clone trials cannot be added, because no
#: recorded curve is that of such a trial; `networks` has populations.
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
    """The best error of one search, by the epochs that it has trained."""

    epochs: int = 0
    best: float = inf
    #: The test error of the best one.
    test: float = inf
    #: Of each improvement: the epochs until then, the validation error, and the test error.
    steps: list[tuple[int, float, float]] = field(default_factory=list)

    def on_result(self, time: float, metrics: Mapping[str, Any]) -> None:
        self.epochs += 1
        if metrics["error"] < self.best:
            self.best, self.test = metrics["error"], metrics["test"]
            self.steps.append((self.epochs, self.best, self.test))

    def needed(self, goal: float) -> tuple[float, float]:
        """Return the epochs until the error was no more than `goal`, and the test error then.

        Infinity stands for never.
        """
        found = (step for step in self.steps if step[1] <= goal)
        epochs, _, test = next(found, (inf, inf, self.test))
        return epochs, test

    def at(self, epochs: int) -> tuple[float, float]:
        """Return the lowest error after `epochs`, and the test error of the same network.

        Both are 1 before the first result.
        """
        index = bisect_right(self.steps, epochs, key=lambda step: step[0])
        return self.steps[index - 1][1:] if index else (1.0, 1.0)


def tried(order: int, trials: int = _RANDOM) -> NDArray[np.int64]:
    """Return the first configurations of an order; by default those of random search."""
    return default_rng(order).permutation(CONFIGS)[:trials]


def search(curves: Curves, scheduler: TrialScheduler | None, order: int, trials: int) -> Search:
    """Run a search over the first configurations of an order, with one seed of the table."""
    rows, seed = tried(order, trials), order % SEEDS
    # Networks differ in speed; otherwise results would arrive in the same order at each epoch.
    pace = default_rng([order, 1]).uniform(0.5, 2, trials)
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
        store=ResultStore(found.on_result),
    )
    return found


@dataclass
class Side:
    """The results of one scheduler, one value for each order."""

    searches: list[Search] = field(default_factory=list)
    #: Epochs until the goal, and the test error then.
    needed: list[float] = field(default_factory=list)
    tests: list[float] = field(default_factory=list)

    def needed_on_average(self, goal: float) -> float:
        """Return the epochs until the mean error is no more than `goal`; infinity if never."""
        moments = sorted({step[0] for one in self.searches for step in one.steps})
        reached = (moment for moment in moments if self.mean_error(moment) <= goal)
        return next(reached, inf)

    def mean_error(self, epochs: int) -> float:
        """Return the mean over all orders of the lowest error after `epochs`."""
        return fmean(one.at(epochs)[0] for one in self.searches)


def compare(curves: Curves, orders: Sequence[int], names: Sequence[str] = ()) -> dict[str, Side]:
    """Run random search and the named schedulers in each order; by default all schedulers."""
    sides = {name: Side() for name in (RANDOM_SEARCH, *(names or CONTENDERS))}
    for order in orders:
        random = search(curves, None, order, _RANDOM)
        for name, side in sides.items():
            make = CONTENDERS.get(name)
            own = search(curves, make(), order, len(curves.validation)) if make else random
            needed, test = own.needed(random.best)
            side.searches.append(own)
            side.needed.append(needed)
            side.tests.append(100 * test)
    return sides


def _rows(sides: Mapping[str, Side]) -> list[list[str]]:
    random = sides[RANDOM_SEARCH]
    goal = random.mean_error(BUDGET)
    rows = []
    for name, side in sides.items():
        average = side.needed_on_average(goal)
        rows.append(
            [
                name,
                spread(side.needed, ",.0f"),
                spread([needed / BUDGET for needed in side.needed], ".1%"),
                f"{side.needed.count(inf)} of {len(side.needed)}",
                spread([average / BUDGET], ".1%"),
                spread(side.tests, ".1f"),
                spread([one.epochs for one in side.searches], ",.0f"),
            ]
        )
    return rows


def _rows_at(sides: Mapping[str, Side], epochs: int) -> list[list[str]]:
    """Return the errors of each side after `epochs`, and their difference to random search."""
    errors = {
        name: [[100 * one for one in errors] for errors in zip(*found, strict=True)]
        for name, found in ((name, [one.at(epochs) for one in side.searches]) for name, side in sides.items())
    }
    rows = []
    for name, columns in errors.items():
        row = [f"{epochs:,}", name]
        for own, random in zip(columns, errors[RANDOM_SEARCH], strict=True):
            row += [f"{fmean(own):.2f}", "" if own is random else lead(own, random)]
        rows.append(row)
    return rows


def main(orders: int = 30) -> None:
    header = ["scheduler", "epochs needed", f"of random search's {BUDGET:,}", "lost", "on average"]
    header += ["test error then, %", "epochs in all"]
    equal = ["epochs of each", "scheduler", "validation error, %", "less random search's"]
    equal += ["its test error, %", "less random search's"]
    for name in NAMES:
        sides = compare(load_curves(name), range(orders))
        print(f"\n{name}, {orders} orders: median (minimum to maximum)\n")
        print(table(header, _rows(sides)))
        print(f"\n{name}, {orders} orders: mean, difference of means (95 % interval)\n")
        rows = [row for share in _SHARES for row in _rows_at(sides, round(share * BUDGET))]
        print(table(equal, rows), flush=True)


if __name__ == "__main__":
    main()
