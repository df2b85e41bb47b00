"""Tune the orders of a shop with a simulation: no machine learning, and results that are noisy.

A shop orders goods when its stock falls to `level`, up to `target`. Each order, each item in stock
and each customer who leaves without goods costs money. A trial simulates one such rule day by day,
and reports the mean cost so far; ASHA stops rules that are clearly too expensive. On this machine,
with one worker process per CPU (needs NumPy only):

    python examples/13_simulated_shop.py

On a Dask cluster, whose workers also have dasktune:

    python examples/13_simulated_shop.py --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import dasktune as tune
from dasktune.schedulers import ASHAScheduler
from dasktune.search import TuneBOHB

#: Days that one report covers, and the largest number of reports.
DAYS = 20
MAX_REPORTS = 81

#: What things cost: an order, an item in stock for a day, and a customer who leaves without goods.
ORDER, STORAGE, LOST = 40.0, 0.5, 9.0


def days_of_shop(level: int, target: int, seed: int) -> Iterator[float]:
    """Yield the cost of each day. Orders take one to four days, and customers come at random."""
    rng = np.random.default_rng(seed)
    stock, underway = target, {}
    day = 0
    while True:
        stock += underway.pop(day, 0)
        # More customers come at the end of a week.
        wanted = int(rng.poisson(8 if day % 7 < 5 else 16))
        cost = LOST * max(0, wanted - stock)
        stock = max(0, stock - wanted)
        position = stock + sum(underway.values())
        if position <= level and target > position:
            arrival = day + 1 + int(rng.integers(1, 5))
            underway[arrival] = underway.get(arrival, 0) + target - position
            cost += ORDER
        yield cost + STORAGE * stock
        day += 1


def simulate_shop(config: dict[str, Any]) -> None:
    """Report the mean cost of a day so far, after every few days; the workers run this."""
    level = config["level"]
    # Two parameters that depend on each other are easier to search as one and a difference.
    costs = days_of_shop(level, level + config["lot"], seed=config["seed"])
    total = 0.0
    for report in range(1, MAX_REPORTS + 1):
        total += sum(next(costs) for _ in range(DAYS))
        tune.report({"cost": total / (report * DAYS), "days": report * DAYS})


def mean_cost(level: int, lot: int) -> float:
    """Return the mean cost of a day over ten years that no trial has seen."""
    costs = days_of_shop(level, level + lot, seed=2**31)
    return sum(next(costs) for _ in range(3_650)) / 3_650


def main() -> None:
    """Run the search, and compare its rule with one that a person might choose."""
    options = parse_arguments()
    results = tune.Tuner(
        simulate_shop,
        param_space={"level": tune.randint(0, 121), "lot": tune.randint(1, 201), "seed": 1},
        tune_config=tune.TuneConfig(
            metric="cost",
            mode="min",
            num_samples=options.num_samples,
            search_alg=TuneBOHB(),
            scheduler=ASHAScheduler(max_t=MAX_REPORTS, grace_period=3, reduction_factor=3),
            seed=0,
        ),
        run_config=tune.RunConfig(storage_path=options.storage_path),
        client=options.address,
    ).fit()
    best = results.get_best_result().config
    print(f"Best of {len(results)} rules: order {best['lot']} or more when {best['level']} are left.")
    print(f"A day costs {mean_cost(best['level'], best['lot']):.2f} with it, in ten other years.")
    print(f"With orders of 50 when 20 are left, a day costs {mean_cost(20, 50):.2f}.")
    days = sum(result.metrics["days"] for result in results)
    full = len(results) * MAX_REPORTS * DAYS
    print(f"Early stopping saved {1 - days / full:.0%} of the work: {days:,} days, not {full:,}.")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune the orders of a simulated shop.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--storage-path", help="where results go; default: ~/dasktune_results")
    parser.add_argument("--num-samples", type=int, default=60, help="rules; default: 60")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    main()
