"""Run all searches of the benchmark in a few processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.search_quality.contenders import CONTENDERS, RANDOM
from benchmarks.search_quality.early_stopping import PAIRS, follow, random_path, time_needed
from benchmarks.search_quality.figures import Found, Times
from benchmarks.search_quality.problems import CURVES, problem
from benchmarks.search_quality.searches import losses

__all__ = ["Plan", "sweep"]


@dataclass(frozen=True)
class Plan:
    """The searches to run."""

    problems: Sequence[str]
    contenders: Sequence[str]
    seeds: int
    #: Evaluations of each search; slow contenders have half of them.
    budget: int
    #: "searchers" or "early_stopping" for that part only.
    only: str | None = None

    def searches(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield problem, contender, seed and budget."""
        for name in () if self.only == "early_stopping" else self.problems:
            for label in self.contenders:
                budget = self.budget // (2 if CONTENDERS[label].slow else 1)
                for seed in range(self.seeds):
                    yield name, label, seed, budget

    def paths(self) -> Iterator[tuple[str, int]]:
        """Yield problem and seed of each comparison with early stopping."""
        for name in () if self.only == "searchers" else self.problems:
            if name in CURVES:
                for seed in range(self.seeds):
                    yield name, seed


def _regrets(task: tuple[str, str, int, int]) -> list[float]:
    """Return the regret of the best configuration after each evaluation of one search."""
    name, contender, seed, budget = task
    best = problem(name).best(seed)
    found = losses(problem(name), CONTENDERS[contender], seed, budget)
    return (np.minimum.accumulate(found) - best).tolist()  # type: ignore[no-any-return]


def _times(task: tuple[str, int]) -> dict[str, float]:
    """Return the time until each pair was as good as random search, as a share of its time."""
    name, seed = task
    path, seconds = random_path(problem(name), seed)
    goal = path[-1][1]
    paths = {
        label: path if label == RANDOM else follow(problem(name), pair, seed, seconds)
        for label, pair in PAIRS.items()
    }
    return {label: time_needed(one, goal) / seconds for label, one in paths.items()}


def sweep(plan: Plan, jobs: int) -> tuple[Found, Times]:
    """Return the regrets of all searches, and the times of the pairs with early stopping."""
    found: dict[str, dict[str, list[Any]]] = {}
    times: dict[str, dict[str, list[float]]] = {}
    tasks, pairs = list(plan.searches()), list(plan.paths())
    # The processes use all cores, so libraries must not start threads as well.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A process that is forked from one with threads may hang.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        regrets = pool.map(_regrets, tasks, chunksize=5)
        needed = pool.map(_times, pairs)
        for (name, label, _, _), row in zip(tasks, regrets, strict=True):
            found.setdefault(name, {}).setdefault(label, []).append(row)
        for (name, _), row in zip(pairs, needed, strict=True):
            for label, share in row.items():
                times.setdefault(name, {}).setdefault(label, []).append(share)
    arrays = {name: {label: np.array(rows) for label, rows in sides.items()} for name, sides in found.items()}
    return arrays, times
