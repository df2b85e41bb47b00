"""Clusters that several tests share."""

from __future__ import annotations

from collections.abc import Iterator

import cloudpickle
import cluster_kit
import pytest
from cluster_kit import Fleet
from distributed import LocalCluster

# What `Client.run` calls there: a worker process cannot import this directory.
cloudpickle.register_pickle_by_value(cluster_kit)


@pytest.fixture(scope="session")
def pair() -> Iterator[LocalCluster]:
    """Two worker processes with a thread each."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A cluster of single processes; each test says how many workers it wants."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.close()
