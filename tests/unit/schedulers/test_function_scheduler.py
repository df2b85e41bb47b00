"""A function of the history as a scheduler: rounds, and what it may answer."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    Continue,
    FunctionScheduler,
    Pause,
    StopOther,
    Unpause,
    Waiting,
)
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

ITERATION = "training_iteration"


def made(n, iterations=1):
    trials = {}
    for number in reversed(range(n)):
        trial = Trial(trial_id=f"a_{number:05d}", config={}, resources=PlacementGroupFactory([{"CPU": 1}]))
        trial.history.extend({ITERATION: i + 1, "loss": float(number)} for i in range(iterations))
        trials[trial.trial_id] = trial
    return trials


def answer(requested):
    def policy(history):
        return requested

    return FunctionScheduler(policy)


def test_every_trial_begins_with_one_iteration_and_waits_for_the_others():
    scheduler = answer({})
    (trial,) = made(1).values()
    assert scheduler.next_milestones(trial) == (Milestone(ITERATION, 1),)
    assert scheduler.on_trial_result(trial, {ITERATION: 1}) == Pause(
        "waits for the other trials: it reached iteration 1 of this round"
    )


def test_only_pending_trials_run():
    scheduler, trials = answer({}), made(2)
    assert scheduler.choose_trial_to_run(Waiting({}, trials)) is None
    assert scheduler.choose_trial_to_run(Waiting(trials, {})) is trials["a_00001"]


def test_the_function_sees_the_results_of_each_trial_in_order():
    shown = []

    def policy(history):
        shown.append(history)
        return {}

    FunctionScheduler(policy).on_standstill(Waiting({}, made(2, iterations=2)))
    assert shown == [
        {f"a_{number:05d}": [{ITERATION: i, "loss": float(number)} for i in (1, 2)] for number in (0, 1)}
    ]
    assert list(shown[0]) == ["a_00000", "a_00001"]


def test_a_trial_with_more_budget_resumes_one_with_none_waits_and_one_left_out_ends():
    scheduler = answer({"a_00000": 3, "a_00001": 0})
    trials = made(3, iterations=2)
    assert scheduler.on_standstill(Waiting({}, trials)) == (
        Unpause(trial_id="a_00000"),
        StopOther(trial_id="a_00002", reason="policy returned no entry for it after iteration 2"),
    )
    first = trials["a_00000"]
    assert scheduler.next_milestones(first) == (Milestone(ITERATION, 5),)
    assert scheduler.on_trial_result(first, {ITERATION: 4}) == Continue()
    assert isinstance(scheduler.on_trial_result(first, {ITERATION: 5}), Pause)
    assert scheduler.debug_string() == "FunctionScheduler(policy): 1 rounds"
    restored = answer({})
    restored.load_state_dict(scheduler.state_dict())
    assert restored.next_milestones(first) == (Milestone(ITERATION, 5),)
    assert restored.state_dict() == scheduler.state_dict()


@pytest.mark.parametrize("requested", [{}, {"a_00000": 0}])
def test_all_end_when_nothing_more_is_asked_for(requested):
    commands = answer(requested).on_standstill(Waiting({}, made(2)))
    assert [command.trial_id for command in commands] == ["a_00000", "a_00001"]
    assert {command.reason for command in commands} == {"policy requests no more iterations"}


@pytest.mark.parametrize("way", ["complete", "error", "remove"])
def test_who_has_ended_is_forgotten(way):
    scheduler, trials = answer({"a_00000": 3}), made(1)
    scheduler.on_standstill(Waiting({}, trials))
    arguments = [trials["a_00000"], *([{}] if way == "complete" else [])]
    for _ in range(2):
        assert getattr(scheduler, f"on_trial_{way}")(*arguments) == ()
    assert scheduler.state_dict()["targets"] == {}


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (None, "the return value of policy must be a mapping from ids .* got None"),
        ([1], r"the return value of policy must be a mapping from ids .* got \[1\]"),
        ({"b": 1}, "the return value of policy must be a mapping from ids in the history"),
        ({"a_00000": -1}, "the further iterations of a_00000 must be an integer >= 0, got -1"),
        ({"a_00000": 0.5}, "the further iterations of a_00000 must be an integer >= 0, got 0.5"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(requested, message):
    with pytest.raises(ConfigError, match=message):
        answer(requested).on_standstill(Waiting({}, made(1)))


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ConfigError, match="function must be callable with the history, got 3"):
        FunctionScheduler(3)
    with pytest.raises(ConfigError, match="function must be callable with the history, got <func"):
        FunctionScheduler(lambda: {})


def test_an_object_that_can_be_called_has_the_name_of_its_class():
    class Policy:
        def __call__(self, history):
            return {}

    assert FunctionScheduler(Policy()).debug_string() == "FunctionScheduler(Policy): 0 rounds"
