"""The files that say which trial was cloned from which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dasktune.errors import ConfigError
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage

ROWS: list[list[Any]] = [
    ["b", "a", 4, 5, {"lr": 0.1}, {"lr": 0.12}],
    ["c", "b", 8, 7, {"lr": 0.12}, {"lr": float("nan"), "layers": (3, 4)}],
]


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_trial_has_what_has_led_to_it_and_the_experiment_has_all(tmp_path: Path):
    store = ExperimentStore(Storage(str(tmp_path)))
    store.write_policy("b", ROWS[:1], (0,))
    store.write_policy("c", ROWS, (0, 1))
    store.write_policy("c", ROWS, (0, 1))
    store.close()
    last = ["c", "b", 8, 7, {"lr": 0.12}, {"lr": {"$float": "nan"}, "layers": [3, 4]}]
    assert lines(tmp_path / "pbt_global.txt") == [ROWS[0], last]
    assert lines(tmp_path / "pbt_policy_b.txt") == [ROWS[0]]
    assert lines(tmp_path / "pbt_policy_c.txt") == [ROWS[0], last]


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="trial_dir"):
        ExperimentStore(Storage(str(tmp_path))).write_policy("../b", ROWS, (0,))
