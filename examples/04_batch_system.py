"""Tune on a batch system: jobs with workers start when trials wait, and end after the trials.

    python examples/04_batch_system.py

With dask-jobqueue and SLURM each worker is a job in the queue. Without SLURM the example
runs on worker processes of this machine. In both cases the cluster begins without a worker and ends
without one; in between it has as many as the trials need, up to a limit.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from typing import Any

from distributed import LocalCluster

import dasktune as tune

MOST_WORKERS = 3


def train(config: dict[str, Any]) -> None:
    """Minimise x**2, and save each step: a job may reach its time limit at any moment."""
    checkpoint = tune.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"step": 0, "x": 10.0}
    for step in range(state["step"] + 1, 21):
        time.sleep(0.1)  # as if this were work
        state = {"step": step, "x": state["x"] * (1 - 2 * config["lr"])}
        tune.report({"x": state["x"]}, checkpoint=tune.Checkpoint.from_dict(state))


def has_slurm() -> bool:
    """Whether a SLURM answers; its commands alone may be installed on a machine without one."""
    sinfo = shutil.which("sinfo")
    return sinfo is not None and subprocess.run([sinfo], capture_output=True, check=False).returncode == 0


def start_cluster() -> Any:
    """Return an adaptive cluster without workers: on SLURM if available, else on this machine."""
    if has_slurm():
        from dask_jobqueue import SLURMCluster

        cluster = SLURMCluster(
            cores=1,
            processes=1,
            memory="2GB",
            walltime="01:00:00",
            # A worker that retires before its job is killed lets its trial save a checkpoint.
            worker_extra_args=["--lifetime", "50m", "--lifetime-stagger", "5m"],
        )
        cluster.adapt(minimum_jobs=0, maximum_jobs=MOST_WORKERS)
        return cluster
    cluster = LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0")
    cluster.adapt(minimum=0, maximum=MOST_WORKERS)
    return cluster


def main() -> None:
    """Run six trials on the workers that the cluster starts."""
    with tempfile.TemporaryDirectory(dir=".") as storage_path, start_cluster() as cluster:
        results = tune.Tuner(
            train,
            param_space={"lr": tune.grid_search([0.01, 0.02, 0.05, 0.1, 0.2, 0.3])},
            tune_config=tune.TuneConfig(metric="x", mode="min"),
            run_config=tune.RunConfig(name="batch", storage_path=storage_path),
            client=cluster,
        ).fit()
        best = results.get_best_result()
        print(f"The best learning rate is {best.config['lr']}: x = {best.metrics['x']:.6f}")


if __name__ == "__main__":
    main()
