"""Schedules that are trained once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    Continue,
    Exploit,
    PopulationBasedTrainingReplay,
    Waiting,
    create_scheduler,
)
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

ROWS: list[list[Any]] = [
    ["b", "z", 2, 2, {"lr": 9}, {"lr": 8}],  # dropped when b became a clone of a
    ["b", "a", 4, 5, {"lr": 0.1}, {"lr": 0.2}],
    ["c", "b", 9, 8, {"lr": 0.2}, {"lr": 0.3}],
]


def replay(folder: Path, rows: list[Any]) -> PopulationBasedTrainingReplay:
    file = folder / "policy.txt"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return PopulationBasedTrainingReplay(str(file))


def trial(name: str = "t", **config: Any) -> Trial:
    resources = PlacementGroupFactory([{"CPU": 1}])
    return Trial(trial_id=name, config=config, resources=resources)


def test_only_the_rows_that_have_led_to_the_last_one_count(tmp_path: Path):
    scheduler = replay(tmp_path, ROWS)
    assert scheduler.config == {"lr": 0.1}
    assert scheduler.changes == [(5, {"lr": 0.2}), (8, {"lr": 0.3})]


def test_the_trial_changes_where_the_schedule_does(tmp_path: Path):
    scheduler, one = replay(tmp_path, ROWS), trial(lr=7)
    [command] = scheduler.on_trial_add(one) or ()
    assert (command.donor, command.config) == ("t", {"lr": 0.1})
    assert scheduler.next_milestones(one) == (Milestone("training_iteration", 5),)
    assert scheduler.on_trial_result(one, {"training_iteration": 4}) == Continue()
    decision = scheduler.on_trial_result(one, {"training_iteration": 5})
    assert isinstance(decision, Exploit)
    assert (decision.donor, decision.config) == ("t", {"lr": 0.2})
    assert scheduler.next_milestones(one) == (Milestone("training_iteration", 8),)
    scheduler.on_trial_result(one, {"training_iteration": 8})
    assert scheduler.next_milestones(one) == ()
    assert scheduler.on_trial_result(one, {"training_iteration": 9}) == Continue()
    assert scheduler.debug_string().endswith("2 of 2 changes")


def test_changes_that_were_jumped_over_are_made_at_once(tmp_path: Path):
    decision = replay(tmp_path, ROWS).on_trial_result(trial(), {"training_iteration": 20})
    assert isinstance(decision, Exploit)
    assert decision.config == {"lr": 0.3}


def test_an_empty_schedule_leaves_the_trial_alone(tmp_path: Path):
    scheduler, one = replay(tmp_path, []), trial(lr=7)
    assert scheduler.on_trial_add(one) is None
    assert scheduler.next_milestones(one) == ()
    assert scheduler.choose_trial_to_run(Waiting({"t": one}, {})) is one


def test_a_second_trial_is_refused(tmp_path: Path):
    scheduler = replay(tmp_path, ROWS)
    scheduler.on_trial_add(trial("first"))
    assert scheduler.on_trial_add(trial("first")) is None
    with pytest.raises(ConfigError, match="num_samples must be 1"):
        scheduler.on_trial_add(trial("second"))


@pytest.mark.parametrize(
    "row", ["no JSON", "3", '["a", "b"]', json.dumps([*ROWS[0][:4], 1, 2]), '[1,2,"x",4,{},{}]']
)
def test_what_is_no_row_is_refused(tmp_path: Path, row: str):
    (tmp_path / "policy.txt").write_text(row)
    with pytest.raises(ConfigError, match="row"):
        PopulationBasedTrainingReplay(tmp_path / "policy.txt")


@pytest.mark.parametrize("file", ["nowhere.txt", 3])
def test_a_file_that_cannot_be_read_is_refused(file: Any):
    with pytest.raises(ConfigError, match="policy_file must be a local file"):
        create_scheduler("pbt_replay", policy_file=file)


def test_a_schedule_continues_where_it_was(tmp_path: Path):
    scheduler, one = replay(tmp_path, ROWS), trial(lr=7)
    scheduler.on_trial_add(one)
    scheduler.on_trial_result(one, {"training_iteration": 5})
    restored = PopulationBasedTrainingReplay(str(tmp_path / "policy.txt"))
    restored.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert restored.next_milestones(one) == (Milestone("training_iteration", 8),)
    with pytest.raises(ConfigError, match="num_samples must be 1"):
        restored.on_trial_add(trial("second"))
