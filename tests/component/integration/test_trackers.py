"""Runs of the real MLflow and of the real wandb, both without a server."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.callback import TrialStorage, TrialViews
from dasktune.errors import ConfigError
from dasktune.integration import mlflow as of_mlflow
from dasktune.integration import wandb as of_wandb
from dasktune.integration.mlflow import MLflowLoggerCallback, setup_mlflow
from dasktune.integration.wandb import WandbLoggerCallback, setup_wandb
from dasktune.logger.trial_logger import TrialLoggerCallback
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage
from dasktune.trainable import TuneContext
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


class Drive:
    """One trial, and the drivers that it has one after the other."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        resources = PlacementGroupFactory([{"CPU": 1}])
        self.trial = Trial(trial_id="a_00000", config=config, resources=resources)
        trial_storage = TrialStorage(
            trainable_name="train",
            storage=Storage(str(directory / "experiment")),
            checkpoint=lambda record: Checkpoint(str(directory / "checkpoint")),
        )
        self.trials = TrialViews({"a_00000": self.trial}, trial_storage)

    def begin(self, logger: TrialLoggerCallback) -> None:
        logger.setup()
        self.log = logger.open_log(self.trials[0].present)
        self.log.on_restart()

    def report(self, **metrics: Any) -> None:
        row = {"training_iteration": len(self.trial.history) + 1, "timestamp": 100, **metrics}
        self.trial.history.append(row)

    def go_back(self, rows: int) -> None:
        self.settle()
        self.trial.history.cut_back(rows)
        self.log.on_restart()

    def settle(self) -> None:
        """Send what is new, as the thread does."""
        self.log.write()

    def end(self, status: TrialStatus = TrialStatus.TERMINATED) -> None:
        self.trial.status = status
        self.log.end()
        self.log.write(retry=True)

    def interrupt(self) -> None:
        self.log.write(retry=True)
        self.log.close()


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    return Drive(tmp_path, {"lr": 0.5, "net": {"depth": 3}, "a+b": "x"})


# MLflow


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "runs").as_uri()


def only_run(uri: str, name: str = "dasktune") -> Any:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    return run


