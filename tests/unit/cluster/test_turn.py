from __future__ import annotations

from typing import Any

import pytest

from dasktune.cluster.envelope import Assignment, Note
from dasktune.cluster.turn import Turn
from dasktune.storage.location import Storage
from dasktune.trainable.contents import message_of, unpack
from dasktune.trainable.messages import (
    Ended,
    GoOn,
    PauseNow,
    Reported,
    Returned,
    Started,
    StopNow,
    Stopped,
)
from dasktune.trainable.run import TrialRun
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory


@pytest.fixture
def turn(tmp_path: Any) -> Turn:
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
    return Turn(Assignment(incarnation="t-1", slot="s", spec=spec, config=b""))


def begin(turn: Turn, trainable: Any) -> None:
    run = TrialRun(turn.assignment.spec, lambda: (trainable, {}), lambda urgency: None)
    turn.begin(run)
    assert run.join(10)
    turn.note_end()


def told(turn: Turn) -> list[Any]:
    news = turn.news()
    return [] if news is None else [message_of(*entry) for entry in unpack(news.messages)]


def note(**facts: Any) -> Note:
    return Note(**{"incarnation": "t-1", "ack": 0, "have": 0, **facts})


def test_one_that_waits_has_nothing_to_say(turn):
    assert turn.may_begin
    assert not turn.has_ended
    assert turn.news() is None
    turn.interrupt()
    turn.join(0)


def test_what_is_given_back_is_never_begun_and_says_so_until_that_has_arrived(turn):
    turn.give_back()
    assert not turn.may_begin
    assert turn.has_ended
    assert told(turn) == told(turn) == [Returned()]
    assert turn.delivered
    turn.heed(note(have=1))
    assert turn.news() is None


@pytest.mark.parametrize(
    ("order", "message"), [(StopNow(), Stopped(seq=1)), (PauseNow(), Returned())]
)
def test_an_order_to_leave_ends_one_that_has_not_begun(turn, order, message):
    turn.heed(note(answers=(GoOn(seq=1), order)))
    assert told(turn) == [message]
    turn.give_back()
    turn.leave(StopNow())
    assert told(turn) == [message]


def test_one_that_has_run_cannot_be_given_back(turn):
    begin(turn, lambda config: 0.5)
    turn.give_back()
    assert turn.has_ended
    assert not turn.is_busy
    assert [type(message) for message in told(turn)] == [Started, Reported, Ended]
    assert turn.delivered


def test_messages_come_again_until_they_have_arrived(turn):
    begin(turn, lambda config: 0.5)
    turn.heed(note(have=1))
    assert [type(message) for message in told(turn)] == [Reported, Ended]
    turn.heed(note(have=3, ack=3))
    turn.heed(note(have=2))
    assert told(turn) == []


def test_the_time_it_took_ends_with_its_thread(turn):
    begin(turn, lambda config: 0.5)
    first, second = turn.news(), turn.news()
    assert first is not None
    assert second is not None
    assert first.seconds == second.seconds > 0
