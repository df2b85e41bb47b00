"""Experiments on a cluster from the command line, where each party has only its own certificate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE, assert_clean, fitting, journal, run_config, until
from engine_kit import assert_complete, gated_tuner, waiting
from tls_kit import TlsCluster

import dasktune as tune
from dasktune.errors import ClusterError

SCRIPT = """
import dasktune as tune

def train(config):
    for step in range(1, 4):
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
"""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    cluster = TlsCluster(tmp_path_factory.mktemp("tls"))
    yield cluster
    cluster.close()


def dasktune(cluster: TlsCluster, *arguments: str) -> str:
    """Run a command with the client's certificate in Dask's variables; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "dasktune", *arguments],
        env={**os.environ, **cluster.environment},
        cwd=cluster.directory,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_trial_moves_with_its_checkpoint_and_stays_encrypted(
    tls: TlsCluster, tmp_path: Path, isolation: str
) -> None:
    with tls.client() as client:
        tuner = gated_tuner(tmp_path, client, isolation=isolation)
        with fitting(tuner) as future:
            until(lambda: len(waiting(tmp_path)) == 2)
            victim = journal(tmp_path, event="TrialStarted")[0]["worker"]
            assert victim.startswith("tls://")
            client.run(os._exit, 1, workers=[victim], on_error="ignore")
            # Its nanny starts another worker.
            until(lambda: len(journal(tmp_path, event="TrialStarted")) == 3)
            (tmp_path / "go").touch()
            results = future.result(timeout=PATIENCE)
        assert_complete(results)
        client.wait_for_workers(2, timeout=PATIENCE)
        assert_clean(client)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_trial_runs_tasks_with_the_certificate_of_its_worker(
    tls: TlsCluster, tmp_path: Path, isolation: str
) -> None:
    def add_up(config: dict[str, Any]) -> None:
        client = tune.get_client()
        assert client.scheduler.address.startswith("tls://")
        tune.report({"sum": client.submit(sum, range(config["number"]), pure=False).result()})

    with tls.client() as client:
        results = tune.Tuner(
            add_up,
            param_space={"number": tune.grid_search([2, 3])},
            run_config=run_config(tmp_path, isolation=isolation),
            client=client,
        ).fit()
    assert [result.metrics["sum"] for result in results] == [1, 3]


def test_a_submitted_driver_connects_with_the_certificate_of_its_worker(
    tls: TlsCluster, tmp_path: Path
) -> None:
    with tls.client() as client:
        gated_tuner(tmp_path, client).submit()
        with tune.attach("run", client=client) as experiment:
            until(lambda: len(waiting(tmp_path)) == 2)
            (tmp_path / "go").touch()
            assert_complete(experiment.result(timeout=PATIENCE))
            experiment.forget()


def test_the_commands_obey_the_settings_of_dask(tls: TlsCluster, tmp_path: Path) -> None:
    (tmp_path / "tls_script.py").write_text(SCRIPT)
    told = dasktune(tls, "doctor", "--address", tls.address, "--storage-path", str(tmp_path))
    assert "2 on 1 host" in told
    assert " 0 to fix" in told
    script, place = f"{tmp_path / 'tls_script.py'}:train", str(tmp_path / "runs")
    dasktune(tls, "run", script, "--address", tls.address, "--storage-path", place, "--name", "first")
    assert journal(tmp_path / "runs", "first", event="TrialEnded")
    dasktune(tls, "resume", f"{place}/first", script, "--address", tls.address)
    with tls.client() as client:
        gated_tuner(tmp_path, client, name="gated").submit()
        until(lambda: len(waiting(tmp_path, "gated")) == 2)
        dasktune(tls, "share", "gated", "--address", tls.address, "--weight", "2")

        def weights() -> dict[str, float]:
            told = json.loads(dasktune(tls, "ls", "--address", tls.address, "--format", "json"))
            return {one["name"]: one["weight"] for one in told["experiments"]}

        until(lambda: weights() == {"gated": 2})
        dasktune(tls, "stop", "gated", "--address", tls.address)
        with tune.attach("gated", client=client) as experiment:
            experiment.result(timeout=PATIENCE)
            experiment.forget()


def test_without_a_certificate_the_error_names_the_remedy(tls: TlsCluster, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="carries its security"):
        tune.Tuner(print, run_config=run_config(tmp_path), client=tls.address).fit()
