"""Experiments on workers that Dask's SSHCluster starts through a real SSH server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import PATIENCE, assert_clean, fitting, journal, until
from distributed import Client
from engine_kit import assert_complete, gated_tuner, has_package, skip_unless, waiting
from slurm_kit import program
from ssh_kit import SshServer

import dasktune as tune


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    skip_unless(program("sshd") is not None, "an SSH server is needed, which .ci/engines installs")
    skip_unless(has_package("asyncssh"), "asyncssh is needed, which .ci/engines installs")
    server = SshServer(tmp_path_factory.mktemp("ssh"))
    yield server
    server.close()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_killed_worker_costs_no_result(ssh: SshServer, tmp_path: Path, isolation: str) -> None:
    with ssh.cluster(workers=2) as cluster, Client(cluster, set_as_default=False) as client:
        with fitting(gated_tuner(tmp_path, cluster, isolation=isolation)) as future:
            until(lambda: len(waiting(tmp_path)) == 2)
            victim = journal(tmp_path, event="TrialStarted")[0]["worker"]
            client.run(os._exit, 1, workers=[victim], on_error="ignore")
            # Its nanny starts another worker.
            until(lambda: len(journal(tmp_path, event="TrialStarted")) == 3)
            (tmp_path / "go").touch()
            results = future.result(timeout=PATIENCE)
        assert_complete(results)
        assert_clean(client)


def test_a_closed_connection_costs_no_result(ssh: SshServer, tmp_path: Path) -> None:
    with ssh.cluster(workers=2) as cluster:
        with fitting(gated_tuner(tmp_path, cluster)) as future:
            until(lambda: len(waiting(tmp_path)) == 2)
            # Whether the worker ends then, or runs on alone: each result comes exactly once.
            cluster.workers[0].connection.abort()
            (tmp_path / "go").touch()
            results = future.result(timeout=PATIENCE)
        assert_complete(results)


def test_a_submitted_experiment_runs_on_it(ssh: SshServer, tmp_path: Path) -> None:
    with ssh.cluster(workers=2) as cluster:
        gated_tuner(tmp_path, cluster).submit()
        with tune.attach("run", client=cluster.scheduler_address) as experiment:
            until(lambda: len(waiting(tmp_path)) == 2)
            (tmp_path / "go").touch()
            assert_complete(experiment.result(timeout=PATIENCE))
            experiment.forget()
