"""Nothing is lost, however often and whenever the driver is killed.

``make chaos`` kills a hundred drivers for each of twenty seeds, on each storage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import assert_clean
from distributed import Client, LocalCluster
from driver_kills import DriverKills
from s3_kit import S3Server
from storm import ground

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(3600), pytest.mark.slow]

SEEDS = int(os.environ.get("CHAOS_SEEDS", "0"))
#: A small storm runs with the other slow tests.
DEATHS = 100 if SEEDS else 10

#: Share of the requests to S3 that have a fault.
RATE = 0.03


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two workers that outlive the drivers, with room for the trials of two."""
    directory = str(tmp_path_factory.mktemp("dask"))
    with LocalCluster(
        n_workers=2, threads_per_worker=4, dashboard_address=None, local_directory=directory
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("seed", range(SEEDS or 1))
def test_a_driver_may_be_killed_at_any_moment(tmp_path: Path, cluster: LocalCluster, seed: int):
    storm(tmp_path, cluster, None, seed=seed, steps=10, seconds=0.3)


@pytest.mark.parametrize("seed", range(SEEDS or 1))
def test_a_driver_over_s3_may_be_killed_at_any_moment(
    tmp_path: Path, cluster: LocalCluster, s3: S3Server, seed: int
):
    storm(tmp_path, cluster, s3, seed=seed, steps=8, seconds=0.3)


def storm(place: Path, cluster: LocalCluster, server: S3Server | None, seed: int, **work: Any) -> None:
    """Kill drivers, and check what each of their experiments has left."""
    with ground(place, server, seed, RATE) as at:
        kills = DriverKills(place, at, cluster.scheduler_address, seed=seed, **work)
        try:
            kills.rage(DEATHS)
        finally:
            kills.close()
        print(dict(kills.ends), at.faults)
        with Client(cluster, set_as_default=False) as client:
            assert_clean(client)
