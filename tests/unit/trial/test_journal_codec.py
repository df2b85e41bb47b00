from __future__ import annotations

from dataclasses import MISSING, fields, replace
from types import ModuleType

import pytest

from dasktune.storage.journal.json_lines import decode, encode
from dasktune.trial import actions, events
from dasktune.trial.actions import (
    DeleteCheckpoint,
    EndExperiment,
    RestoreTrial,
    StartTrial,
    StopTrial,
    TrialAction,
)
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import (
    HoldRequested,
    ResourcesGranted,
    ResultReported,
    StopRequested,
    Suggested,
    TimePassed,
    TrialEvent,
    TrialFailed,
    TrialStarted,
)
from dasktune.trial.journal_codec import decode_actions, decode_event, event_type, journal_record
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

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
        Suggested(trial_id="t_00000", config={"lr": 0.1}, resources=ONE_CPU, time=0.0, tag="0_lr=0.1"),
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


def examples() -> dict[str, object]:
    """Return a value for each field of our own types, by the name of the field."""
    return {
        "error": ErrorInfo(message="ValueError: x", traceback="Traceback", fails_all_trials=True),
        "checkpoint": CHECKPOINT,
        "kind": CheckpointKind.MEMORY,
        "resources": ONE_CPU,
        "milestones": (Milestone("epoch", 4.0),),
        "config": {"lr": 0.1},
        "old_config": {"lr": 0.2},
        "metrics": {"loss": 1.0},
        "workers": {"tcp://w:1": {"CPU": 2.0}},
        "capacity": {"CPU": 2.0},
        "incarnation": 2,
        "seq": 3,
        "number": 1,
        "num_workers": 1,
        "iteration": 5,
        "time": 7.0,
        "rung": 4.0,
        "cutoff": 0.25,
        "weight": 2.0,
        "priority": -1.0,
        "answer": {"x": 1},
        "ranks": (("tcp://a:1", ("0",)), ("tcp://b:1", ())),
        "num_ranks": 2,
        "fresh": True,
        "early": True,
    }


def made(kind: type) -> object:
    names = [one.name for one in fields(kind) if one.default is MISSING or one.name in examples()]
    return kind(**{name: examples().get(name, "text") for name in names})


def kinds_of(module: ModuleType, *bases: type) -> list[type]:
    """Return the events or actions of a module."""
    defined = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
    own = [one for one in defined if isinstance(one, type) and "__dataclass_params__" in vars(one)]
    return [one for one in own if one not in bases]


@pytest.mark.parametrize("kind", kinds_of(events, ErrorInfo, TrialEvent), ids=lambda kind: kind.__name__)
def test_every_event_comes_back_from_a_line_of_the_journal(kind):
    event = made(kind)
    assert decode_event(decode(encode(journal_record(event, [], None)))) == event


def test_a_share_that_is_no_number_is_not_read():
    with pytest.raises(ValueError, match="could not convert"):
        decode_event({"event": "ShareRequested", "weight": "heavy", "priority": None, "time": 1.0})


@pytest.mark.parametrize("kind", kinds_of(actions, TrialAction), ids=lambda kind: kind.__name__)
def test_every_action_comes_back_from_a_line_of_the_journal(kind):
    action = made(kind)
    if kind in (StartTrial, RestoreTrial):
        action = replace(action, config={})
    record = decode(encode(journal_record(TimePassed(time=1.0), [action], None)))
    assert decode_actions(record) == [action]


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_layout_of_ranks_comes_back_from_a_line_of_the_journal(exclusive: bool):
    request = HostPlacement([{"CPU": 1}] * 4, "SPREAD", per_host=2).exclusively(exclusive)
    event = Suggested(trial_id="t", config={}, resources=request, time=1.0)
    start = StartTrial(trial_id="t", incarnation=1, config={}, resources=request)
    record = decode(encode(journal_record(event, [start], None)))
    assert decode_event(record).resources == request
    assert [one.resources for one in decode_actions(record)] == [request]


def test_only_the_start_of_a_distributed_trial_has_ranks():
    start = TrialStarted(trial_id="t", incarnation=1, time=1.0, seq=1, worker="w")
    assert "ranks" not in journal_record(start, (), None)


def test_what_a_newer_version_wrote_is_skipped_and_not_refused():
    record = {
        "event": "StopRequested",
        "reason": "enough",
        "time": 1.0,
        "mood": "bad",
        "actions": [
            {"do": "EndExperiment", "reason": "enough", "politely": True},
            {"do": "PaintTrial", "colour": "red"},
        ],
    }
    assert decode_event(record) == StopRequested(reason="enough", time=1.0)
    assert decode_actions(record) == [EndExperiment(reason="enough"), None]
    assert decode_event({"event": "MoonRose", "time": 1.0}) is None
    assert event_type({"event": "MoonRose", "time": 1.0}) is None
    assert event_type(record) is StopRequested


def test_a_stop_says_at_which_rung_and_cutoff_only_where_there_was_one():
    stop = StopTrial(trial_id="t", incarnation=1, reason="bad", rung=9.0, cutoff=0.5)
    [written] = journal_record(TimePassed(time=1.0), [stop], None)["actions"]
    assert (written["rung"], written["cutoff"]) == (9.0, 0.5)
    [written] = journal_record(TimePassed(time=1.0), [replace(stop, rung=None, cutoff=None)], None)["actions"]
    assert not {"rung", "cutoff"} & written.keys()


@pytest.mark.parametrize("at_once", [True, False])
def test_only_a_stop_at_once_says_so(at_once: bool):
    stop = StopTrial(trial_id="t", incarnation=1, reason="another one failed", at_once=at_once)
    record = decode(encode(journal_record(TimePassed(time=1.0), [stop], None)))
    assert ("at_once" in record["actions"][0]) is at_once
    assert decode_actions(record) == [stop]


def test_a_command_says_who_issued_it_if_that_is_known():
    event = HoldRequested(time=1.0, by="ann@node7")
    record = journal_record(event, (), None)
    assert record == {"event": "HoldRequested", "time": 1.0, "by": "ann@node7"}
    assert decode_event(record) == event
    assert "by" not in journal_record(HoldRequested(time=1.0), (), None)
    assert decode_event({"event": "HoldRequested", "time": 1.0}) == HoldRequested(time=1.0)