def points(uri: str, metric: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    history = MlflowClient(uri).get_metric_history(only_run(uri).info.run_id, metric)
    return sorted((point.step, point.value) for point in history)


@pytest.mark.slow
def test_a_trial_is_a_run_of_mlflow_with_parameters_and_numbers(drive: Drive, uri: str):
    drive.begin(MLflowLoggerCallback(uri, tags={"team": "a"}))
    drive.report(loss=0.5, text="no number", low=float("-inf"))
    drive.settle()
    drive.report(loss=0.25, eval={"acc@1": 0.75})
    drive.end()
    run = only_run(uri)
    assert run.data.params == {"lr": "0.5", "net/depth": "3", "a_b": "x"}
    assert points(uri, "loss") == [(1, 0.5), (2, 0.25)]
    assert points(uri, "eval/acc_1") == [(2, 0.75)]
    assert not {"text", "low"} & run.data.metrics.keys()
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "train_a_00000"
    assert (run.data.tags["team"], run.data.tags["trial_id"]) == ("a", "a_00000")


def test_a_failed_trial_is_a_failed_run(drive: Drive, uri: str):
    drive.begin(MLflowLoggerCallback(uri))
    drive.report(loss=0.5)
    drive.end(TrialStatus.ERROR)
    assert only_run(uri).info.status == "FAILED"


def test_a_later_driver_resumes_the_run_and_sends_nothing_twice(drive: Drive, uri: str):
    drive.begin(MLflowLoggerCallback(uri))
    drive.report(loss=3.0)
    drive.report(loss=2.0)
    drive.interrupt()
    assert only_run(uri).info.status == "KILLED"
    drive.begin(MLflowLoggerCallback(uri))
    drive.report(loss=1.0)
    drive.settle()
    assert only_run(uri).info.status == "RUNNING"
    drive.end()
    assert points(uri, "loss") == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_what_a_clone_reports_is_sent_for_the_iterations_that_it_went_back(drive: Drive, uri: str):
    drive.begin(MLflowLoggerCallback(uri, log_params_on_trial_end=True))
    for loss in (3.0, 2.0, 1.0):
        drive.report(loss=loss)
    drive.go_back(1)
    drive.trial.config["lr"] = 0.1
    drive.report(loss=0.5)
    drive.end()
    assert points(uri, "loss") == [(1, 3.0), (2, 0.5), (2, 2.0), (3, 1.0)]
    assert only_run(uri).data.params["lr"] == "0.1"


def test_many_metrics_and_parameters_take_several_requests(tmp_path: Path, uri: str):
    drive = Drive(tmp_path, {f"p{number}": number for number in range(250)})
    drive.begin(MLflowLoggerCallback(uri, experiment_name="wide"))
    drive.report(**{f"m{number}": float(number) for number in range(1500)})
    drive.end()
    run = only_run(uri, "wide")
    assert len(run.data.params) == 250
    assert run.data.metrics["m1499"] == 1499.0


# wandb


@pytest.fixture
def wandb_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    wandb = pytest.importorskip("wandb")
    for name, value in {"SILENT": "true", "ERROR_REPORTING": "false", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    home = tmp_path / "home"
    home.mkdir()
    yield home
    wandb.teardown()


def offline(home: Path, **options: Any) -> WandbLoggerCallback:
    return WandbLoggerCallback(project="p", mode="offline", dir=str(home), **options)


def logged(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file of wandb: LevelDB's format of logs, after a header."""
    place, parts = 7, b""
    while place < len(data):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole, or its last part
            yield parts
            parts = b""


def records(home: Path) -> list[list[Any]]:
    """Return what wandb has written, for each run file in the order of their making."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its service has written everything when it has ended
    paths = sorted(home.glob("wandb/offline-run-*/*.wandb"), key=os.path.getmtime)
    return [[Record.FromString(part) for part in logged(path.read_bytes())] for path in paths]


def rows(run: list[Any], *names: str) -> list[list[Any]]:
    found = []
    for record in run:
        if record.WhichOneof("record_type") == "history":
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            found.append([row.get(name) for name in names])
    return found


@pytest.mark.slow
def test_a_trial_is_a_run_of_wandb(drive: Drive, wandb_home: Path):
    drive.begin(offline(wandb_home, excludes=["secret", "a+b"], log_config=True))
    drive.report(loss=0.5, secret=1, shape=(2, 3))
    drive.report(loss=0.25, eval={"acc": 0.75})
    drive.end()
    (run,) = records(wandb_home)
    got = rows(run, "training_iteration", "loss", "eval/acc", "secret", "shape")
    assert got == [[1, 0.5, None, None, None], [2, 0.25, 0.75, None, None]]
    (about,) = (record.run for record in run if record.WhichOneof("record_type") == "run")
    told = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert {"lr": 0.5, "net/depth": 3}.items() <= told.items()
    assert "a+b" not in told
    assert (about.project, about.run_group, about.display_name) == ("p", "train", "train_a_00000")
    (end,) = (record.exit for record in run if record.WhichOneof("record_type") == "exit")
    assert end.exit_code == 0


def test_two_drivers_of_a_trial_write_to_the_same_run_of_wandb(drive: Drive, wandb_home: Path):
    drive.begin(offline(wandb_home))
    drive.report(loss=2.0)
    drive.interrupt()
    drive.begin(offline(wandb_home))
    drive.report(loss=1.0)
    drive.end(TrialStatus.ERROR)
    first, second = records(wandb_home)
    names = {record.run.run_id for record in first + second if record.WhichOneof("record_type") == "run"}
    assert len(names) == 1
    (end,) = (record.exit for record in second if record.WhichOneof("record_type") == "exit")
    assert end.exit_code == 1


def test_arguments_of_the_wandb_logger_are_checked(tmp_path: Path):
    pytest.importorskip("wandb")
    with pytest.raises(ConfigError, match=r"kwargs must be without arguments that the trial .*\['name'\]"):
        WandbLoggerCallback(name="mine")
    with pytest.raises(ConfigError, match="api_key must be left out") as caught:
        WandbLoggerCallback(api_key="s3cret", api_key_file="key.txt")
    assert "s3cret" not in str(caught.value)
    (tmp_path / "key.txt").write_text("s3cret\n")
    assert WandbLoggerCallback(api_key_file=str(tmp_path / "key.txt")).api_key == "s3cret"


# Runs that a trial begins itself


@pytest.fixture
def _in_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TrialSpec(
        trial_id="a_00000",
        incarnation=1,
        resources=PlacementGroupFactory([{"CPU": 1}]),
        storage=Storage(str(tmp_path)),
        trial_dir="a_00000",
        experiment_name="exp",
        trial_name="train_a_00000",
        secrets=(("hunter2", "KEY"),),
    )
    for module in (of_mlflow, of_wandb):
        monkeypatch.setattr(module, "get_context", lambda: TuneContext(spec))


@pytest.mark.slow
@pytest.mark.usefixtures("_in_a_trial")
def test_an_experiment_that_is_passed_wins_over_the_environment(uri: str, monkeypatch: pytest.MonkeyPatch):
    from mlflow import MlflowClient

    ids = {name: MlflowClient(uri).create_experiment(name) for name in ("env", "named", "by_id")}
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", ids["env"])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "env")
    both = {"experiment_id": ids["by_id"], "experiment_name": "named"}  # as with Ray Tune, the id wins
    given: tuple[dict[str, str], ...] = ({}, {"experiment_name": "named"}, both)
    for about in given:
        setup_mlflow({"api_key": "hunter2", "lr": 0.5}, uri, **about).end_run()  # type: ignore[arg-type]
    for name in ids:
        assert only_run(uri, name).data.params == {"api_key": "secret('KEY')", "lr": "0.5"}


@pytest.mark.usefixtures("_in_a_trial")
def test_a_run_of_wandb_that_a_trial_begins_has_names_of_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(of_wandb, "_wandb", lambda: SimpleNamespace(init=dict))
    run = setup_wandb({"login": {"password": "hunter2", "user": "me"}})
    assert run["config"] == {"login": {"password": "secret('KEY')", "user": "me"}}
