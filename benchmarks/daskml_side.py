"""Run dask-ml's Hyperband on a model that sleeps, in an interpreter that has dask-ml.

``python -m benchmarks.daskml_side SAMPLES MAX_ITER SEED...`` prints one JSON line for each seed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.sklearn_models import PARAMETERS, Constant, sleeping_data

__all__ = ["measure_daskml"]


def measure_daskml(python: str, samples: int, max_iter: int, seed: int) -> dict[str, float]:
    """Run one search in a separate process, and return its figures."""
    command = [python, "-m", "benchmarks.daskml_side", str(samples), str(max_iter), str(seed)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(samples: int, max_iter: int, seeds: list[int]) -> None:
    import dask.array as da
    from dask_ml.model_selection import HyperbandSearchCV
    from distributed import Client, LocalCluster

    X, y = (da.from_array(one, chunks=-1) for one in sleeping_data(samples))

    def search(seed: int, most: int) -> Any:
        made = HyperbandSearchCV(Constant(), PARAMETERS, max_iter=most, aggressiveness=4, random_state=seed)
        return made.fit(X, y)

    with (
        LocalCluster(n_workers=2, threads_per_worker=4, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        search(0, 1)
        for seed in seeds:
            begun = time.monotonic()
            found = search(seed, max_iter)
            figures = {
                "wall_s": time.monotonic() - begun,
                "best": float(found.best_score_),
                "calls": found.metadata_["partial_fit_calls"],
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [int(seed) for seed in sys.argv[3:]])
