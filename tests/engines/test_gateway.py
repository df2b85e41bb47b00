"""Experiments on clusters of a real Dask Gateway, whose schedulers are behind its proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE, fitting, journal, until
from engine_kit import assert_complete, gated_tuner, has_package, skip_unless, waiting
from gateway_kit import GatewayServer

import dasktune as tune


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    for package in ("dask_gateway", "dask_gateway_server"):
        skip_unless(has_package(package), f"{package} is needed, which .ci/engines installs")
    server = GatewayServer(tmp_path_factory.mktemp("gateway"))
    yield server
    server.close()


@pytest.fixture
def gateway_cluster(server: GatewayServer) -> Iterator[Any]:
    with server.gateway() as gateway, gateway.new_cluster(shutdown_on_close=True) as cluster:
        yield cluster


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("given", ["cluster", "client"])
def test_an_adaptive_cluster_grows_for_an_experiment(
    gateway_cluster: Any, tmp_path: Path, given: str, isolation: str
) -> None:
    gateway_cluster.adapt(minimum=0, maximum=2)
    client = gateway_cluster if given == "cluster" else gateway_cluster.get_client(set_as_default=False)
    with fitting(gated_tuner(tmp_path, client, isolation=isolation)) as future:
        until(lambda: len(waiting(tmp_path)) == 2)
        (tmp_path / "go").touch()
        results = future.result(timeout=PATIENCE)
    assert_complete(results)
    assert {one["worker"][:6] for one in journal(tmp_path, event="TrialStarted")} == {"tls://"}


def test_a_submitted_experiment_lives_behind_the_proxy(gateway_cluster: Any, tmp_path: Path) -> None:
    gateway_cluster.scale(2)
    gated_tuner(tmp_path, gateway_cluster).submit()
    with tune.attach("run", client=gateway_cluster) as experiment:
        until(lambda: len(waiting(tmp_path)) == 2)
        (tmp_path / "go").touch()
        assert_complete(experiment.result(timeout=PATIENCE))
        experiment.forget()
