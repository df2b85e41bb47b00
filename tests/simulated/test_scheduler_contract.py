"""Every scheduler of ours keeps the contract, and one that breaks it is found out."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dasktune.schedulers import (
    PB2,
    ASHAScheduler,
    Continue,
    DistributeResourcesToTopJob,
    ExploitOther,
    FIFOScheduler,
    FunctionScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    MultiObjectiveASHAScheduler,
    Pause,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    PromotingASHAScheduler,
    ResourceChangingScheduler,
    Stop,
    SuccessiveHalvingScheduler,
    TrialScheduler,
    Unpause,
)
from dasktune.schedulers.fifo import first_in
from dasktune.space import randint, uniform
from dasktune.testing import SchedulerContract
from dasktune.trial.milestone import Milestone

pytestmark = pytest.mark.usefixtures("quick_bandit")


class TestFIFO(SchedulerContract):
    def make_scheduler(self):
        return FIFOScheduler()


class TestASHA(SchedulerContract):
    def make_scheduler(self):
        return ASHAScheduler(max_t=20, grace_period=2, reduction_factor=2, brackets=2)


class TestASHAWithoutEnd(SchedulerContract):
    def make_scheduler(self):
        return ASHAScheduler(time_attr="time_total_s", grace_period=30, stop_last_trials=False)


class TestPromotingASHA(SchedulerContract):
    def make_scheduler(self):
        return PromotingASHAScheduler(max_t=20, grace_period=2, reduction_factor=2, brackets=2)


class TestHyperBand(SchedulerContract):
    def make_scheduler(self):
        return HyperBandScheduler(max_t=18)


class TestHyperBandForBOHB(SchedulerContract):
    metric, mode = "accuracy", "max"

    def make_scheduler(self):
        return HyperBandForBOHB(max_t=9, reduction_factor=2.5, stop_last_trials=False)


class TestSuccessiveHalving(SchedulerContract):
    def make_scheduler(self):
        return SuccessiveHalvingScheduler(max_t=16, reduction_factor=2)


class TestSuccessiveHalvingInCohorts(SchedulerContract):
    def make_scheduler(self):
        return SuccessiveHalvingScheduler(
            time_attr="time_total_s", grace_period=20, max_t=100, reduction_factor=2, n_trials=5
        )


class TestMultiObjectiveASHA(SchedulerContract):
    def make_scheduler(self):
        return MultiObjectiveASHAScheduler(
            metrics=["loss", "accuracy"],
            modes=["min", "max"],
            max_t=20,
            grace_period=2,
            reduction_factor=2,
        )


class TestMedianStopping(SchedulerContract):
    def make_scheduler(self):
        return MedianStoppingRule()


class TestMedianStoppingThatPauses(SchedulerContract):
    metric, mode = "accuracy", "max"

    def make_scheduler(self):
        return MedianStoppingRule(
            time_attr="training_iteration", grace_period=3, min_time_slice=2, hard_stop=False
        )


class TestMedianStoppingAtMilestones(SchedulerContract):
    def make_scheduler(self):
        return MedianStoppingRule(time_attr="training_iteration", check_at=[2, 4], mean_start=1)


class TestMedianStoppingAtRungs(SchedulerContract):
    metric, mode = "accuracy", "max"

    def make_scheduler(self):
        return MedianStoppingRule(
            time_attr="training_iteration", grace_period=1, reduction_factor=2, hard_stop=False
        )


def first_half(history):
    return dict.fromkeys(list(history)[: len(history) // 2], 3)


class TestFunction(SchedulerContract):
    def make_scheduler(self):
        return FunctionScheduler(first_half)


class TestResourceChanging(SchedulerContract):
    def make_scheduler(self):
        return ResourceChangingScheduler()


class TestResourceChangingAroundOneThatPauses(SchedulerContract):
    def make_scheduler(self):
        return ResourceChangingScheduler(
            HyperBandScheduler(max_t=18), DistributeResourcesToTopJob(increase_by_times=4)
        )


class TestResourceChangingWithoutAFunction(SchedulerContract):
    def make_scheduler(self):
        return ResourceChangingScheduler(ASHAScheduler(max_t=20, grace_period=2), None)


class TestPBT(SchedulerContract):
    def make_scheduler(self):
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=3,
            burn_in_period=4,
            hyperparam_mutations={"x": uniform(0, 1), "lacking": [1, 2, 3]},
            require_attrs=False,
        )


class TestPBTOfFewTrialsByTime(SchedulerContract):
    metric, mode, num_trials = "accuracy", "max", 4

    def make_scheduler(self):
        return PopulationBasedTraining(
            quantile_fraction=0.5,
            custom_explore_fn=lambda config: {"x": 1 - config["x"]},
            require_attrs=False,
        )


class TestPBTInSynchrony(SchedulerContract):
    def make_scheduler(self):
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=3,
            hyperparam_mutations={"x": uniform(0, 1)},
            require_attrs=False,
            synch=True,
        )


class TestPB2(SchedulerContract):
    def make_scheduler(self):
        return PB2(
            time_attr="training_iteration",
            perturbation_interval=5,
            hyperparam_bounds={"x": [0, 1], "lacking": randint(1, 9)},
            require_attrs=False,
        )


class TestPB2OfFewTrialsByTime(SchedulerContract):
    metric, mode, num_trials = "accuracy", "max", 4

    def make_scheduler(self):
        return ResourceChangingScheduler(
            PB2(hyperparam_bounds={"x": [0, 1]}, quantile_fraction=0.5, require_attrs=False)
        )


class TestPB2InSynchrony(SchedulerContract):
    def make_scheduler(self):
        return PB2(
            time_attr="training_iteration",
            perturbation_interval=5,
            hyperparam_bounds={"x": [0, 1]},
            require_attrs=False,
            synch=True,
        )


class TestPBTReplay(SchedulerContract):
    num_trials = 1

    def make_scheduler(self):
        rows = [
            ["c", "b", 7, 7, {"x": 0.3}, {"x": 0.4}],
            ["b", "a", 4, 4, {"x": 0.1}, {"x": 0.2}],
            ["c", "b", 9, 8, {"x": 0.2}, {"x": 0.5}],
        ]
        with TemporaryDirectory() as folder:
            file = Path(folder) / "pbt_policy_c.txt"
            file.write_text("\n".join(map(json.dumps, rows)))
            return PopulationBasedTrainingReplay(file)


class Broken(TrialScheduler):
    """Keeps to all of the contract; those below do not."""

    def __init__(self):
        self.seen = {}

    def on_trial_result(self, trial, result):
        self.seen[trial.trial_id] = self.seen.get(trial.trial_id, 0) + 1
        if self.seen[trial.trial_id] == 8:
            return Stop("has been seen often enough")
        return Pause("rests") if self.seen[trial.trial_id] == 4 else Continue()

    def choose_trial_to_run(self, waiting):
        return first_in(waiting)

    def state_dict(self):
        return {"seen": dict(self.seen)}

    def load_state_dict(self, state):
        self.seen = dict(state["seen"])


class TestWhatTheBrokenOnesAreMadeOf(SchedulerContract):
    def make_scheduler(self):
        return Broken()


class Forgetful(Broken):
    def load_state_dict(self, state):
        pass


class Lending(Broken):
    def state_dict(self):
        return {"seen": self.seen}


class Speechless(Broken):
    def on_trial_result(self, trial, result):
        decision = super().on_trial_result(trial, result)
        return Stop(" ") if isinstance(decision, Stop) else decision


class Silent(Broken):
    """Changes configurations and does not say why."""

    def on_trial_add(self, trial):
        key, config = trial.trial_id, dict(trial.config)
        return (ExploitOther(trial_id=key, donor=key, config=config, reason=" "),)


class Rash(Broken):
    """Lets workers continue without an answer, and judges them all the same."""

    def next_milestones(self, trial):
        return (Milestone("training_iteration", 10),)


class InOrder(Broken):
    """Keeps in mind who came last, and does not say that it minds."""

    def on_trial_result(self, trial, result):
        self.seen["last"] = trial.trial_id
        return Continue()

    def next_milestones(self, trial):
        return ()


class Counting(Broken):
    def choose_trial_to_run(self, waiting):
        self.seen["asked"] = self.seen.get("asked", 0) + 1
        return super().choose_trial_to_run(waiting)


class Fickle(Broken):
    made = 0

    def __init__(self):
        super().__init__()
        Fickle.made += 1
        self.limit = 3 + Fickle.made % 7

    def on_trial_result(self, trial, result):
        enough = result["training_iteration"] >= self.limit
        return Stop("has been long enough") if enough else Continue()


class Gullible(Broken):
    def on_trial_result(self, trial, result):
        return Stop("is good") if result["loss"] < 0.3 else Continue()


class Sleepy(Broken):
    """Promises to resume trials, again and again."""

    def choose_trial_to_run(self, waiting):
        return next((one for one in waiting.pending.values() if not one.history), None)

    def on_standstill(self, waiting):
        return tuple(Unpause(trial_id=name) for name in (*waiting.pending, *waiting.paused))


class Accountant(Broken):
    def on_trial_error(self, trial):
        self.seen["ends"] = self.seen.get("ends", 0) + 1
        return ()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Forgetful, "a_state_survives_json_and_goes_on_as_if_nothing_had_happened"),
        (Lending, "a_saved_state_does_not_change_afterwards"),
        (Speechless, "every_stop_and_pause_has_a_reason"),
        (Silent, "every_stop_and_pause_has_a_reason"),
        (Rash, "every_trial_comes_to_its_end"),
        (InOrder, "results_between_milestones_commute"),
        (Counting, "asking_changes_nothing"),
        (Fickle, "the_same_seed_gives_the_same_decisions"),
        (Gullible, "undefined_metrics_do_no_harm"),
        (Sleepy, "every_trial_comes_to_its_end"),
        (Accountant, "an_end_may_come_at_any_time_and_twice"),
    ],
)
def test_one_that_breaks_the_contract_is_found(kind, sentence):
    class Contract(SchedulerContract):
        def make_scheduler(self):
            return kind()

    with pytest.raises((AssertionError, TypeError, KeyError)):
        getattr(Contract(), f"test_{sentence}")()
