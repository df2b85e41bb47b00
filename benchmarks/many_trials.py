"""What a trial costs the driver when there are many: ``python -m benchmarks.many_trials``.

The trials run on a real cluster of two worker processes, and each row of the table in a separate
driver. The processor time is that of the driver without the scheduler. The memory is the growth of
the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import psutil

from benchmarks import trainables
from benchmarks._measure import Figures, Size
from benchmarks.experiments import local_cluster, run, warm_up

__all__ = ["cost_of_trials"]

_TRIALS = (1_000, 3_000, 10_000)


def cost_of_trials(trials: int, results: int) -> Figures:
    """Run short trials, and return what each of them costs."""
    process = psutil.Process()
    trainable = trainables.noop if results == 1 else trainables.steps
    with local_cluster() as cluster:
        warm_up(cluster)
        before = process.memory_info().rss
        figures = run(cluster, trainable, Size(trials=trials, steps=results)).figures()
        grown = process.memory_info().rss - before
    return {**figures, "rss_bytes_per_trial": grown / trials}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, type=int, metavar=("TRIALS", "RESULTS"), help="one row, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(cost_of_trials(*options.one)))
        return
    print("| trials | results of each | trials/s | driver's processor time | driver's memory |")
    print("|---|---|---|---|---|")
    for results in (1, 10):
        for trials in _TRIALS:
            command = [sys.executable, "-m", "benchmarks.many_trials", "--one", str(trials), str(results)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            figures = json.loads(output.splitlines()[-1])
            print(
                f"| {trials:,} | {results} | {figures['trials_per_s']:,.0f} | "
                f"{figures['driver_cpu_us_per_trial'] / 1000:.2f} ms | "
                f"{figures['rss_bytes_per_trial'] / 1024:.1f} KiB |",
                flush=True,
            )


if __name__ == "__main__":
    main()
