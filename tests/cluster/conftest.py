"""Clusters that several tests share."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import cluster_kit
import pytest
from cluster_kit import Fleet
from distributed import LocalCluster, Security

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


@pytest.fixture
def security(tmp_path: Path) -> Security:
    """For an encrypted cluster: one self-signed certificate for all parties."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    path = tmp_path / "both.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", path, "-out", path], check=True, capture_output=True)
    key = path.read_text()
    made = subprocess.run(
        [openssl, "req", "-x509", "-key", path, "-subj", "/CN=localhost"],
        check=True,
        capture_output=True,
        text=True,
    )
    path.write_text(key + made.stdout)
    roles = ("scheduler", "worker", "client")
    files = {f"tls_{role}_{part}": str(path) for role in roles for part in ("cert", "key")}
    return Security(tls_ca_file=str(path), require_encryption=True, **files)
