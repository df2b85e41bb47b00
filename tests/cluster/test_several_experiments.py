"""Several experiments on one cluster at the same time, from threads and from processes."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE, Fleet, statuses, until
from distributed import Client, LocalCluster

import dasktune as tune

pytestmark = pytest.mark.cluster

#: CPUs of the only worker.
THREADS = 4

SCRIPT = """
import sys
import dasktune as tune
from test_several_experiments import fit
fit(*sys.argv[1:4], int(sys.argv[4]))
"""


def train(config: dict[str, Any]) -> None:
    """Take part for three results, and note from when until when."""
    since = time.monotonic()
    for step in range(3):
        tune.report({"step": step})
    name = f"{config['cpus']}-{tune.get_context().get_trial_id()}"
    Path(config["place"], name).write_text(f"{config['cpus']} {since} {time.monotonic()}")


def fit(place: str, address: str, name: str, cpus: int) -> tune.ResultGrid:
    return tune.Tuner(
        tune.with_resources(train, {"cpu": cpus}),
        param_space={"cpus": cpus, "place": place},
        tune_config=tune.TuneConfig(num_samples=6),
        run_config=tune.RunConfig(
            storage_path=f"{place}/runs", name=name, verbose=0, isolation="thread", dashboard=False
        ),
        client=address,
    ).fit()


def most_at_once(place: Path) -> int:
    """Return the most CPUs that trials of all experiments have held at one time."""
    stays = [path.read_text().split() for path in place.iterdir() if path.is_file()]
    spans = [(int(cpus), float(since), float(until)) for cpus, since, until in stays]
    return max(sum(cpus for cpus, since, until in spans if since <= now < until) for _, now, _ in spans)


def test_experiments_whose_trials_do_not_fit_beside_each_other_all_finish(
    tmp_path: Path,
) -> None:
    wanted = {"most": 3, "all": 4, "one": 1}
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=THREADS, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        ThreadPoolExecutor(len(wanted)) as pool,
    ):
        address = cluster.scheduler_address
        fits = [pool.submit(fit, str(tmp_path), address, *one) for one in wanted.items()]
        for one in fits:
            results = one.result(timeout=PATIENCE)
            assert statuses(results) == {"TERMINATED"}
            assert [len(result.history) for result in results] == [3] * 6
        assert most_at_once(tmp_path) <= THREADS
        # All that was taken has been given back.
        until(lambda: not any(client.run_on_scheduler(_used).values()))


@pytest.mark.slow
def test_two_drivers_share_a_cluster(tmp_path: Path, fleet: Fleet) -> None:
    fleet.keep(2)
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), fleet.address]
    drivers = [
        subprocess.Popen([*command, name, "1"], cwd=here, stderr=subprocess.PIPE, text=True)
        for name in ("first", "second")
    ]
    for name, driver in zip(("first", "second"), drivers, strict=True):
        _, errors = driver.communicate(timeout=PATIENCE)
        assert driver.returncode == 0, errors
        results = tune.ExperimentAnalysis(tmp_path / "runs" / name)
        assert [len(one.history) for one in results.trials] == [3] * 6


def _used(dask_scheduler: Any) -> dict[str, float]:
    """Return what Dask counts as taken, over all workers."""
    return {
        f"{worker.address} {kind}": amount
        for worker in dask_scheduler.workers.values()
        for kind, amount in worker.used_resources.items()
    }
