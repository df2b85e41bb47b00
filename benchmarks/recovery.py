"""How soon a trial reports again when its worker is killed: ``python -m benchmarks.recovery``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import trainables
from benchmarks._measure import Figures, Size
from benchmarks.experiments import local_cluster, run, warm_up
from benchmarks.workloads import OURS

__all__ = ["recovery"]


def recovery(size: Size) -> Figures:
    """Return the seconds from the SIGKILL of a trial's worker to the trial's next result."""
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        marker = Path(directory, "killed-at")
        with local_cluster() as cluster:
            warm_up(cluster)
            timeline = run(cluster, trainables.dies_once, size, space={"marker": str(marker)})
        killed = float(marker.read_text())
    return {"kill_to_result_s": min(t for t in timeline.results if t > killed) - killed}


def main() -> None:
    print(f"from SIGKILL to the next result: {recovery(OURS['recovery'])['kill_to_result_s']:.3f} s")


if __name__ == "__main__":
    main()
