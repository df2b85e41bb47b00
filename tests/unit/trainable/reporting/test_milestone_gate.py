from __future__ import annotations

import pytest

from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.trial_messages import (
    CheckpointRequest,
    ContinueAnswer,
    NoticeAnswer,
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


def test_an_order_to_end_overrules_a_continuation():
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


def test_a_notice_counts_down_and_a_later_or_repeated_one_does_not_extend_it():
    clock = [10.0]
    gate = MilestoneGate((), timer=lambda: clock[0])
    assert (gate.ask_notice(), gate.is_save_due(), gate.has_notice) == (None, False, False)
    gate.answer(NoticeAnswer(seconds=120.0, reason="spot"))
    clock[0] = 30.0
    gate.answer(NoticeAnswer(seconds=120.0, reason="again"))
    assert (gate.ask_notice(), gate.is_save_due(), gate.has_notice) == ((100.0, "spot"), True, True)
    gate.answer(NoticeAnswer(seconds=5.0, reason="now"))
    clock[0] = 99.0
    assert gate.ask_notice() == (0.0, "now")
    assert gate.order is None


def test_an_urgent_notice_is_an_order_to_pause_unless_user_code_asks_for_notices():
    urgent = NoticeAnswer(seconds=5.0, reason="SIGTERM", urgent=True)
    silent, asking, stopped = (MilestoneGate(()) for _ in range(3))
    silent.answer(urgent)
    assert silent.order == PauseAnswer(save=True, reason="SIGTERM")
    asking.is_save_due()
    asking.answer(urgent)
    assert asking.order is None
    assert asking.is_save_due()
    stopped.answer(StopAnswer())
    stopped.answer(urgent)
    assert stopped.order == StopAnswer()


@pytest.mark.parametrize(("save", "is_due"), [(True, True), (False, False)])
def test_user_code_should_save_before_a_pause_that_wants_a_checkpoint(save, is_due):
    gate = MilestoneGate(())
    gate.answer(PauseAnswer(save=save))
    assert gate.is_save_due() is is_due


def test_a_notice_does_not_end_the_wait_for_a_decision():
    gate = MilestoneGate(EVERY_RESULT)
    gate.expect(4)
    gate.answer(NoticeAnswer(seconds=5.0))
    gate.answer(ContinueAnswer(seq=4))
    assert gate.wait() == ContinueAnswer(seq=4)
