"""How many epochs each scheduler needs for what random search finds, on recorded curves.

In each of several orders the 500 configurations of a table are tried one after the other, 8 at a
time; a trial's epochs are read from one seed of the table. Random search trains the first 100 of
the order for all 81 epochs. Whatever the lowest validation error is that it ever sees is the goal,
and a scheduler, which meets the same configurations in the same order, has reached it at the first
result that is as good: the *epochs needed* are all that all trials have trained until then. A
scheduler that ends without it has lost, and counts as infinity in the median.

So nobody gains by other luck with the configurations. But the goal hangs on a few rows of the
validation set, and random search has three times as many looks at it. So beside it stands when the
error of the best so far, averaged over all orders, is no more than random search's at its end.

The second table of each data set asks the other way round: what all have found after as many epochs
as each other.
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
from benchmarks.reproduce._watch import Watch
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

#: Its epochs in all.
BUDGET = _RANDOM * EPOCHS

RANDOM_SEARCH = "random search"

#: Shares of them after which all are compared.
_SHARES = (0.1, 0.25)

_SLOTS = 8

_ETA = 3

#: Another scheduler needs no more than a line here, unless it copies or changes configurations:
#: then no curve of a table is its trial's. Populations are in `networks`.
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
    steps: list[tuple[int, float, float]] = field(default_factory=list)

    def look(self, time: float, metrics: Mapping[str, Any]) -> None:
        self.epochs += 1
        if metrics["error"] < self.best:
            self.best, self.test = metrics["error"], metrics["test"]
            self.steps.append((self.epochs, self.best, self.test))

    def needed(self, goal: float) -> tuple[float, float]:
        """Return after how many epochs the error was no more than `goal`, and the test error then.

        Infinity stands for never.
        """
        found = (step for step in self.steps if step[1] <= goal)
        epochs, _, test = next(found, (inf, inf, self.test))
        return epochs, test

    def at(self, epochs: int) -> tuple[float, float]:
        """Return the lowest error after so many epochs, and the test error of the same network.

        Both are 1 before the first result.
        """
        index = bisect_right(self.steps, epochs, key=lambda step: step[0])
        return self.steps[index - 1][1:] if index else (1.0, 1.0)


def tried(order: int, trials: int = _RANDOM) -> NDArray[np.int64]:
    """Return the first configurations of an order; by default those that random search tries."""
    return default_rng(order).permutation(CONFIGS)[:trials]


def search(curves: Curves, scheduler: TrialScheduler | None, order: int, trials: int) -> Search:
    """Try the first configurations of an order, each read from one seed of the table."""
    rows, seed = tried(order, trials), order % SEEDS
    # Networks differ in speed, or results would come in the same order at each epoch.
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
        store=Watch(found.look),
    )
    return found


@dataclass
class Side:
    """What came of one scheduler, one value for each order."""

    searches: list[Search] = field(default_factory=list)
    #: Epochs until the goal, and the test error then.
    needed: list[float] = field(default_factory=list)
    tests: list[float] = field(default_factory=list)

    def needed_on_average(self, goal: float) -> float:
        """Return after how many epochs the mean error is no more than `goal`; infinity if never."""
        moments = sorted({step[0] for one in self.searches for step in one.steps})
        reached = (moment for moment in moments if self.mean_error(moment) <= goal)
        return next(reached, inf)

    def mean_error(self, epochs: int) -> float:
        """Return the mean over all orders of the lowest error after so many epochs."""
        return fmean(one.at(epochs)[0] for one in self.searches)


def compare(curves: Curves, orders: Sequence[int], names: Sequence[str] = ()) -> dict[str, Side]:
    """Return what schedulers need for what random search finds; all of them by default."""
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
    """Return what each has found after so many epochs, and by how much it is ahead."""
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
        print(f"\n{name}, {orders} orders: median (least to most)\n")
        print(table(header, _rows(sides)))
        print(f"\n{name}, {orders} orders: mean, difference of means (95 % interval)\n")
        rows = [row for share in _SHARES for row in _rows_at(sides, round(share * BUDGET))]
        print(table(equal, rows), flush=True)


if __name__ == "__main__":
    main()
