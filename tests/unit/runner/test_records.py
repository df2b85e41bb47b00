from __future__ import annotations

from dasktune.runner.records import journal_record
from dasktune.storage.json_lines import decode, encode
from dasktune.trial.actions import DeleteCheckpoint, RestoreTrial, StartTrial, StopTrial
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import (
    ErrorInfo,
    ResourcesGranted,
    ResultReported,
    Suggested,
    TimePassed,
    TrialFailed,
)
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])
CHECKPOINT = CheckpointRecord(path="trials/t/checkpoint_000000_i01", index=0, iteration=3)


def trial() -> Trial:
    return Trial(trial_id="t", config={"lr": 0.1}, resources=ONE_CPU)


def test_a_result_is_recorded_with_its_checkpoint_what_was_decided_and_the_status():
    event = ResultReported(
        trial_id="t",
        incarnation=1,
        time=5.0,
        seq=4,
        metrics={"training_iteration": 3, "loss": 0.5},
        checkpoint=CHECKPOINT,
    )
    actions = [
        StopTrial(trial_id="t", incarnation=1, reason="bad"),
        DeleteCheckpoint(trial_id="t", checkpoint=CHECKPOINT),
    ]
    assert journal_record(event, actions, trial()) == {
        "event": "ResultReported",
        "trial_id": "t",
        "incarnation": 1,
        "time": 5.0,
        "seq": 4,
        "metrics": {"training_iteration": 3, "loss": 0.5},
        "checkpoint": CHECKPOINT.to_json(),
        "awaits": True,
        "status": "PENDING",
        "actions": [
            {
                "do": "StopTrial",
                "trial_id": "t",
                "incarnation": 1,
                "reason": "bad",
                "early": False,
            },
            {"do": "DeleteCheckpoint", "trial_id": "t", "checkpoint": CHECKPOINT.to_json()},
        ],
    }


def test_a_suggestion_holds_the_configuration_and_a_start_does_not_repeat_it():
    record = journal_record(
        Suggested(
            trial_id="t_00000", config={"lr": 0.1}, resources=ONE_CPU, time=0.0, tag="0_lr=0.1"
        ),
        [],
        None,
    )
    assert record["config"] == {"lr": 0.1}
    assert record["resources"] == ONE_CPU.to_json()
    assert "status" not in record
    assert "actions" not in record
    start = StartTrial(
        trial_id="t",
        incarnation=1,
        config={"lr": 0.1},
        resources=ONE_CPU,
        milestones=(Milestone("epoch", 4),),
    )
    restore = RestoreTrial(
        trial_id="t", incarnation=2, config={"lr": 0.1}, resources=ONE_CPU, checkpoint=CHECKPOINT
    )
    event = ResourcesGranted(trial_id="t", time=1.0)
    told = journal_record(event, [start, restore], trial())["actions"]
    assert all("config" not in action for action in told)
    assert told[0]["milestones"] == [["epoch", 4]]
    assert told[1]["checkpoint"] == CHECKPOINT.to_json()


def test_a_failure_is_recorded_as_text_without_the_pickle():
    error = ErrorInfo(message="ValueError: no", traceback="Traceback ...", pickled=b"\x80")
    event = TrialFailed(trial_id="t", incarnation=1, time=1.0, seq=2, error=error)
    record = journal_record(event, [], trial())
    assert record["error"] == {"message": "ValueError: no", "traceback": "Traceback ..."}


def test_a_record_is_a_line_that_can_be_read_back():
    event = ResultReported(
        trial_id="t", incarnation=1, time=5.0, metrics={"training_iteration": 1, "eval": {"a": 1}}
    )
    record = journal_record(event, [], trial())
    assert decode(encode(record)) == record


def test_time_alone_makes_a_record_of_two_fields():
    record = journal_record(TimePassed(time=2.0), [], None)
    assert record == {"event": "TimePassed", "time": 2.0}
