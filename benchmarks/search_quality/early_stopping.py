"""The time until a searcher with a scheduler, or one of them alone, is as good as random search.

The problems are the curves of `benchmarks.reproduce`, with 8 trials at a time. Each side runs for
as long as random search takes for 100 configurations. The error of a network is that of its best
epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import dasktune as tune
from benchmarks.reproduce._result_store import ResultStore
from benchmarks.reproduce.curves import EPOCHS
from benchmarks.search_quality.contenders import RANDOM
from benchmarks.search_quality.problems import Problem
from benchmarks.search_quality.searches import PENDING
from dasktune.schedulers import ASHAScheduler, HyperBandForBOHB
from dasktune.search import OptunaSearch, TuneBOHB
from dasktune.testing import simulate

__all__ = ["PAIRS", "Path", "follow", "random_path", "time_needed"]

#: Configurations of random search.
_TRIALS = 100

#: Of each improvement: the virtual second, and the error.
Path = list[tuple[float, float]]


@dataclass(frozen=True)
class Pair:
    """A searcher and a scheduler, either of which may be left out."""

    search: Callable[[], Any] = lambda: None
    scheduler: Callable[[], Any] = lambda: None


def _asha() -> ASHAScheduler:
    return ASHAScheduler(max_t=EPOCHS, reduction_factor=3)


def _hyperband() -> HyperBandForBOHB:
    return HyperBandForBOHB(max_t=EPOCHS, reduction_factor=3)


#: The pairs by name.
PAIRS: Mapping[str, Pair] = {
    RANDOM: Pair(),
    "ASHA": Pair(scheduler=_asha),
    "TPE": Pair(OptunaSearch),
    "TPE + ASHA": Pair(OptunaSearch, _asha),
    "TPE + ASHA, told as complete": Pair(lambda: OptunaSearch(stopped_trials="complete"), _asha),
    "BOHB": Pair(TuneBOHB, _hyperband),
}


def random_path(problem: Problem, seed: int, trials: int = _TRIALS) -> tuple[Path, float]:
    """Return the improvements of random search, and the virtual seconds that it took."""
    return _follow(problem, Pair(), seed, num_samples=trials)


def follow(problem: Problem, pair: Pair, seed: int, seconds: float) -> Path:
    """Return the improvements of a search within `seconds` virtual seconds."""
    return _follow(problem, pair, seed, num_samples=-1, time_budget_s=seconds)[0]


def time_needed(path: Path, goal: float) -> float:
    """Return when the error was first no more than `goal`; infinity if it never was."""
    return next((time for time, error in path if error <= goal), inf)


def _follow(problem: Problem, pair: Pair, seed: int, **limits: Any) -> tuple[Path, float]:
    path: Path = []
    last = 0.0

    def on_result(time: float, metrics: Mapping[str, Any]) -> None:
        nonlocal last
        last = time
        if not path or metrics["error"] < path[-1][1]:
            path.append((time, metrics["error"]))

    def train(config: dict[str, Any], checkpoint: int | None) -> Any:
        curve, seconds = problem.train(config, seed)
        for epoch in range(checkpoint or 0, len(curve)):
            yield {"error": curve[epoch]}, seconds, epoch + 1

    simulate(
        train,
        param_space=problem.domains(),
        tune_config=tune.TuneConfig(
            metric="error",
            mode="min",
            search_alg=pair.search(),
            scheduler=pair.scheduler(),
            seed=seed,
            **limits,
        ),
        slots=PENDING,
        store=ResultStore(on_result),
    )
    return path, last
