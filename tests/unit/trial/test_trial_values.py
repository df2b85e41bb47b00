"""Milestones, and what the driver knows of checkpoints: values that survive a journal."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from math import nan
from typing import Any

import pytest

from dasktune.errors import StorageError
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.milestone import EVERY_RESULT, Milestone, reached
from dasktune.trial.names import checkpoint_place, is_one_name

PATH = "trials/a/checkpoint_000003_i02"


@pytest.mark.parametrize("kind", CheckpointKind)
def test_a_checkpoint_record_survives_json(kind: CheckpointKind):
    record = CheckpointRecord(path=PATH, index=3, iteration=7, metrics={"loss": 0.5}, kind=kind)
    assert CheckpointRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert "loss" not in repr(record)


def test_a_checkpoint_record_may_say_how_long_it_took_to_write_it():
    record = CheckpointRecord(path=PATH, index=3, iteration=7, seconds=0.25)
    data = json.loads(json.dumps(record.to_json()))
    assert CheckpointRecord.from_json(data).seconds == 0.25
    # It says nothing about which checkpoint it is.
    assert record == CheckpointRecord(path=PATH, index=3, iteration=7)
    assert "seconds" not in CheckpointRecord(path=PATH, index=3, iteration=7).to_json()
    for odd in ("0.25", True, -1, nan, 1e300, None):
        assert CheckpointRecord.from_json({**data, "seconds": odd}).seconds is None


def test_a_checkpoint_record_keeps_metrics_of_its_own():
    data = CheckpointRecord(path=PATH, index=3, iteration=1, metrics={"loss": 1}).to_json()
    record = CheckpointRecord.from_json(data)
    data["metrics"]["loss"] = 2
    assert record.metrics == {"loss": 1}


WHOLE = {"path": PATH, "index": 3, "iteration": 7, "metrics": {}}


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        [],
        "path",
        {},
        {"path": PATH},
        {**WHOLE, "path": 3},
        {**WHOLE, "path": f"/{PATH}"},
        {**WHOLE, "path": f"{PATH}/"},
        {**WHOLE, "path": f"{PATH}\n"},
        {**WHOLE, "path": "trials/../checkpoint_000003_i02"},
        {**WHOLE, "path": "trials/./checkpoint_000003_i02"},
        {**WHOLE, "path": "trials//checkpoint_000003_i02"},
        {**WHOLE, "path": "trials/a/b/checkpoint_000003_i02"},
        {**WHOLE, "path": "trials/a\\b/checkpoint_000003_i02"},
        {**WHOLE, "path": "trials/a\0b/checkpoint_000003_i02"},
        {**WHOLE, "path": "trials/a/checkpoint_3_i2"},
        {**WHOLE, "path": "trials/a/checkpoint_0000003_i02"},
        {**WHOLE, "path": "trials/a/checkpoint_\u0660\u0660\u0660\u0660\u0660\u0663_i02"},
        {**WHOLE, "path": f"trials/{'a' * 256}/checkpoint_000003_i02"},
        {**WHOLE, "index": 4},
        {**WHOLE, "index": 3.0},
        {**WHOLE, "index": "3"},
        {**WHOLE, "iteration": -1},
        {**WHOLE, "iteration": 2**63},
        {**WHOLE, "iteration": True},
        {**WHOLE, "iteration": None},
        {**WHOLE, "metrics": None},
        {**WHOLE, "kind": "eternal"},
        {**WHOLE, "kind": []},
        {**WHOLE, "metrics": [["loss", 1]]},
    ],
)
def test_a_checkpoint_record_that_another_program_wrote_is_refused(data: Any):
    with pytest.raises(StorageError, match="checkpoint"):
        CheckpointRecord.from_json(data)
    assert CheckpointRecord.from_json(WHOLE).path == PATH


def test_a_checkpoint_with_a_large_number_is_a_checkpoint():
    path = "trials/a/checkpoint_1234567_i100"
    assert checkpoint_place(path) == ("a", 1234567, 100)
    assert CheckpointRecord.from_json({**WHOLE, "path": path, "index": 1234567}).path == path


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/a",
        "a\\b",
        "a\0",
        "a\nb",
        "\ud800",
        "\x1b[1m",
        "a" * 256,
        None,
        3,
        b"a",
    ],
)
def test_what_is_no_single_name_is_refused(name: Any):
    assert not is_one_name(name)


@pytest.mark.parametrize("name", ["a", "a_00000", "...", "lr=0.1, b c", "\u00e4", "a*"])
def test_a_single_name_is_one(name: str):
    assert is_one_name(name)


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
def test_a_worker_waits_at_any_milestone_and_where_it_is_unclear(result, waits):
    assert reached((Milestone("epoch", 4), Milestone("t", 10)), result) is waits


def test_without_milestones_a_worker_never_waits():
    assert reached((), {"training_iteration": 10}) is False
    assert reached(EVERY_RESULT, {"training_iteration": 1}) is True
