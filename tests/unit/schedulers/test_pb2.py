"""Population based bandits as a policy alone."""

from __future__ import annotations

import json
import sys
from math import nan
from typing import Any

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    PB2,
    ClusterView,
    Continue,
    Exploit,
    ExploitOther,
    Pause,
    ResourceChangingScheduler,
    Unpause,
    Waiting,
    create_scheduler,
)
from dasktune.schedulers.population_based.gp_bandit import BanditState, Change
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


def pb2(**changes: Any) -> PB2:
    return PB2(
        **{
            "time_attr": "training_iteration",
            "metric": "score",
            "mode": "max",
            "perturbation_interval": 5,
            "hyperparam_bounds": {"lr": [0.0, 2.0]},
            **changes,
        }
    )


class Crowd:
    """Trials that the test moves by hand; they run unless it says otherwise."""

    def __init__(self, number: int = 4, **changes: Any) -> None:
        self.scheduler = pb2(**changes)
        self.scheduler.seed(SeedSequence(1))
        self.trials: dict[str, Trial] = {}
        self.look(self.scheduler)
        for index in range(number):
            trial = Trial(
                trial_id=f"t{index}",
                config={"lr": 0.5 * index},
                resources=PlacementGroupFactory([{"CPU": 1}]),
            )
            trial.status = TrialStatus.RUNNING
            self.trials[trial.trial_id] = trial
            self.scheduler.on_trial_add(trial)
            self.scheduler.on_trial_start(trial)

    def look(self, scheduler: PB2) -> None:
        view = ClusterView(trials=self.trials, pending={}, paused={}, active={}, workers={})
        scheduler.observe(view)

    def rank(self, iteration: int, *scores: float) -> list[Any]:
        """Let the first trials report, and pause those that the scheduler pauses."""
        told = []
        for index, score in enumerate(scores):
            told.append(self.report(index, iteration, score))
        return told

    def report(self, index: int, iteration: int, score: Any) -> Any:
        trial = self.trials[f"t{index}"]
        row = {"training_iteration": iteration, "score": score}
        decision = self.scheduler.on_trial_result(trial, row)
        if isinstance(decision, Pause):
            trial.status = TrialStatus.PAUSED
        return decision

    def exploit(self, order: ExploitOther, **metrics: Any) -> None:
        trial = self.trials[order.trial_id]
        trial.config = order.config
        path = f"trials/{order.donor}/checkpoint_000000_i01"
        trial.origin = CheckpointRecord(path=path, index=0, iteration=5, metrics=metrics)
        self.scheduler.on_trial_exploit(trial, self.trials[order.donor])

    def asked(self) -> tuple[int, BanditState]:
        [(number, question)] = self.scheduler.questions.items()
        return number, question.args[0]  # type: ignore[attr-defined]

    def answer(self, *points: float) -> Any:
        number, _ = self.asked()
        return self.scheduler.on_answer(number, [[point] for point in points])

    def waiting(self) -> Waiting:
        paused = {k: one for k, one in self.trials.items() if one.status is TrialStatus.PAUSED}
        return Waiting({}, paused)


def thinking(**changes: Any) -> Crowd:
    """Four trials of which the last was the worst at its second ranking."""
    crowd = Crowd(**changes)
    crowd.rank(5, 0.1, 0.2, 0.3, 0.4)
    crowd.rank(10, 0.6, 0.8, 0.9, 0.5)
    return crowd


def test_while_nothing_was_seen_the_worst_is_explored_by_chance():
    crowd = Crowd()
    *others, last = crowd.rank(5, 0.5, 0.6, 0.9, 0.1)
    assert all(isinstance(one, Continue) for one in others)
    assert isinstance(last, Exploit)
    assert (last.donor, last.iteration) == ("t2", 5)
    assert 0 <= last.config["lr"] <= 2
    assert not crowd.scheduler.questions


def test_the_worst_is_paused_and_a_question_is_asked_when_it_has_left():
    crowd = thinking()
    trial = crowd.trials["t3"]
    number, situation = crowd.asked()
    assert situation.time == 2
    assert situation.rewards == [0.9]
    assert situation.changes == (
        Change(2.0, 0.1, pytest.approx(0.1), (0.0,)),
        Change(2.0, 0.2, pytest.approx(0.12), (0.25,)),
        Change(2.0, 0.3, pytest.approx(0.12), (0.5,)),
        Change(2.0, 0.4, pytest.approx(0.02), (0.75,)),
    )
    assert crowd.scheduler.choose_trial_to_run(crowd.waiting()) is None
    assert crowd.scheduler.debug_string().endswith("3 of 4 ranked")
    trial.status = TrialStatus.PAUSING
    assert not crowd.scheduler.questions
    # Its worker may be lost before it has left.
    trial.status = TrialStatus.PENDING
    assert list(crowd.scheduler.questions) == [number]


