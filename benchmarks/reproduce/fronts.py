"""Two objectives: the hypervolume that multi-objective ASHA and random search find.

The objectives are those of ZDT1 (Zitzler et al., "Comparison of Multiobjective Evolutionary
Algorithms", 2000) with three variables. A trial reaches them in 27 steps: at step t each objective
is too large by ``1 - t / 27`` times an offset of the trial, which only its last result shows. Both
sides run as many trials at a time for as long, so they train for as many steps. Only trials that
were trained to the end count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any

import dasktune as tune
from benchmarks._report import spread, table
from benchmarks.reproduce._result_store import ResultStore
from dasktune.schedulers import MultiObjectiveASHAScheduler, TrialScheduler
from dasktune.testing import simulate

__all__ = ["REFERENCE", "STEPS", "best_hypervolume", "find_front", "hypervolume", "mo_asha"]

STEPS = 27

#: The reference point of the hypervolume; a point must be better than it to count.
REFERENCE = (1.1, 3.0)

_SLOTS = 8

Point = tuple[float, float]


def hypervolume(points: Iterable[Point], reference: Point = REFERENCE) -> float:
    """Return the area that points dominate up to a reference; both values are minimised."""
    right, highest = reference
    area = 0.0
    for first, second in sorted(points):
        if first < right and second < highest:
            area += (right - first) * (highest - second)
            highest = second
    return area


def best_hypervolume() -> float:
    """Return the hypervolume of the front ``second = 1 - sqrt(first)``, ``first`` in [0, 1]."""
    right, highest = REFERENCE
    return highest - 1 + 2 / 3 + (right - 1) * highest


def objectives(config: Mapping[str, Any]) -> Point:
    """Return the final values of a trial."""
    first = config["x0"]
    g = 1 + 9 * (config["x1"] + config["x2"]) / 2
    return first, g * (1 - sqrt(first / g))


def mo_asha() -> TrialScheduler:
    return MultiObjectiveASHAScheduler(
        metrics=["first", "second"], modes="min", max_t=STEPS, reduction_factor=3
    )


def find_front(scheduler: TrialScheduler | None, seed: int, steps: int) -> list[Point]:
    """Search for `steps` steps of all trials together; return the trials trained to the end."""
    found: list[Point] = []

    def trial(config: dict[str, Any]) -> Any:
        end = objectives(config)
        for step in range(1, STEPS + 1):
            excess = 1 - step / STEPS
            first = end[0] + excess * config["offset0"]
            second = end[1] + excess * config["offset1"]
            yield {"first": first, "second": second}, 1.0

    def on_result(time: float, metrics: Mapping[str, Any]) -> None:
        if metrics["training_iteration"] == STEPS:
            found.append((metrics["first"], metrics["second"]))

    names = ("x0", "x1", "x2", "offset0", "offset1")
    simulate(
        trial,
        param_space={name: tune.uniform(0, 1) for name in names},
        tune_config=tune.TuneConfig(
            num_samples=-1, scheduler=scheduler, time_budget_s=steps / _SLOTS, seed=seed
        ),
        slots=_SLOTS,
        store=ResultStore(on_result),
    )
    return found


def main(repeats: int = 20) -> None:
    print(f"\n{repeats} repeats: median (minimum to maximum)\n")
    rows, best = [], best_hypervolume()
    for trials in (30, 100, 300):
        sides = [
            [find_front(make(), seed, trials * STEPS) for seed in range(repeats)]
            for make in (mo_asha, lambda: None)
        ]
        ours, theirs = ([hypervolume(points) for points in side] for side in sides)
        ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
        row = [trials * STEPS]
        row += [spread([len(points) for points in side], ".0f") for side in sides]
        row += [spread([volume / best for volume in side], ".1%") for side in (ours, theirs)]
        rows.append([*row, spread(ratios, ".2f"), f"{sum(one > 1 for one in ratios)} of {repeats}"])
    header = ["steps", "trained to the end: MO-ASHA", "random search"]
    header += ["of the best hypervolume: MO-ASHA", "random search", "ratio", "MO-ASHA is ahead"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
