from __future__ import annotations

from typing import Any

import pytest

from dasktune.cluster.protocol.wire_messages import Assignment, TrialUpdate
from dasktune.cluster.worker.assignment import AssignedTrial
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.reporting.encoding import decode, unpack
from dasktune.trainable.reporting.trial_messages import (
    ContinueAnswer,
    Ended,
    NoticeAnswer,
    PauseAnswer,
    Reported,
    Returned,
    Started,
    StopAnswer,
    Stopped,
)
from dasktune.trainable.running.thread_run import ThreadRun
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory


@pytest.fixture
def trial(tmp_path: Any) -> AssignedTrial:
    spec = TrialSpec(
        trial_id="t",
        incarnation=1,
        resources=PlacementGroupFactory([{"CPU": 1}]),
        storage=Storage(str(tmp_path)),
        trial_dir="t",
        experiment_name="e",
        trial_name="t",
        milestones=(),
    )
    return AssignedTrial(Assignment(incarnation="t-1", actor="s", spec=spec, config=b""))


def begin(trial: AssignedTrial, trainable: Any) -> None:
    run = ThreadRun(trial.assignment.spec, lambda: (trainable, {}), lambda urgency: None)
    trial.begin(run)
    assert run.join(10)
    trial.note_end()


def told(trial: AssignedTrial) -> list[Any]:
    news = trial.report()
    return [] if news is None else [decode(*entry) for entry in unpack(news.messages)]


def note(**facts: Any) -> TrialUpdate:
    return TrialUpdate(**{"incarnation": "t-1", "durable_seq": 0, "received_seq": 0, **facts})


def test_one_that_waits_has_nothing_to_say(trial):
    assert trial.is_waiting
    assert not trial.has_ended
    assert trial.report() is None
    trial.interrupt()
    trial.join(0)


def test_what_is_given_back_is_never_begun_and_says_so_until_that_has_arrived(trial):
    trial.return_unstarted()
    assert not trial.is_waiting
    assert trial.has_ended
    assert told(trial) == told(trial) == [Returned()]
    assert trial.delivered
    trial.apply(note(received_seq=1))
    assert trial.report() is None


@pytest.mark.parametrize(("order", "message"), [(StopAnswer(), Stopped(seq=1)), (PauseAnswer(), Returned())])
def test_an_order_to_leave_ends_one_that_has_not_begun(trial, order, message):
    trial.apply(note(answers=(ContinueAnswer(seq=1), order)))
    assert told(trial) == [message]
    trial.return_unstarted()
    trial.end_with(StopAnswer())
    assert told(trial) == [message]


def test_one_that_has_run_cannot_be_given_back(trial):
    begin(trial, lambda config: 0.5)
    trial.return_unstarted()
    assert trial.has_ended
    assert not trial.is_busy
    assert [type(message) for message in told(trial)] == [Started, Reported, Ended]
    assert trial.delivered


def test_messages_come_again_until_they_have_arrived(trial):
    begin(trial, lambda config: 0.5)
    trial.apply(note(received_seq=1))
    assert [type(message) for message in told(trial)] == [Reported, Ended]
    trial.apply(note(received_seq=3, durable_seq=3))
    trial.apply(note(received_seq=2))
    assert told(trial) == []


def test_the_time_it_took_ends_with_its_thread(trial):
    begin(trial, lambda config: 0.5)
    first, second = trial.report(), trial.report()
    assert first is not None
    assert second is not None
    assert first.seconds == second.seconds > 0


def test_a_notice_returns_a_trial_that_has_not_begun(trial):
    trial.notice(NoticeAnswer(seconds=120.0))
    trial.interrupt_if_busy()
    assert told(trial) == [Returned()]
