"""The core on an encrypted cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import assert_clean, statuses, until
from distributed import Client, LocalCluster, Security
from fault_kit import Bout, pid_of, walk

import dasktune as tune

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two worker processes, and certificates that live in memory only."""
    pytest.importorskip("cryptography")
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        protocol="tls",
        security=Security.temporary(),
        dashboard_address=":0",
    ) as cluster:
        yield cluster


def add_up(config: dict[str, Any]) -> None:
    # More than the trial's own worker is free to run it.
    total = tune.get_client().submit(sum, range(config["number"]), pure=False).result()
    tune.report({"sum": total}, checkpoint=tune.Checkpoint.from_dict({"sum": total}))


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_trials_run_tasks_of_their_own(cluster: LocalCluster, tmp_path: Path, isolation: str) -> None:
    space = {"number": tune.grid_search([1, 2, 3, 4])}
    bout = Bout(add_up, tmp_path, cluster, space=space, isolation=isolation)
    results = bout.tuner.fit()
    assert statuses(results) == {"TERMINATED"}, results[0].error
    assert [result.checkpoint.to_dict()["sum"] for result in results] == [0, 1, 3, 6]
    bout.assert_seen_once(results)


def test_a_killed_worker_costs_time_and_no_result(cluster: LocalCluster, tmp_path: Path) -> None:
    bout = Bout(walk, tmp_path, cluster, num_samples=3)
    with Client(cluster, set_as_default=False) as client:
        assert client.scheduler.address.startswith("tls://")
        with bout.fitting() as future:
            until(lambda: bout.is_walking(trials=2))
            victim = next(iter(bout.where().values()))
            os.kill(pid_of(client, victim), signal.SIGKILL)
            until(lambda: bout.losses)
            bout.go()
            results = future.result(timeout=60)
        bout.assert_exact(results)
        assert_clean(client)
