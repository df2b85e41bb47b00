"""Whether trials that wait do not wait for each other: ``python -m benchmarks.concurrency``."""

from __future__ import annotations

from benchmarks import trainables
from benchmarks._measure import Figures, Size
from benchmarks.experiments import local_cluster, run, warm_up
from benchmarks.workloads import OURS

__all__ = ["sleep_on", "slots", "threads"]


def sleep_on(workers: int, size: Size) -> Figures:
    """Run trials of one second, and compare with as many seconds as they need at best."""
    with local_cluster(workers, size.slots // workers) as cluster:
        warm_up(cluster)
        figures = run(cluster, trainables.second, size).figures()
    ideal = -(-size.trials // size.slots)
    return {**figures, "over_ideal": figures["wall_s"] / ideal}


def threads(size: Size) -> Figures:
    """Fill the threads of a single worker: they would take a second each, one after the other."""
    return sleep_on(1, size)


def slots(size: Size) -> Figures:
    """Fill the slots of two workers several times over."""
    return sleep_on(2, size)


def main() -> None:
    for name, measure in (("threads", threads), ("slots", slots)):
        size = OURS[name]
        figures = measure(size)
        print(
            f"{size.trials} trials of 1 s on {size.slots} slots ({name}): "
            f"{figures['wall_s']:.2f} s, {figures['over_ideal']:.3f} of the ideal"
        )


if __name__ == "__main__":
    main()
