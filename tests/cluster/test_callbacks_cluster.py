"""Callbacks and loggers of experiments on a cluster, and after their driver was killed."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Fleet, histories, journal, kill, run_config, statuses, steps, until

import dasktune as tune
from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback

pytestmark = pytest.mark.cluster

#: Takes a directory, an address, and this one.
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import dasktune as tune
from cluster_kit import steps
from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback
from test_callbacks_cluster import Ledger
if __name__ == "__main__":
    tune.Tuner(
        steps,
        param_space={"place": sys.argv[1], "steps": 6, "gates": (4,)},
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=tune.RunConfig(
            storage_path=sys.argv[1], name="run", verbose=0, driver_ttl=1.0, checkpoint_period=0.1,
            callbacks=[Ledger(), CSVLoggerCallback(), JsonLoggerCallback()],
        ),
        client=sys.argv[2],
    ).fit()
"""


class Ledger(tune.Callback):
    """Knows every result and end that it was told, in its state."""

    def __init__(self) -> None:
        self.results: list[tuple[str, int]] = []
        self.ends: list[str] = []

    def on_trial_result(self, trial: Any, result: Any, **info: Any) -> None:
        self.results.append((trial.trial_id, result["step"]))

    def on_trial_complete(self, trial: Any, **info: Any) -> None:
        self.ends.append(trial.trial_id)

    def get_state(self) -> dict[str, Any]:
        return {"results": self.results, "ends": self.ends}

    def set_state(self, state: Any) -> None:
        self.results = [tuple(pair) for pair in state["results"]]
        self.ends = state["ends"]


def logged(place: Path, trial_id: str) -> list[int]:
    directory = place / "run" / "trials" / trial_id
    with open(directory / "progress.csv", newline="") as file:
        table = [int(row["step"]) for row in csv.DictReader(file)]
    lines = (directory / "result.json").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == table
    return table


def test_a_callback_gets_every_result_and_loggers_write_it(fleet: Fleet, tmp_path: Path):
    fleet.keep(2)
    ledger = Ledger()
    config = run_config(tmp_path, callbacks=[ledger, CSVLoggerCallback(), JsonLoggerCallback()])
    results = tune.Tuner(
        steps,
        param_space={"place": str(tmp_path), "steps": 5},
        tune_config=tune.TuneConfig(num_samples=3),
        run_config=config,
        client=fleet.address,
    ).fit()
    ids = [result.trial_id for result in results]
    assert Counter(ledger.results) == Counter((key, step) for key in ids for step in range(1, 6))
    assert sorted(ledger.ends) == sorted(ids)
    assert [logged(tmp_path, key) for key in ids] == [[1, 2, 3, 4, 5]] * 3


def test_after_the_death_of_a_driver_no_call_is_doubled_or_missing(fleet: Fleet, tmp_path: Path):
    fleet.keep(2)
    here = str(Path(__file__).parent)
    driver = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), fleet.address, here])

    def stand_at_the_gate() -> bool:
        if not (tmp_path / "run" / "experiment.json").exists():
            return False
        results = journal(tmp_path, event="ResultReported")
        return len({one["trial_id"] for one in results if one["metrics"]["step"] == 3}) == 2

    until(stand_at_the_gate)
    kill(driver)
    (tmp_path / "gate-4").touch()
    tuner = tune.Tuner.restore(tmp_path / "run", steps, client=fleet.address)
    results = tuner.fit()
    assert histories(results) == [[1, 2, 3, 4, 5, 6]] * 2
    assert statuses(results) == {"TERMINATED"}
    ids = [result.trial_id for result in results]
    [ledger, *_] = tuner._run_config.callbacks
    assert sorted(ledger.results) == sorted((key, step) for key in ids for step in range(1, 7))
    assert sorted(ledger.ends) == sorted(ids)
    assert [logged(tmp_path, key) for key in ids] == [[1, 2, 3, 4, 5, 6]] * 2
