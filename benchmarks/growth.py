"""What an event costs as experiments grow: ``python -m benchmarks.growth``.

Complete experiments in virtual time, 64 trials at a time: the runner, the searcher, the scheduler
and the journal, whose records are encoded and then discarded. ASHA's trials reach four rungs; those
of median stopping report 100 times, unless they are stopped. Each experiment has a separate
process. Times are its processor time, memory is its peak beyond what it began with.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import dasktune as tune
from benchmarks._measure import Figures, load, machine
from benchmarks.schedulers import NeverStoppingMedianRule
from benchmarks.simulator import CountingStore
from dasktune.schedulers import (
    ASHAScheduler,
    MedianStoppingRule,
    PromotingASHAScheduler,
    TrialScheduler,
)
from dasktune.testing import simulate

__all__ = ["growth"]

_SLOTS = 64

_RUNGS = (1, 4, 16, 64)

_EPOCHS = tuple(range(1, 101))


@dataclass(frozen=True)
class _Case:
    label: str
    make: Callable[[], TrialScheduler]
    #: The iterations at which each trial reports.
    times: tuple[int, ...]
    sizes: tuple[int, ...]


_CASES: Mapping[str, _Case] = {
    "asha": _Case(
        "ASHA, stopping",
        lambda: ASHAScheduler(max_t=64),
        _RUNGS,
        (1_000, 10_000, 100_000),
    ),
    "promoting_asha": _Case(
        "ASHA, promoting",
        lambda: PromotingASHAScheduler(max_t=64),
        _RUNGS,
        (1_000, 10_000, 100_000),
    ),
    "median": _Case(
        "median stopping",
        lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=1),
        _EPOCHS,
        (100, 1_000, 10_000),
    ),
    "never_stopping_median": _Case(
        "median stopping that stops none",
        lambda: NeverStoppingMedianRule(time_attr="training_iteration", grace_period=1),
        _EPOCHS,
        (100, 1_000, 10_000),
    ),
}


def growth(case: str, trials: int) -> Figures:
    """Run one experiment, and return the number of its events and the cost of each."""
    chosen = _CASES[case]

    def curve(
        config: dict[str, Any], checkpoint: int | None
    ) -> Generator[tuple[dict[str, float], float, int], None, None]:
        for step, iteration in enumerate(chosen.times[checkpoint or 0 :], checkpoint or 0):
            noise = math.modf(7919 * config["quality"] * (step + 1))[0]
            loss = config["quality"] + noise / iteration
            yield {"loss": loss, "training_iteration": iteration}, 1.0, step + 1

    store = CountingStore()
    before, begun = _peak_bytes(), time.process_time()
    grid = simulate(
        curve,
        param_space={"quality": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=trials, scheduler=chosen.make(), seed=0
        ),
        slots=_SLOTS,
        saves_on_demand=True,
        store=store,
    )
    seconds = time.process_time() - begun
    assert len(grid) == trials
    return {
        "events": store.records,
        "us_per_event": 1e6 * seconds / store.records,
        "events_per_s": store.records / seconds,
        "peak_bytes": _peak_bytes() - before,
    }


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _in_separate_process(case: str, trials: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.growth", "--one", case, str(trials)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures: Figures = json.loads(output.splitlines()[-1])
    return figures


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument("--one", nargs=2, metavar=("CASE", "TRIALS"))
    options = parser.parse_args(arguments)
    if options.one:
        case, trials = options.one
        print(json.dumps(growth(case, int(trials))))
        return
    about = machine()
    print(f"{about['date']}, {about['cores']} cores, revision {about['revision']}")
    print(f"load {load():.1f}\n")
    print("| scheduler | trials | events | events/s | cost of one | growth of the cost | peak memory |")
    print("|---|---|---|---|---|---|---|")
    for name in options.only:
        first = 0.0
        for trials in _CASES[name].sizes:
            figures = _in_separate_process(name, trials)
            first = first or figures["us_per_event"]
            print(
                f"| {_CASES[name].label} | {trials:,} | {figures['events']:,} | "
                f"{figures['events_per_s']:,.0f} | {figures['us_per_event']:.1f} us | "
                f"{figures['us_per_event'] / first:.2f} | {figures['peak_bytes'] / 2**20:,.0f} MiB |",
                flush=True,
            )
    print(f"\nload {load():.1f}")


if __name__ == "__main__":
    main()
