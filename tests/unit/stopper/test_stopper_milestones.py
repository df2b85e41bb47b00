from __future__ import annotations

from dasktune.stopper import (
    CombinedStopper,
    CriteriaStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    TimeoutStopper,
)
from dasktune.trial.milestone import EVERY_RESULT, Milestone


def test_a_stopper_that_looks_at_results_waits_for_each():
    for stopper in (FunctionStopper(lambda trial_id, result: False), MaximumIterationStopper(3)):
        assert stopper.next_milestones("t") == EVERY_RESULT


def test_a_stopper_that_looks_at_no_result_waits_for_none():
    for stopper in (NoopStopper(), TimeoutStopper(1), CombinedStopper()):
        assert stopper.next_milestones("t") == ()


def test_criteria_wait_where_they_are_met_and_several_stoppers_wherever_one_waits():
    criteria = CriteriaStopper({"acc": 0.9})
    milestone = Milestone("acc", 0.9, required=False)
    assert criteria.next_milestones("t") == (milestone,)
    several = CombinedStopper(criteria, TimeoutStopper(1), MaximumIterationStopper(3))
    assert several.next_milestones("t") == (milestone, *EVERY_RESULT)
