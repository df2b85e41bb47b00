"""How many epochs the median stopping rule takes, and how often it stops the best trial.

In each order, 100 configurations of a set of curves are trained, 4 at a time, in virtual time.
Without a scheduler all of them train for 81 epochs; the lowest loss that they ever report is the
goal. A rule has *lost* an order if its lowest loss is worse than the goal. Its *regret* is the
difference, in units of the difference between the goal and the median of the lowest losses of all
configurations.

The default rule compares a trial at each result, the others at epochs 3, 9 and 27 only.

``--sealed`` takes the sealed curves and orders of `benchmarks.reproduce.recipes` instead, once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
from numpy.random import SeedSequence, default_rng
from numpy.typing import NDArray

from benchmarks._report import spread, table
from benchmarks.reproduce.curves import EPOCHS, load, set_names
from benchmarks.reproduce.recipes import SEALED_ORDER
from dasktune.forecast.curve_replay import CurveReplay
from dasktune.forecast.recorded_trial import FullCurve
from dasktune.schedulers import (
    ASHAScheduler,
    MedianStoppingRule,
    PromotingASHAScheduler,
    TrialScheduler,
)
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
    """The share of the epochs that a search has trained, and its regret."""

    share: float
    regret: float


def _curves(name: str, order: int) -> NDArray[np.float64]:
    """Return the losses of the configurations of an order, an array of shape (trials, epochs).

    They are sealed from the order `SEALED_ORDER` on.
    """
    if name in PROBLEMS:
        problem = PROBLEMS[name]()
        return problem.curves(problem.sample(_TRIALS, order), order)
    recorded = load(name, sealed=order >= SEALED_ORDER)
    rows = default_rng(order).permutation(len(recorded.configs))[:_TRIALS]
    seed = recorded.seeds[order % len(recorded.seeds)]
    losses: NDArray[np.float64] = recorded.loss[rows, recorded.axis(seed)]
    return losses


def _replay(losses: NDArray[np.float64], scheduler: TrialScheduler, order: int) -> tuple[int, float]:
    """Return the epochs of a search and the lowest loss that it has seen."""
    # Models differ in speed; otherwise results would arrive in the same order at each epoch.
    pace = default_rng([order, 1]).uniform(0.5, 2, len(losses)).tolist()
    curves = [
        FullCurve(
            [
                {"training_iteration": epoch, "time_total_s": seconds * epoch, "loss": loss}
                for epoch, loss in enumerate(row, 1)
            ],
            "loss",
            "min",
        )
        for row, seconds in zip(losses.tolist(), pace, strict=True)
    ]
    scheduler.set_search_properties("loss", "min")
    scheduler.seed(SeedSequence(order))
    replay = CurveReplay(scheduler, curves, _SLOTS)
    replay.run()
    return replay.iterations, -replay.best


def _run(name: str, rule: str, order: int) -> _Run:
    """Return what a rule costs and loses in an order of a set."""
    losses = _curves(name, order)
    epochs, best = _replay(losses, RULES[rule](), order)
    lowest = losses.min(axis=1)
    # Without a scheduler every trial is complete, so that the goal needs no simulation.
    regret = (best - lowest.min()) / (np.median(lowest) - lowest.min())
    return _Run(epochs / losses.size, float(regret))


def _show(runs: Mapping[tuple[str, str, int], _Run], sets: Sequence[str]) -> None:
    """Print a row for each set and rule, and one for each rule over all sets."""
    rows, totals = [], []
    known = [name for name in sets if any(name == key[0] for key in runs)]
    for name, rule in ((name, rule) for name in known for rule in RULES):
        own = [run for key, run in runs.items() if key[:2] == (name, rule)]
        if own:
            shares = spread([run.share for run in own], ".0%")
            rows.append([name, rule, shares, _lost(own), f"{fmean(run.regret for run in own):.3f}"])
    print("\nshare of the epochs: median (minimum to maximum); orders that lost the best; mean regret\n")
    print(table(["curves", "rule", "epochs", "best lost", "regret"], rows))
    for rule in RULES:
        own = [run for key, run in runs.items() if key[1] == rule]
        if own:
            totals.append([rule, spread([run.share for run in own], ".0%"), _lost(own)])
    print("\nall orders of all sets\n")
    print(table(["rule", "epochs", "best lost"], totals), flush=True)


def _lost(runs: Sequence[_Run]) -> str:
    return f"{sum(run.regret > 0 for run in runs)} of {len(runs)}"


def main(arguments: list[str] | None = None) -> None:
    """Print a row for each set and rule, and one for each rule over all sets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce.median", description=__doc__)
    parser.add_argument("--orders", type=int, default=20, help="orders of each set (20)")
    parser.add_argument("--sets", nargs="+", default=SETS, metavar="name", help=f"{', '.join(SETS)} (all)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), help="rules (all)")
    parser.add_argument("--sealed", action="store_true", help="sealed curves and orders")
    options = parser.parse_args(arguments if arguments is not None else [])
    sets = (*set_names(sealed=True), "crossing") if options.sealed else options.sets
    first = SEALED_ORDER if options.sealed else 0
    keys = product(sets, options.rules, range(first, first + options.orders))
    runs = {key: _run(*key) for key in keys}
    _show(runs, sets)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