def test_its_answer_makes_a_clone_of_the_donor_as_it_was_ranked_last():
    crowd = thinking()
    crowd.report(2, 15, 1.5)
    [order] = crowd.answer(0.25)
    assert isinstance(order, ExploitOther)
    assert (order.trial_id, order.donor, order.iteration) == ("t3", "t2", 15)
    assert order.config == {"lr": 0.5}
    assert "becomes a clone of t2, which has 1.5" in order.reason
    assert not crowd.scheduler.questions
    assert crowd.scheduler.choose_trial_to_run(crowd.waiting()) is crowd.trials["t3"]


def test_a_clone_is_seen_from_its_checkpoint_on():
    crowd = thinking()
    [order] = crowd.answer(0.25)
    crowd.exploit(order, training_iteration=8, score=0.7)
    crowd.report(3, 13, 1.2)
    crowd.report(0, 15, 0.0)
    _, situation = crowd.asked()
    assert situation.changes[-2] == Change(13 / 5, 0.7, pytest.approx(0.1), (0.25,))


@pytest.mark.parametrize("metrics", [None, {}, {"training_iteration": 8, "score": nan}])
def test_a_clone_of_unknown_origin_is_seen_from_its_ranking_on(metrics: Any):
    crowd = thinking()
    [order] = crowd.answer(0.25)
    if metrics is None:
        crowd.scheduler.on_trial_exploit(crowd.trials["t3"], crowd.trials[order.donor])
    else:
        crowd.exploit(order, **metrics)
    before = len(crowd.scheduler.state_dict()["changes"])
    crowd.report(3, 20, 1.2)
    assert len(crowd.scheduler.state_dict()["changes"]) == before
    crowd.report(3, 25, 1.3)
    assert len(crowd.scheduler.state_dict()["changes"]) == before + 1


def test_where_a_clone_is_trying_is_not_tried_again():
    crowd = thinking()
    [order] = crowd.answer(0.25)
    crowd.exploit(order, training_iteration=10, score=0.9)
    crowd.trials["t3"].status = TrialStatus.RUNNING
    crowd.report(0, 15, 0.0)
    assert crowd.asked()[1].pending == [(0.25,)]
    # What was given something else by custom_explore_fn says nothing.
    crowd.trials["t3"].config = {"lr": "none"}
    assert crowd.asked()[1].pending == []


def test_questions_are_asked_one_after_the_other():
    crowd = thinking()
    first, _ = crowd.asked()
    crowd.report(0, 15, 0.0)
    assert list(crowd.scheduler.questions) == [first]
    crowd.answer(0.25)
    assert list(crowd.scheduler.questions) == [first + 1]


def test_an_undefined_score_is_not_seen_and_nothing_is_seen_from_it_on():
    crowd = Crowd(number=2, quantile_fraction=0.0)
    for iteration, score in ((5, 1.0), (10, nan), (15, 2.0), (20, 3.0)):
        crowd.report(0, iteration, score)
    assert crowd.scheduler.state_dict()["changes"] == [[4.0, 2.0, 0.2, 0.0]]


def test_gains_beyond_all_bounds_are_not_seen():
    crowd = Crowd(number=2, quantile_fraction=0.0)
    crowd.report(0, 5, -1.7e308)
    crowd.report(0, 10, 1.7e308)
    assert crowd.scheduler.state_dict()["changes"] == []


@pytest.mark.parametrize("end", ["on_trial_error", "on_trial_remove"])
def test_a_trial_whose_donor_has_ended_resumes_as_it_was(end: str):
    crowd = thinking()
    getattr(crowd.scheduler, end)(crowd.trials["t2"])
    assert crowd.answer(0.25) == ()
    assert crowd.scheduler.choose_trial_to_run(crowd.waiting()) is crowd.trials["t3"]
    assert crowd.scheduler.debug_string().endswith("3 of 3 ranked")


def test_a_donor_that_has_diverged_since_is_not_cloned():
    crowd = thinking()
    crowd.report(2, 15, nan)
    assert crowd.answer(0.25) == ()


