"""Slow and dropped jobs: promoting ASHA compared with synchronous successive halving.

After appendix A.1 of Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys
2020): eta=4, r=1, R=256, brackets of n=256 for successive halving, 25 workers. A job trains a
configuration up to its next rung and is expected to take as many units of time as that rung has of
resource, as if it began from zero. Stragglers: that is multiplied by ``1 + abs(z)`` with z from a
normal distribution of standard deviation sigma. Drops: with probability p in each unit of time a
job is lost. These settings were not compared with the paper's text word by word.

What happens to a dropped job is our choice: it is repeated from the start of its rung, as soon as
there is a worker. So dasktune treats a trial that has lost its worker. Neither side ever waits for
new configurations: successive halving starts another bracket when one has too few jobs for all
workers. That suits it better than one bracket after the other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from numpy.random import default_rng

import dasktune as tune
from benchmarks._report import spread, table
from benchmarks.reproduce._result_store import ResultStore
from dasktune.schedulers import (
    PromotingASHAScheduler,
    SuccessiveHalvingScheduler,
    TrialScheduler,
)
from dasktune.testing import WorkerDied, simulate

__all__ = ["PAPER", "Shape", "Trained", "asha", "halving", "train"]


@dataclass(frozen=True)
class Shape:
    """The size of an experiment; the defaults are the paper's."""

    #: Configurations at the start of a bracket of successive halving.
    n: int = 256
    eta: int = 4
    #: The most resource of a configuration: R.
    top: int = 256
    workers: int = 25
    #: The end of the experiment, in units of time.
    until: float = 2000.0

    @property
    def rungs(self) -> list[int]:
        """The resources at which trials report, from r=1 to R."""
        budgets = [1]
        while budgets[-1] < self.top:
            budgets.append(budgets[-1] * self.eta)
        return budgets


PAPER = Shape()


@dataclass
class Trained:
    """The outcome of an experiment."""

    #: Configurations that were trained to R in time.
    configurations: int = 0
    #: The time of the first of them.
    first: float = inf
    jobs: int = 0
    dropped: int = 0


def asha(shape: Shape) -> TrialScheduler:
    return PromotingASHAScheduler(max_t=shape.top, reduction_factor=shape.eta)


def halving(shape: Shape) -> TrialScheduler:
    return SuccessiveHalvingScheduler(max_t=shape.top, reduction_factor=shape.eta, n_trials=shape.n)


def train(
    make: Callable[[Shape], TrialScheduler],
    sigma: float,
    p: float,
    seed: int,
    shape: Shape = PAPER,
) -> Trained:
    """Run one experiment until its end."""
    rungs, trained = shape.rungs, Trained()
    attempts: Counter[tuple[int, int]] = Counter()

    def configuration(config: dict[str, Any], checkpoint: int | None) -> Any:
        for rung in range(checkpoint or 0, len(rungs)):
            job = config["number"], rung
            attempts[job] += 1
            # Both sides draw the same numbers for a job, in whatever order they run.
            rng = default_rng([seed, *job, attempts[job]])
            seconds = rungs[rung] * (1 + abs(rng.normal(0, sigma)))
            dropped = float(rng.geometric(p)) if p else inf
            trained.jobs += 1
            if dropped < seconds:
                trained.dropped += 1
                # The lost time. The result has no effect, because it is below the next rung.
                yield {"training_iteration": rungs[rung - 1] if rung else 0}, dropped
                raise WorkerDied("the job was dropped")
            loss = config["loss"]
            yield {"training_iteration": rungs[rung], "loss": loss}, seconds, rung + 1

    def on_result(time: float, metrics: Mapping[str, Any]) -> None:
        if metrics["training_iteration"] >= shape.top and time <= shape.until:
            trained.configurations += 1
            trained.first = min(trained.first, time)

    simulate(
        configuration,
        param_space={"number": tune.randint(0, 2**31), "loss": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=-1,
            scheduler=make(shape),
            time_budget_s=shape.until,
            seed=seed,
        ),
        run_config=tune.RunConfig(
            failure_config=tune.FailureConfig(max_worker_losses=2**31),
        ),
        slots=shape.workers,
        store=ResultStore(on_result),
    )
    return trained


SIGMAS = (0.1, 0.56, 1.33)
DROPS = (0.0, 0.005, 0.01)


def main(repeats: int = 25) -> None:
    logging.getLogger("dasktune").setLevel(logging.ERROR)  # each loss is a warning otherwise
    header = ["sigma", "p", "trained to R: ASHA", "successive halving", "ratio of the sums"]
    header += ["first one after: ASHA", "successive halving", "dropped of ASHA's jobs"]
    print(f"\n{repeats} repeats: median (minimum to maximum)\n")
    rows = []
    for sigma in SIGMAS:
        for p in DROPS:
            ours, theirs = (
                [train(make, sigma, p, seed) for seed in range(repeats)] for make in (asha, halving)
            )
            counts = [sum(one.configurations for one in side) for side in (ours, theirs)]
            rows.append(
                [
                    sigma,
                    p,
                    spread([one.configurations for one in ours], ".0f"),
                    spread([one.configurations for one in theirs], ".0f"),
                    f"{counts[0] / counts[1]:.2f}" if counts[1] else "all are ASHA's",
                    spread([one.first for one in ours], ".0f"),
                    spread([one.first for one in theirs], ".0f"),
                    f"{sum(one.dropped for one in ours) / sum(one.jobs for one in ours):.1%}",
                ]
            )
    print(table(header, rows))


if __name__ == "__main__":
    main()
