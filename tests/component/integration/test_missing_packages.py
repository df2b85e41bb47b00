"""The integrations where the packages that they are for are not installed."""

from __future__ import annotations

import subprocess
import sys

#: Runs where none of the packages is installed, and prints what each call raises.
WITHOUT = """
import sys
from importlib import import_module
names = ("xgboost", "lightgbm", "lightning", "pytorch_lightning", "keras", "torch", "transformers")
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
    ("torch", "report_sharded_state({}, None)", "PyTorch"),
    ("torch", "load_sharded_state(None, None)", "PyTorch"),
    ("transformers", "TuneReportCheckpointCallback()", "Transformers"),
    ("transformers", "hyperparameter_search(None)", "Transformers"),
]


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
