"""One search in virtual time, 8 trials at a time: by dasktune, or by Optuna's own loop."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import dasktune as tune
from benchmarks.reproduce._result_store import ResultStore
from benchmarks.search_quality.contenders import Contender, sampler
from benchmarks.search_quality.problems import Problem, Range
from dasktune.testing import simulate

__all__ = ["PENDING", "losses", "optuna_losses", "our_losses"]

#: Trials at a time.
PENDING = 8


def losses(problem: Problem, contender: Contender, seed: int, budget: int) -> list[float]:
    """Return the losses of the trials of a search, in the order in which they ended."""
    if contender.make is None:
        return optuna_losses(problem, sampler(contender.sampler, seed), seed, budget)
    return our_losses(problem, contender.make(seed), seed, budget)


def our_losses(problem: Problem, search_alg: Any, seed: int, budget: int) -> list[float]:
    """Return the losses of a search by dasktune's runner."""

    def train(config: Mapping[str, Any]) -> Any:
        curve, seconds = problem.train(config, seed)
        yield {"loss": curve[-1]}, seconds * len(curve)

    found: list[float] = []
    simulate(
        train,
        param_space=problem.domains(),
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=budget, search_alg=search_alg, seed=seed
        ),
        slots=PENDING,
        store=ResultStore(lambda time, metrics: found.append(metrics["loss"])),
    )
    return found


def optuna_losses(problem: Problem, sampler: Any, seed: int, budget: int) -> list[float]:
    """Return the losses of a sampler in Optuna's ask-and-tell loop."""
    import optuna

    study = optuna.create_study(sampler=sampler)
    distributions = {name: _distribution(one) for name, one in problem.space.items()}
    running: list[tuple[float, int, Any, float]] = []
    found: list[float] = []

    def begin(now: float) -> None:
        trial = study.ask(distributions)
        curve, seconds = problem.train(trial.params, seed)
        heapq.heappush(running, (now + seconds * len(curve), trial.number, trial, curve[-1]))

    for _ in range(min(PENDING, budget)):
        begin(0.0)
    while running:
        now, _, trial, loss = heapq.heappop(running)
        study.tell(trial, loss)
        found.append(loss)
        if len(found) + len(running) < budget:
            begin(now)
    return found


def _distribution(one: Any) -> Any:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if not isinstance(one, Range):
        return CategoricalDistribution(one)
    if one.integer:
        return IntDistribution(int(one.low), int(one.high), log=one.log)
    return FloatDistribution(one.low, one.high, log=one.log)
