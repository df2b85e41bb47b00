from __future__ import annotations

from math import nan

import pytest

from dasktune.trial.milestone import EVERY_RESULT, Milestone, reached


def test_every_result_is_a_milestone_of_trials_that_state_none():
    assert reached(EVERY_RESULT, {"training_iteration": 1})


def test_no_milestones_mean_never():
    assert not reached((), {"training_iteration": 10**9})


@pytest.mark.parametrize(("epoch", "expected"), [(3, False), (4, True), (5.5, True), (nan, True)])
def test_a_milestone_is_reached_at_its_value_or_beyond(epoch, expected):
    assert reached((Milestone("epoch", 4),), {"epoch": epoch}) is expected


def test_a_result_without_the_attribute_is_a_milestone():
    assert reached((Milestone("epoch", 4),), {"loss": 1.0})


@pytest.mark.parametrize("metrics", [{}, {"acc": nan}, {"acc": 0.9}])
def test_a_criterion_that_is_not_met_lets_results_stream(metrics):
    assert not reached((Milestone("acc", 0.95, required=False),), metrics)


def test_one_of_several_milestones_is_enough():
    milestones = (Milestone("epoch", 10), Milestone("eval/acc", 0.9, required=False))
    assert reached(milestones, {"epoch": 1, "eval": {"acc": 0.9}})
