"""Clusters that several tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import cloudpickle
import cluster_kit
import dask
import pytest
from cluster_kit import Fleet, SharedPair, make_certificate
from distributed import Client, LocalCluster, Security

# For the benchmarks; at the end, so that the checkout does not hide what is installed.
sys.path.append(str(Path(__file__).parents[2]))

# `make test-oldest` has no scikit-learn, and these modules subclass an estimator of it. Do not try
# to import it: `tests/sklearn` can be imported by that name.
if not any(distributions(name="scikit-learn")):
    collect_ignore = ["test_secrets_of_searches.py"]

# What `Client.run` calls there: a worker process cannot import this directory.
cloudpickle.register_pickle_by_value(cluster_kit)


@pytest.fixture(autouse=True, scope="session")
def _lost_workers_may_take_their_time() -> Iterator[None]:
    """Let a worker that a test kills come back however slow the machine is.

    A cluster object drops a worker that is not back 15 s after it was lost, even if it has only
    been killed once more by then.
    """
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}):
        yield


@pytest.fixture(autouse=True)
def _disregard_threads_of_other_tests() -> None:
    """Some tests leave threads on purpose, and the workers of others run in this process."""
    cluster_kit.disregard_threads()


@pytest.fixture(scope="module")
def shared_pair(folder_scope: Any) -> SharedPair:
    """The cluster of :func:`pair`, for fixtures of modules."""
    pair: SharedPair = folder_scope.shared("pair", lambda stack: stack.enter_context(closing(SharedPair())))
    return pair


@pytest.fixture
def pair(shared_pair: SharedPair, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Two worker processes with a thread each, which the tests share."""
    failed_before = request.session.testsfailed
    yield shared_pair.cluster()
    if request.session.testsfailed > failed_before:
        # Its driver may still be running, and would keep the workers from all tests that follow.
        shared_pair.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A cluster of single processes; each test says how many workers it wants."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.close()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster of the module, which is clean at the end of the test."""
    with Client(cluster, set_as_default=False) as client:
        yield client
        cluster_kit.assert_clean(client)


@pytest.fixture
def security(tmp_path: Path) -> Security:
    """For an encrypted cluster: one self-signed certificate for all parties."""
    path = make_certificate(tmp_path)
    roles = ("scheduler", "worker", "client")
    files = {f"tls_{role}_{part}": str(path) for role in roles for part in ("cert", "key")}
    return Security(tls_ca_file=str(path), require_encryption=True, **files)
