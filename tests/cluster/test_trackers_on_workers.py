"""Trials that use a tracking service themselves, and experiments that are followed by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

import dasktune as tune

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


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
        mlflow = setup_mlflow(config, uri, experiment_name="own", create_experiment_if_not_exists=True)
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


def test_a_trial_on_a_worker_has_a_run_of_wandb_and_resumes_it(pair: LocalCluster, tmp_path: Path):
    pytest.importorskip("wandb")

    def train(config: dict[str, Any]) -> None:
        import os

        import wandb

        from dasktune.integration.wandb import setup_wandb

        os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
        begun = Path(config["home"], f"ids-{config['x']}")
        with setup_wandb(config, project="own", mode="offline", dir=config["home"]) as run:
            run.log({"seen": config["x"]})
            tune.report({"name": run.name, "group": run.group, "x": run.config["x"]})
        wandb.teardown()
        with begun.open("a") as file:
            file.write(f"{run.id}\n")
        if len(begun.read_text().splitlines()) == 1:
            raise RuntimeError("once")

    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2]), "home": str(tmp_path)},
        run_config=tune.RunConfig(
            name="tracked",
            storage_path=str(tmp_path / "results"),
            failure_config=tune.FailureConfig(max_failures=1),
            verbose=0,
        ),
        client=pair,
    ).fit()
    assert results.num_errors == 0
    ids = set()
    for result in results:
        told, x = result.metrics, result.config["x"]
        first, again = (tmp_path / f"ids-{x}").read_text().splitlines()
        assert first == again
        assert first.startswith(result.trial_id)
        assert result.trial_id in told["name"]
        assert (told["group"], told["x"]) == ("tracked", x)
        assert list(tmp_path.glob(f"wandb/offline-run-*-{first}/run-{first}.wandb"))
        ids.add(first)
    assert len(ids) == 2
