"""Experiments that an older version of dasktune has begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distributed import LocalCluster

import dasktune as tune

#: Fields of the configuration that came later.
YOUNGER = (
    "tune_config.trial_name_creator",
    "tune_config.trial_dirname_creator",
    "run_config.restore",
    "run_config.export_formats",
    "run_config.log_to_file",
    "run_config.failure_config.report_timeout_s",
)


def train(config: dict[str, Any]) -> None:
    for x in (1, 2):
        tune.report({"x": x})


def test_an_experiment_that_knows_nothing_of_later_fields_resumes(pair: LocalCluster, tmp_path: Path):
    config = tune.RunConfig(storage_path=str(tmp_path), name="old", verbose=0)
    first = tune.Tuner(train, run_config=config, client=pair).fit()
    setup = tmp_path / "old" / "tuner.json"
    content = json.loads(setup.read_text())
    for name in YOUNGER:
        # What was never there when it was written says nothing.
        content["entries"].pop(name, None)
    setup.write_text(json.dumps(content))
    more = tune.Tuner.restore(
        tmp_path / "old", train, tune_config=tune.TuneConfig(num_samples=2), client=pair
    ).fit()
    assert [len(one.history) for one in more] == [2, 2]
    assert more[0].history == first[0].history
    assert json.loads(setup.read_text())["entries"].keys() >= set(YOUNGER[:2])
