"""Population based training as a policy alone."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    ClusterView,
    Continue,
    Exploit,
    ExploitOther,
    Pause,
    PopulationBasedTraining,
    Unpause,
    Waiting,
    create_scheduler,
)
from dasktune.space import sample_from, uniform
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


def pbt(**changes: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(
        **{
            "time_attr": "training_iteration",
            "metric": "score",
            "mode": "max",
            "perturbation_interval": 5,
            "hyperparam_mutations": {"lr": uniform(0, 1)},
            **changes,
        }
    )


class Crowd:
    """Trials that the test moves by hand."""

    def __init__(self, number: int = 4, **changes: Any) -> None:
        self.scheduler = pbt(**changes)
        self.scheduler.seed(SeedSequence(1))
        self.trials: dict[str, Trial] = {}
        self.scheduler.observe(ClusterView(trials=self.trials, pending={}, paused={}, active={}, workers={}))
        for _ in range(number):
            self.add()

    def add(self, *, starts: bool = True, **config: Any) -> Any:
        trial = Trial(
            trial_id=f"t{len(self.trials)}",
            config={"lr": 0.1 * len(self.trials), **config},
            resources=PlacementGroupFactory([{"CPU": 1}]),
        )
        self.trials[trial.trial_id] = trial
        commands = self.scheduler.on_trial_add(trial)
        if starts:
            self.scheduler.on_trial_start(trial)
        return commands

    def report(self, index: int, iteration: int, **metrics: Any) -> Any:
        row = {"training_iteration": iteration, **metrics}
        return self.scheduler.on_trial_result(self.trials[f"t{index}"], row)

    def exploit(self, index: int, decision: Exploit) -> None:
        trial = self.trials[f"t{index}"]
        path = f"trials/{decision.donor}/checkpoint_000000_i01"
        iteration = decision.iteration or 0
        trial.origin = CheckpointRecord(
            path=path, index=0, iteration=iteration, metrics={"training_iteration": iteration}
        )
        self.scheduler.on_trial_exploit(trial, self.trials[decision.donor])

    def due(self, index: int) -> float:
        [milestone] = self.scheduler.next_milestones(self.trials[f"t{index}"])
        return milestone.value


def test_trials_are_judged_each_time_that_they_have_trained_for_an_interval():
    crowd = Crowd(burn_in_period=7)
    assert crowd.scheduler.next_milestones(crowd.trials["t0"]) == (Milestone("training_iteration", 7),)
    assert crowd.report(0, 6, score=1.0) == Continue()
    crowd.report(0, 7, score=1.0)
    assert crowd.due(0) == 12


def test_the_worst_becomes_a_clone_of_the_best():
    crowd = Crowd()
    for index, score in enumerate([0.5, 0.6, 0.9]):
        decision = crowd.report(index, 5, score=score)
        assert isinstance(decision, Continue)
        assert decision.hold
        assert decision.save
    decision = crowd.report(3, 5, score=0.1)
    assert isinstance(decision, Exploit)
    assert (decision.donor, decision.iteration) == ("t2", 5)
    assert "among the worst of 4 by score" in decision.reason
    assert "has 0.9" in decision.reason
    crowd.exploit(3, decision)
    assert crowd.due(3) == 10
    assert crowd.scheduler.debug_string().endswith("1 exploits, 3 of 4 ranked")


def test_lower_is_better_if_the_user_says_so():
    crowd = Crowd(number=2, mode="min", quantile_fraction=0.5)
    crowd.report(0, 5, score=0.1)
    decision = crowd.report(1, 5, score=0.9)
    assert decision.donor == "t0"
    assert "has 0.1" in decision.reason


def test_a_clone_counts_in_no_ranking_until_it_is_judged_again():
    crowd = Crowd(number=2, quantile_fraction=0.5)
    crowd.report(0, 5, score=0.9)
    crowd.exploit(1, crowd.report(1, 5, score=0.5))
    # Worse than the clone was, but how that is now is unknown.
    assert isinstance(crowd.report(0, 10, score=0.1), Continue)
    assert isinstance(crowd.report(1, 10, score=0.05), Exploit)


def test_an_exploit_that_could_not_be_carried_out_leaves_the_trial_where_it_is():
    crowd = Crowd(number=2, quantile_fraction=0.5)
    crowd.report(0, 5, score=0.9)
    decision = crowd.report(1, 6, score=0.5)
    assert decision.otherwise == Continue(save=True, hold=True, kind=decision.otherwise.kind)
    assert crowd.due(1) == 11


def test_where_a_checkpoint_does_not_tell_the_time_the_donors_is_taken():
    crowd = Crowd(number=2, quantile_fraction=0.5)
    crowd.report(0, 5, score=0.9)
    decision = crowd.report(1, 7, score=0.5)
    crowd.scheduler.on_trial_exploit(crowd.trials["t1"], crowd.trials[decision.donor])
    assert crowd.due(1) == 10
    crowd.scheduler.on_trial_remove(crowd.trials["t0"])
    crowd.scheduler.on_trial_exploit(crowd.trials["t1"], crowd.trials["t0"])
    assert crowd.due(1) == 5


@pytest.mark.parametrize(
    ("number", "fraction", "lower"),
    [(1, 0.5, 0), (2, 0.25, 1), (3, 0.5, 1), (4, 0.25, 1), (5, 0.25, 2), (8, 0.0, 0), (10, 0.3, 3)],
)
def test_so_many_are_the_worst(number: int, fraction: float, lower: int):
    crowd = Crowd(number=number, quantile_fraction=fraction, synch=True)
    for index in range(number):
        crowd.report(index, 5, score=float(index))
    commands = crowd.scheduler.on_standstill(Waiting({}, crowd.trials))
    worst = [one.trial_id for one in commands if isinstance(one, ExploitOther)]
    assert worst == [f"t{index}" for index in range(lower)]
    best = {one.donor for one in commands if isinstance(one, ExploitOther)}
    assert best <= {f"t{index}" for index in range(number - lower, number)}


@pytest.mark.parametrize("score", [nan, inf, -inf, "diverged"])
def test_a_score_that_is_no_number_is_the_worst_and_always_replaced(score: Any):
    crowd = Crowd(quantile_fraction=0.25)
    for index in (0, 1):
        assert not isinstance(crowd.report(index, 5, score=score), Exploit)
    crowd.report(2, 5, score=0.0)
    crowd.report(3, 5, score=1.0)
    # Two of them, though a quarter of four is one.
    for index in (0, 1):
        assert crowd.report(index, 10, score=score).donor == "t3"


def test_without_a_trial_to_clone_all_resume():
    crowd = Crowd(synch=True)
    for index in range(4):
        crowd.report(index, 5, score=nan)
    commands = crowd.scheduler.on_standstill(Waiting({}, crowd.trials))
    assert [type(one) for one in commands] == [Unpause] * 4


@pytest.mark.parametrize("lacking", ["score", "training_iteration"])
def test_a_result_without_what_is_needed_is_an_error_if_the_user_says_so(lacking: str):
    crowd = Crowd()
    row = {"score": 1.0, "training_iteration": 5, "other": 1}
    del row[lacking]
    with pytest.raises(ConfigError, match=f"must have '{lacking}'"):
        crowd.scheduler.on_trial_result(crowd.trials["t0"], row)


def test_else_it_is_passed_over(caplog: pytest.LogCaptureFixture):
    crowd = Crowd(require_attrs=False, time_attr="epoch")
    assert crowd.report(0, 5, score=1.0) == Continue()
    assert crowd.report(0, 6, epoch=5) == Continue()
    assert crowd.report(0, 7, epoch=5) == Continue()
    assert crowd.report(0, 8, epoch=inf, score=1.0) == Continue()
    assert [record.args[1] for record in caplog.records] == ["epoch", "score"]
    assert crowd.due(0) == 5


def test_a_trial_makes_room_for_those_that_wait():
    crowd = Crowd(number=2)
    crowd.add(starts=False)
    decision = crowd.report(0, 5, score=1.0)
    assert isinstance(decision, Pause)
    assert decision.hold
    # There are two that wait, and one place is free: so one more has to go.
    assert isinstance(crowd.report(1, 5, score=1.0), Pause)
    for key in ("t0", "t2"):
        crowd.scheduler.on_trial_start(crowd.trials[key])
    crowd.scheduler.on_trial_remove(crowd.trials["t1"])
    assert isinstance(crowd.report(0, 10, score=1.0), Continue)


@pytest.mark.parametrize("end", ["on_trial_complete", "on_trial_error", "on_trial_remove"])
def test_a_trial_that_has_ended_is_not_cloned(end: str):
    crowd = Crowd(number=3, quantile_fraction=0.5)
    crowd.report(0, 5, score=0.9)
    crowd.report(1, 5, score=0.7)
    arguments = ({},) if end == "on_trial_complete" else ()
    assert getattr(crowd.scheduler, end)(crowd.trials["t0"], *arguments) == ()
    assert crowd.report(2, 5, score=0.5).donor == "t1"


def test_none_makes_room_for_a_clone_that_has_left_its_own():
    crowd = Crowd(number=2, quantile_fraction=0.5)
    crowd.report(0, 5, score=0.9)
    crowd.exploit(1, crowd.report(1, 5, score=0.5))
    assert isinstance(crowd.report(0, 10, score=1.0), Continue)


def test_a_lost_trial_is_next_and_then_the_one_with_the_fewest_turns():
    crowd = Crowd(number=3)
    crowd.report(0, 5, score=1.0)
    choose = crowd.scheduler.choose_trial_to_run
    first, second, third = crowd.trials.values()
    assert choose(Waiting({}, crowd.trials)) is second
    first.incarnation = 1
    assert first.status is TrialStatus.PENDING
    assert choose(Waiting({"t0": first}, {"t2": third})) is first
    assert choose(Waiting({}, {})) is None
    unknown = Trial(trial_id="x", config={}, resources=first.resources)
    assert choose(Waiting({"x": unknown}, {})) is unknown
    assert crowd.scheduler.next_milestones(unknown) == (Milestone("training_iteration", 5),)


def test_trials_that_wait_for_each_other_are_not_chosen_until_all_are_there():
    crowd = Crowd(number=3, synch=True)
    scheduler, (first, second, third) = crowd.scheduler, crowd.trials.values()
    assert scheduler.waits_for_others
    assert isinstance(crowd.report(0, 5, score=1.0), Pause)
    assert isinstance(crowd.report(1, 5, score=2.0), Pause)
    waiting = Waiting({"t2": third}, {"t0": first, "t1": second})
    assert scheduler.choose_trial_to_run(waiting) is third
    crowd.report(2, 5, score=3.0)
    assert scheduler.choose_trial_to_run(Waiting({}, crowd.trials)) is None
    commands = scheduler.on_standstill(Waiting({}, crowd.trials))
    assert [type(one) for one in commands] == [ExploitOther] + 3 * [Unpause]
    scheduler.on_trial_exploit(first, third)
    assert [crowd.due(index) for index in range(3)] == [10, 10, 10]


def test_the_next_ranking_is_beyond_all_trials_however_far_they_have_come():
    crowd = Crowd(number=2, synch=True)
    crowd.report(0, 51, score=1.0)
    crowd.report(1, 5, score=1.0)
    crowd.scheduler.on_standstill(Waiting({}, crowd.trials))
    assert crowd.due(0) == crowd.due(1) == 55


@pytest.mark.parametrize("synch", [False, True])
def test_a_restored_population_is_ranked_when_it_was_due_and_not_at_once(synch: bool):
    crowd = Crowd(number=2, synch=synch)
    for index in (0, 1):
        crowd.report(index, 51, score=float(index))
    if synch:
        crowd.scheduler.on_standstill(Waiting({}, crowd.trials))
    due = [crowd.due(index) for index in (0, 1)]
    state = json.loads(json.dumps(crowd.scheduler.state_dict()))
    crowd.scheduler = pbt(synch=synch)
    crowd.scheduler.load_state_dict(state)
    assert [crowd.due(index) for index in (0, 1)] == due == ([55, 55] if synch else [56, 56])
    assert crowd.report(0, 52, score=-1.0) == Continue()
    # All of them may run, too: none has trained for too long.
    chosen = crowd.scheduler.choose_trial_to_run(Waiting({}, crowd.trials))
    assert chosen is crowd.trials["t0"]


def test_a_trial_gets_what_its_configuration_lacks():
    crowd = Crowd(number=0, hyperparam_mutations={"momentum": [0.9]})
    [command] = crowd.add()
    assert (command.trial_id, command.donor) == ("t0", "t0")
    assert command.config == {"lr": 0.0, "momentum": 0.9}
    assert crowd.add(momentum=0.5) is None


def test_the_users_function_has_the_last_word():
    crowd = Crowd(number=2, quantile_fraction=0.5, custom_explore_fn=lambda config: {"lr": 42})
    crowd.report(0, 5, score=1.0)
    assert crowd.report(1, 5, score=0.0).config == {"lr": 42}
    crowd = Crowd(number=2, quantile_fraction=0.5, custom_explore_fn=lambda config: None)
    crowd.report(0, 5, score=1.0)
    with pytest.raises(ConfigError, match="custom_explore_fn"):
        crowd.report(1, 5, score=0.0)


def test_the_files_can_be_done_without():
    assert pbt().writes_policies
    assert not pbt(log_config=False).writes_policies


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"hyperparam_mutations": None}, "hyperparam_mutations must be given"),
        ({"hyperparam_mutations": {}}, "hyperparam_mutations must be given"),
        ({"hyperparam_mutations": {"x": sample_from(lambda: 1)}}, "no sample_from"),
        ({"quantile_fraction": 0.6}, "quantile_fraction must be in"),
        ({"quantile_fraction": -0.1}, "quantile_fraction must be in"),
        ({"perturbation_interval": 0}, "perturbation_interval must be more than 0"),
        ({"burn_in_period": -1}, "burn_in_period must be at least 0"),
        ({"custom_explore_fn": 3}, "custom_explore_fn must be None, or callable"),
        ({"custom_explore_fn": lambda: {}}, "or callable with a configuration, got <function"),
        ({"synch": "yes"}, "synch must be True or False, got 'yes'"),
        ({"require_attrs": None}, "require_attrs must be True or False, got None"),
        ({"log_config": 0}, "log_config must be True or False, got 0"),
        ({"mode": "best"}, "mode must be"),
    ],
)
def test_arguments_that_break_their_rule_are_refused(changes: dict[str, Any], rule: str):
    with pytest.raises(ConfigError, match=rule):
        pbt(**changes)


def test_it_has_a_name():
    made = create_scheduler("pbt", hyperparam_mutations={"lr": [1, 2]})
    assert isinstance(made, PopulationBasedTraining)


def test_a_trial_that_continues_its_own_checkpoint_is_no_clone():
    crowd = Crowd()
    before = crowd.scheduler.state_dict()
    crowd.scheduler.on_trial_exploit(crowd.trials["t1"], crowd.trials["t1"])
    assert crowd.scheduler.state_dict() == before
