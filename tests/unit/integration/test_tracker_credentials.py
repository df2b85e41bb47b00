"""What proves to a tracking service who somebody is stands in no file of an experiment."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import dasktune as tune
from dasktune.integration.mlflow import MLflowLoggerCallback
from dasktune.integration.wandb import WandbLoggerCallback
from dasktune.storage.experiment.tuner_json import SETUP_FILE, TunerFile
from dasktune.storage.fs.storage import Storage
from dasktune.tuner.saved_setup import setup_of

SECRET = "5ecret0123456789"


@pytest.fixture(autouse=True, scope="module")
def _trackers_are_there() -> None:
    """Import them only in the process that runs these tests: it takes seconds."""
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")


def stored(callback: tune.Callback, directory: Path) -> Any:
    """Return the callback as it comes back, and check that its file has no secret."""
    storage = Storage(str(directory / "exp"))
    run_config = tune.RunConfig(callbacks=[callback])
    setup_of(tune.TuneConfig(), run_config, {}).write(storage)
    content = Path(storage.path(SETUP_FILE)).read_text()
    assert SECRET not in content
    for entry in json.loads(content)["entries"].values():
        assert SECRET.encode() not in base64.b64decode(entry.get("pickle", ""))
    return TunerFile.read(storage).load("run_config.callbacks.0")


def test_a_key_of_wandb_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("WANDB_API_KEY", "")
    callback = WandbLoggerCallback("digits", api_key=SECRET)
    again = stored(callback, tmp_path)
    assert (again.project, again.api_key) == ("digits", None)
    assert callback.api_key == SECRET
    again.setup()
    again.on_experiment_end([])
    assert "set WANDB_API_KEY" in caplog.text
    caplog.clear()
    monkeypatch.setenv("WANDB_API_KEY", "another")
    again.setup()
    again.on_experiment_end([])
    assert caplog.text == ""


def test_a_file_with_a_key_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "")
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    again = stored(WandbLoggerCallback("digits", api_key_file=str(file)), tmp_path)
    assert again.api_key is None
    again.setup()
    again.on_experiment_end([])
    assert again.api_key == SECRET


def test_credentials_of_mlflow_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD", raising=False)
    again = stored(
        MLflowLoggerCallback(
            f"http://me:{SECRET}@host:5000/x",
            registry_uri=f"postgresql://me:{SECRET}@host/db",
            tracking_token=SECRET,
        ),
        tmp_path,
    )
    assert again.tracking_uri == "http://me@host:5000/x"
    assert again.registry_uri == "postgresql://me@host/db"
    assert again.tracking_token is None
    again.setup()
    again.on_experiment_end([])
    assert "MLFLOW_TRACKING_TOKEN" in caplog.text


def test_what_has_no_credentials_comes_back_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    again = stored(MLflowLoggerCallback("sqlite:///runs.db", tags={"a": "b"}), tmp_path)
    assert (again.tracking_uri, again.tags) == ("sqlite:///runs.db", {"a": "b"})
    again.setup()
    again.on_experiment_end([])
    assert caplog.text == ""


def test_they_travel_with_a_driver_that_is_submitted():
    callbacks = [WandbLoggerCallback(api_key=SECRET), MLflowLoggerCallback(tracking_token=SECRET)]
    wandb, mlflow = pickle.loads(pickle.dumps(callbacks))
    assert (wandb.api_key, mlflow.tracking_token) == (SECRET, SECRET)
