"""Trials that use a tracking service themselves, and experiments that are followed by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

import dasktune as tune

pytestmark = pytest.mark.cluster


def test_trials_on_workers_have_runs_of_mlflow_of_their_own_and_of_the_logger(
    pair: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    from dasktune.integration.mlflow import MLflowLoggerCallback, setup_mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()

    def train(config: dict[str, Any]) -> None:
        import os

        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        mlflow = setup_mlflow(
            config, uri, experiment_name="own", create_experiment_if_not_exists=True
        )
        mlflow.log_metric("seen", config["x"])
        mlflow.end_run()
        tune.report({"loss": config["x"]})

    MlflowClient(uri).create_experiment("own")
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1.0, 2.0])},
        run_config=tune.RunConfig(
            storage_path=str(tmp_path / "results"),
            callbacks=[MLflowLoggerCallback(uri, experiment_name="logged")],
        ),
        client=pair,
    ).fit()
    for experiment, metric in (("own", "seen"), ("logged", "loss")):
        known = MlflowClient(uri).get_experiment_by_name(experiment)
        runs = MlflowClient(uri).search_runs([known.experiment_id])
        assert sorted(run.data.metrics[metric] for run in runs) == [1.0, 2.0]
        assert {run.info.status for run in runs} == {"FINISHED"}
        assert len({run.data.tags["trial_id"] for run in runs}) == 2
