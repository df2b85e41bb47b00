"""Milestones, and what the driver knows of checkpoints: values that survive a journal."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from math import nan

import pytest

from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.milestone import EVERY_RESULT, Milestone, reached


def test_a_checkpoint_record_survives_json():
    record = CheckpointRecord(path="trials/a", index=3, iteration=7, metrics={"loss": 0.5})
    assert CheckpointRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert "loss" not in repr(record)


def test_a_checkpoint_record_keeps_metrics_of_its_own():
    data = CheckpointRecord(path="trials/a", index=0, iteration=1, metrics={"loss": 1}).to_json()
    record = CheckpointRecord.from_json(data)
    data["metrics"]["loss"] = 2
    assert record.metrics == {"loss": 1}


def test_every_result_is_a_milestone_from_the_first():
    assert (Milestone("training_iteration", 0),) == EVERY_RESULT
    assert len({Milestone("t", 1), Milestone("t", 1.0)}) == 1
    with pytest.raises(FrozenInstanceError):
        EVERY_RESULT[0].value = 3


@pytest.mark.parametrize(
    ("result", "waits"),
    [
        ({"epoch": 3, "t": 9.5}, False),
        ({"epoch": 4, "t": 9.5}, True),
        ({"epoch": 3, "t": 10}, True),
        ({"epoch": 3}, True),
        ({"epoch": 3, "t": nan}, True),
        ({"epoch": "3", "t": 9.5}, True),
    ],
)
def test_a_worker_waits_at_any_milestone_and_where_nobody_can_tell(result, waits):
    assert reached((Milestone("epoch", 4), Milestone("t", 10)), result) is waits


def test_without_milestones_a_worker_never_waits():
    assert reached((), {"training_iteration": 10}) is False
    assert reached(EVERY_RESULT, {"training_iteration": 1}) is True
