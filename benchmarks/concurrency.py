"""Whether trials that sleep or wait run in parallel: ``python -m benchmarks.concurrency``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import trainables
from benchmarks._measure import Figures, Size
from benchmarks.experiments import local_cluster, run, warm_up
from benchmarks.workloads import OURS
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Continue, Decision
from dasktune.trial.trial import Trial

__all__ = ["many", "sleeping_trials", "slots", "threads"]


def sleeping_trials(workers: int, size: Size) -> Figures:
    """Run trials of one second each, and compare the wall time with the ideal one."""
    with local_cluster(workers, size.slots // workers) as cluster:
        warm_up(cluster)
        figures = run(cluster, trainables.second, size).figures()
    ideal = -(-size.trials // size.slots)
    return {**figures, "over_ideal": figures["wall_s"] / ideal}


class ContinueAfterDecision(FIFOScheduler):
    """Continues every trial, but each result waits for the decision."""

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        return Continue()


def many(size: Size) -> Figures:
    """Run all trials at once; each result waits for the scheduler's decision."""
    with local_cluster(2, size.slots // 2) as cluster:
        warm_up(cluster)
        timeline = run(cluster, trainables.waits_for_decisions, size, scheduler=ContinueAfterDecision())
    waits = sorted(timeline.waits)
    return {
        **timeline.figures(),
        "wait_median_s": waits[len(waits) // 2],
        "wait_p99_s": waits[len(waits) * 99 // 100],
        "driver_core_share": timeline.cpu / (timeline.ended - timeline.begun),
    }


def threads(size: Size) -> Figures:
    """Fill the threads of a single worker; one after the other they would take a second each."""
    return sleeping_trials(1, size)


def slots(size: Size) -> Figures:
    """Fill the slots of two workers several times over."""
    return sleeping_trials(2, size)


def main() -> None:
    for name, measure in (("threads", threads), ("slots", slots)):
        size = OURS[name]
        figures = measure(size)
        print(
            f"{size.trials} trials of 1 s on {size.slots} slots ({name}): "
            f"{figures['wall_s']:.2f} s, {figures['over_ideal']:.3f} of the ideal"
        )
    figures = many(OURS["many"])
    print(
        f"{OURS['many'].trials} trials at once, each result waits for its decision: "
        f"median {figures['wait_median_s']:.3f} s, p99 {figures['wait_p99_s']:.3f} s, "
        f"{figures['driver_core_share']:.0%} of a core"
    )


if __name__ == "__main__":
    main()
