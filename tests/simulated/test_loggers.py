"""Files of loggers are what the driver knows of the trials, whatever befell it on the way."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from test_callbacks import with_callbacks
from test_restored_experiments import Died, Lab

from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback
from dasktune.storage.fs.storage import Storage


def rows(storage: Storage, trial_id: str) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    directory = storage.child("trials", trial_id)
    table = csv.DictReader(io.StringIO(directory.read_bytes("progress.csv").decode()))
    lines = directory.read_bytes("result.json").splitlines()
    return list(table), [json.loads(line) for line in lines]


def assert_complete(place: Lab, experiment: Any) -> None:
    for key, trial in experiment.trials.items():
        table, lines = rows(place.storage, key)
        assert [float(row["loss"]) for row in table] == [row["loss"] for row in trial.history]
        assert lines == trial.history


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["fifo", "asha", "pbt"])
@pytest.mark.parametrize("lives", [[5, 60], [90], [120, 30, 10]])
def test_files_hold_each_result_once_however_often_the_driver_dies(scheduler: str, lives: list[int]):
    loggers = CSVLoggerCallback(), JsonLoggerCallback()
    place = with_callbacks("files", *loggers, scheduler=scheduler)
    begun = False
    for limit in lives:
        with pytest.raises(Died):
            (place.resume if begun else place.begin)(limit)
        begun = True
    experiment = place.resume()
    assert not place.callbacks.failures
    assert_complete(place, experiment)


def test_what_stood_in_the_files_of_a_dead_driver_does_not_matter():
    place = with_callbacks("damaged", CSVLoggerCallback(), JsonLoggerCallback())
    with pytest.raises(Died):
        place.begin(100)
    trials = place.restore().experiment.trials.values()
    for trial in trials:
        if not trial.status.is_final:
            directory = place.storage.child("trials", trial.trial_id)
            directory.write_bytes("result.json", b'{"training_iteration": 7}\n{"torn')
            directory.write_bytes("progress.csv", b"loss\n1,2,3\n")
    assert_complete(place, place.resume())
