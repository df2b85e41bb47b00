"""What other users of the cluster do is no reason to lose it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_kit import fitting, histories, restarts, run_config, until, wait_for_file
from distributed import Client, LocalCluster

import dasktune as tune

pytestmark = pytest.mark.cluster


def test_a_client_that_copies_its_data_does_not_cut_the_driver_off(
    pair: LocalCluster, tmp_path: Path
) -> None:
    def trainable(config: dict[str, Any]) -> dict[str, int]:
        (tmp_path / "runs").touch()
        wait_for_file(tmp_path / "go-on")
        return {"step": 1}

    tuner = tune.Tuner(trainable, run_config=run_config(tmp_path), client=pair)
    with fitting(tuner) as running:
        until((tmp_path / "runs").exists)
        with Client(pair, set_as_default=False) as client:
            [data] = client.scatter([1])
            client.replicate([data])
        (tmp_path / "go-on").touch()
    assert histories(running.result()) == [[1]]
    assert len(restarts(tmp_path)) == 1
