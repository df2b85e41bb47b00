from __future__ import annotations

import subprocess
import sys

import pytest
from trial_run_kit import Driver

from dasktune.errors import ConfigError
from dasktune.integration.reporting import BoostingReporter, MetricNames, report_result
from dasktune.trainable.reporting.trial_messages import Ended

TOLD = {"eval-loss": 0.5, "eval-error": 0.1}

#: Runs where none of the packages is installed, and prints what each call raises.
WITHOUT = """
import sys
from importlib import import_module
names = ("xgboost", "lightgbm", "lightning", "pytorch_lightning", "keras", "torch")
sys.modules.update(dict.fromkeys(names))
for module, call in {calls!r}:
    names = vars(import_module("dasktune.integration." + module))
    try:
        eval(call, dict(names))
    except Exception as error:
        print(type(error).__name__, error)
"""

CALLS = [
    ("xgboost", "TuneReportCheckpointCallback()", "XGBoost"),
    ("lightgbm", "TuneReportCheckpointCallback()", "LightGBM"),
    ("lightgbm", "TuneReportCheckpointCallback.get_model(None)", "LightGBM"),
    ("pytorch_lightning", "TuneReportCheckpointCallback()", "PyTorch Lightning"),
    ("pytorch_lightning", "TuneReportCallback()", "PyTorch Lightning"),
    ("pytorch_lightning", "TuneCallback('validation_end')", "PyTorch Lightning"),
    ("keras", "TuneReportCheckpointCallback()", "Keras"),
    ("keras", "TuneReportCheckpointCallback.get_model(None)", "Keras"),
    ("torch", "report_state({}, epoch=1)", "PyTorch"),
    ("torch", "load_state(None, epoch=1)", "PyTorch"),
]


@pytest.mark.parametrize(
    ("metrics", "reported"),
    [
        (None, TOLD),
        ((), TOLD),
        ("eval-loss", {"eval-loss": 0.5}),
        (["eval-error", "eval-loss"], TOLD),
        ({"loss": "eval-loss"}, {"loss": 0.5}),
    ],
)
def test_metrics_are_chosen_and_named_as_the_user_says(metrics, reported):
    assert MetricNames(metrics, "XGBoost").select(TOLD) == reported


@pytest.mark.parametrize("metrics", [3, [3], {"loss": 3}, {3: "loss"}, "", {"loss"}])
def test_what_names_no_metrics_is_refused(metrics):
    with pytest.raises(ConfigError, match="metrics must be a name, a list of names, or a dict"):
        MetricNames(metrics, "XGBoost")


def test_a_metric_that_the_package_does_not_know_is_refused_with_those_that_it_knows():
    names = MetricNames({"loss": "eval-los"}, "XGBoost")
    with pytest.raises(ConfigError, match=r"got \['eval-los'\].*\['eval-error', 'eval-loss'\]"):
        names.select(TOLD)
    assert names.select_available(TOLD) == {}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"frequency": -1}, "frequency must be a number of rounds, or 0, got -1"),
        ({"frequency": True}, "frequency must be"),
        ({"filename": "models/a"}, "filename must be the name of a file"),
        ({"filename": None}, "filename must be"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_training(change, text):
    arguments = {"filename": "model", "frequency": 0, **change}
    with pytest.raises(ConfigError, match=text):
        BoostingReporter(
            MetricNames(None, "XGBoost"),
            checkpoint_at_end=True,
            results_postprocessing_fn=None,
            **arguments,
        )


def test_a_checkpoint_comes_with_its_result_and_has_its_metadata():
    def save(directory):
        with open(f"{directory}/model", "w") as stream:
            stream.write("trained")

    def train(config):
        report_result({"loss": 1.0})
        report_result({"loss": 0.5}, save, metadata={"epoch": 2})

    driver = Driver(train)
    assert isinstance(driver.end(), Ended)
    assert driver.values("loss") == [1.0, 0.5]
    first, second = (result.checkpoint for result in driver.results)
    assert first is None
    storage = driver.run.spec.storage
    assert storage.child(*second.path.split("/")).read_bytes("model") == b"trained"


def test_where_the_packages_are_missing_there_are_still_modules_that_say_so():
    calls = [(module, call) for module, call, _ in CALLS]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(calls=calls)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(CALLS)
    for line, (module, _, package) in zip(lines, CALLS, strict=True):
        assert line.startswith(f"ConfigError {package} cannot be imported (")
        distribution = "lightning" if module.endswith("lightning") else module.rpartition(".")[2]
        assert line.endswith(f"): pip install {distribution}")
