from __future__ import annotations

import pytest

from dasktune.trainable.gate import Gate
from dasktune.trainable.messages import GoOn, PauseNow, SaveAndGoOn, StopNow
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
def test_a_milestone_is_the_first_result_at_or_beyond_it_or_one_that_cannot_be_judged(
    result, waits
):
    assert Gate((Milestone("epoch", 3),)).is_milestone(result) is waits


def test_without_milestones_no_result_waits():
    assert not Gate(()).is_milestone({"training_iteration": 10})


def test_any_of_several_milestones_counts():
    gate = Gate((Milestone("training_iteration", 9), Milestone("time/total", 5)))
    assert gate.is_milestone({"training_iteration": 1, "time": {"total": 6.0}})


def test_an_answer_that_comes_before_the_wait_is_not_lost():
    gate = Gate(EVERY_RESULT)
    gate.expect(4)
    gate.answer(GoOn(seq=4, milestones=()))
    assert gate.wait() == GoOn(seq=4, milestones=())
    assert not gate.is_milestone({"training_iteration": 5})


def test_old_repeated_and_early_answers_are_ignored():
    gate = Gate(EVERY_RESULT)
    gate.answer(GoOn(seq=4, milestones=()))
    gate.expect(4)
    gate.answer(GoOn(seq=3, milestones=()))
    gate.answer(SaveAndGoOn(seq=4))
    gate.answer(GoOn(seq=4, milestones=()))
    assert gate.wait() == SaveAndGoOn(seq=4)
    gate.expect(6)
    gate.answer(SaveAndGoOn(seq=4))
    gate.answer(GoOn(seq=6))
    assert gate.wait() == GoOn(seq=6)


def test_a_stop_overrules_a_pause_and_not_the_other_way_round():
    gate = Gate(())
    assert gate.order is None
    gate.answer(PauseNow(reason="a"))
    gate.answer(PauseNow(reason="b"))
    assert gate.order == PauseNow(reason="a")
    gate.answer(StopNow(reason="c"))
    gate.answer(PauseNow(reason="d"))
    gate.answer(StopNow(reason="e"))
    assert gate.order == StopNow(reason="c")
    assert gate.wait() == StopNow(reason="c")


def test_an_order_to_end_overrules_an_answer_to_go_on():
    gate = Gate(EVERY_RESULT)
    gate.expect(1)
    gate.answer(GoOn(seq=1))
    gate.answer(StopNow(reason="budget"))
    assert gate.wait() == StopNow(reason="budget")