def test_an_answer_to_a_trial_that_has_ended_changes_nothing():
    crowd = thinking()
    number, _ = crowd.asked()
    crowd.scheduler.on_trial_remove(crowd.trials["t3"])
    assert crowd.answer(0.25) == ()
    assert crowd.scheduler.on_answer(number, [[0.5]]) == ()


def test_without_an_answer_the_clone_is_explored_by_chance():
    crowd = thinking()
    number, _ = crowd.asked()
    [order] = crowd.scheduler.on_answer(number, None)
    assert order.donor == "t2"
    assert 0 <= order.config["lr"] <= 2


def test_the_users_function_has_the_last_word():
    crowd = thinking(custom_explore_fn=lambda config: {**config, "more": 1})
    [order] = crowd.answer(0.25)
    assert order.config == {"lr": 0.5, "more": 1}


def test_in_synchrony_it_is_thought_about_all_of_the_worst_at_once():
    crowd = Crowd(synch=True, quantile_fraction=0.5)
    crowd.rank(5, 0.4, 0.3, 0.2, 0.1)
    first = crowd.scheduler.on_standstill(crowd.waiting())
    assert [type(one) for one in first] == [ExploitOther] * 2 + [Unpause] * 4
    for trial in crowd.trials.values():
        trial.status = TrialStatus.RUNNING
    crowd.rank(10, 0.9, 0.8, 0.1, 0.0)
    waiting = crowd.waiting()
    assert crowd.scheduler.on_standstill(waiting) == ()
    assert crowd.scheduler.choose_trial_to_run(waiting) is None
    _, situation = crowd.asked()
    assert len(situation.rewards) == 2
    # One of them ends meanwhile.
    crowd.scheduler.on_trial_remove(crowd.trials["t3"])
    orders = crowd.answer(0.25, 0.5)
    assert [(type(one), one.trial_id) for one in orders] == [
        (ExploitOther, "t2"),
        (Unpause, "t0"),
        (Unpause, "t1"),
        (Unpause, "t2"),
    ]
    assert orders[0].config == {"lr": 1.0}  # the worst was the first
    [milestone] = crowd.scheduler.next_milestones(crowd.trials["t0"])
    assert milestone.value == 15


def test_a_question_outlives_its_driver():
    crowd = thinking()
    state = json.loads(json.dumps(crowd.scheduler.state_dict()))
    restored = pb2()
    crowd.look(restored)
    restored.load_state_dict(state)
    assert restored.state_dict() == crowd.scheduler.state_dict()
    number, situation = crowd.asked()
    assert restored.questions[number].args[0] == situation  # type: ignore[attr-defined]


def test_other_hyperparameters_cannot_load_a_state():
    state = thinking().scheduler.state_dict()
    with pytest.raises(ConfigError, match="hyperparam_bounds must be of lr as before"):
        pb2(hyperparam_bounds={"x": [0, 1]}).load_state_dict(state)


def test_a_question_is_answered_by_the_bandit():
    crowd = thinking()
    [(_, question)] = crowd.scheduler.questions.items()
    [[point]] = question()
    assert 0 <= point <= 1
    assert question() == [[point]]


def test_what_a_new_trial_lacks_is_drawn():
    crowd = Crowd(number=0, hyperparam_bounds={"lr": [0, 1.0], "width": [16, 64]})
    trial = Trial(trial_id="t", config={"lr": 5}, resources=PlacementGroupFactory([{"CPU": 1}]))
    [order] = crowd.scheduler.on_trial_add(trial) or ()
    assert isinstance(order, ExploitOther)
    assert order.donor == "t"
    assert order.config["lr"] == 5
    assert 16 <= order.config["width"] <= 64


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match="pip install scikit-learn"):
        pb2()


def test_it_is_made_by_name_and_works_inside_of_another():
    made = create_scheduler("pb2", hyperparam_bounds={"lr": [1, 2]}, log_config=False)
    assert isinstance(made, PB2)
    assert not made.writes_policies
    crowd = thinking()
    outside = ResourceChangingScheduler(crowd.scheduler)
    [(number, _)] = outside.questions.items()
    [order] = outside.on_answer(number, [[0.25]])
    assert order.trial_id == "t3"


@pytest.mark.parametrize(
    "bad", [{"hyperparam_bounds": None}, {"custom_explore_fn": 3}, {"perturbation_interval": 0}]
)
def test_bad_arguments_are_refused(bad: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"{next(iter(bad))} must be"):
        pb2(**bad)
