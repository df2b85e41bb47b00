"""Two experiments on one cluster: ``python -m benchmarks.several_experiments [SECONDS]``.

The first experiment has trials without end, and the second one joins. The figures are the seconds
from the begin of the second driver until its first trial begins, the share of the CPU time of each
experiment from then on, and the share of all trials together.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from distributed import LocalCluster

import dasktune as tune
from benchmarks._measure import Figures

__all__ = ["several_experiments"]


class _Case(NamedTuple):
    """Two experiments: seconds and CPUs of a trial, and the weight of the first."""

    threads: int
    seconds: tuple[float, float]
    cpus: tuple[int, int] = (1, 1)
    weight: float = 1.0


#: Two workers each.
_CASES = {
    "equal": _Case(1, (0.2, 0.2)),
    "weights_2_to_1": _Case(1, (0.2, 0.2), weight=2.0),
    "long_beside_short": _Case(2, (2.0, 0.2)),
    "large_among_small": _Case(2, (0.5, 1.0), cpus=(1, 2)),
}


def _trial(config: dict[str, Any]) -> dict[str, float]:
    begun = time.time()
    time.sleep(config["seconds"])
    with Path(config["log"]).open("a") as log:
        log.write(f"{begun} {time.time()}\n")
    return {"begun": begun}


def _fit(address: str, place: str, which: int, case: _Case, budget: float) -> None:
    # The search space must have a domain; the trials are all alike.
    space = {
        "x": tune.uniform(0, 1),
        "seconds": case.seconds[which],
        "log": f"{place}/log-{which}",
    }
    options = {"weight": case.weight} if case.weight != 1 and not which else {}
    tune.Tuner(
        tune.with_resources(_trial, {"cpu": case.cpus[which]}),
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=100_000, time_budget_s=budget),
        run_config=tune.RunConfig(
            storage_path=place, name=str(which), verbose=0, dashboard=False, isolation="thread", **options
        ),
        client=address,
    ).fit()


def _spans(place: str, which: int) -> list[tuple[float, float]]:
    path = Path(place, f"log-{which}")
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(begun), float(ended)) for begun, ended in map(str.split, lines)]


def _measure(case: _Case, seconds: float) -> tuple[float, list[float]]:
    """Return how long the second experiment waited, and both shares of the CPU time."""
    with (
        TemporaryDirectory() as place,
        LocalCluster(n_workers=2, threads_per_worker=case.threads, dashboard_address=":0") as cluster,
    ):
        address = cluster.scheduler_address
        budgets = seconds + 10, seconds + 5
        drivers = [
            threading.Thread(target=_fit, args=(address, place, which, case, budgets[which]))
            for which in range(2)
        ]
        drivers[0].start()
        while len(_spans(place, 0)) < 4 * case.threads:
            time.sleep(0.05)
        joined = time.time()
        drivers[1].start()
        for driver in drivers:
            driver.join()
        both = [_spans(place, which) for which in range(2)]
    first = min((begun for begun, _ in both[1]), default=float("inf"))
    since, until = first + 1, first + seconds
    capacity = 2 * case.threads * (until - since)
    shares = [
        sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in spans) * cpus / capacity
        for spans, cpus in zip(both, case.cpus, strict=True)
    ]
    return first - joined, shares


def several_experiments(seconds: float = 20.0) -> Figures:
    """Return the figures of all cases."""
    figures: Figures = {}
    for name, case in _CASES.items():
        waited, (first, second) = _measure(case, seconds)
        figures[f"{name}_wait_s"] = waited
        figures[f"{name}_first_share"] = first
        figures[f"{name}_second_share"] = second
        figures[f"{name}_busy"] = first + second
    return figures


if __name__ == "__main__":
    for figure, value in several_experiments(*map(float, sys.argv[1:2])).items():
        print(f"{figure}: {value:.3g}")
