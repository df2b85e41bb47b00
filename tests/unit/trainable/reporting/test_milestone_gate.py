from __future__ import annotations

import pytest

from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.trial_messages import (
    CheckpointRequest,
    ContinueAnswer,
    PauseAnswer,
    SaveAnswer,
    StopAnswer,
)
from dasktune.trial.milestone import EVERY_RESULT, Milestone


@pytest.mark.parametrize(
    ("result", "waits"),
    [
        ({"epoch": 2}, False),
        ({"epoch": 3}, True),
        ({"epoch": 4}, True),
        ({"loss": 0.1}, True),
        ({"epoch": float("nan")}, True),
        ({"epoch": "three"}, True),
    ],
)
def test_a_milestone_is_the_first_result_at_or_beyond_it_or_one_that_cannot_be_judged(result, waits):
    assert MilestoneGate((Milestone("epoch", 3),)).is_milestone(result) is waits


def test_without_milestones_no_result_waits():
    assert not MilestoneGate(()).is_milestone({"training_iteration": 10})


def test_any_of_several_milestones_counts():
    gate = MilestoneGate((Milestone("training_iteration", 9), Milestone("time/total", 5)))
    assert gate.is_milestone({"training_iteration": 1, "time": {"total": 6.0}})


def test_an_answer_that_comes_before_the_wait_is_not_lost():
    gate = MilestoneGate(EVERY_RESULT)
    gate.expect(4)
    gate.answer(ContinueAnswer(seq=4, milestones=()))
    assert gate.wait() == ContinueAnswer(seq=4, milestones=())
    assert not gate.is_milestone({"training_iteration": 5})


def test_old_repeated_and_early_answers_are_ignored():
    gate = MilestoneGate(EVERY_RESULT)
    gate.answer(ContinueAnswer(seq=4, milestones=()))
    gate.expect(4)
    gate.answer(ContinueAnswer(seq=3, milestones=()))
    gate.answer(SaveAnswer(seq=4))
    gate.answer(ContinueAnswer(seq=4, milestones=()))
    assert gate.wait() == SaveAnswer(seq=4)
    gate.expect(6)
    gate.answer(SaveAnswer(seq=4))
    gate.answer(ContinueAnswer(seq=6))
    assert gate.wait() == ContinueAnswer(seq=6)


def test_a_stop_overrules_a_pause_and_not_the_other_way_round():
    gate = MilestoneGate(())
    assert gate.order is None
    gate.answer(PauseAnswer(reason="a"))
    gate.answer(PauseAnswer(reason="b"))
    assert gate.order == PauseAnswer(reason="a")
    gate.answer(StopAnswer(reason="c"))
    gate.answer(PauseAnswer(reason="d"))
    gate.answer(StopAnswer(reason="e"))
    assert gate.order == StopAnswer(reason="c")
    assert gate.wait() == StopAnswer(reason="c")


def test_an_order_to_end_overrules_an_answer_to_go_on():
    gate = MilestoneGate(EVERY_RESULT)
    gate.expect(1)
    gate.answer(ContinueAnswer(seq=1))
    gate.answer(StopAnswer(reason="budget"))
    assert gate.wait() == StopAnswer(reason="budget")


def test_a_request_for_a_checkpoint_ends_no_wait_and_is_taken_once():
    gate = MilestoneGate(EVERY_RESULT)
    assert not gate.take_checkpoint_request()
    gate.expect(4)
    gate.answer(CheckpointRequest(number=7))
    gate.answer(ContinueAnswer(seq=4, milestones=()))
    assert gate.wait() == ContinueAnswer(seq=4, milestones=())
    assert gate.take_checkpoint_request()
    assert not gate.take_checkpoint_request()


def test_repeated_and_old_requests_for_a_checkpoint_are_ignored():
    gate = MilestoneGate(())
    gate.answer(CheckpointRequest(number=7))
    gate.answer(CheckpointRequest(number=9))
    assert gate.take_checkpoint_request()
    for number in (9, 7):
        gate.answer(CheckpointRequest(number=number))
    assert not gate.take_checkpoint_request()
    gate.answer(CheckpointRequest(number=10))
    assert gate.take_checkpoint_request()
