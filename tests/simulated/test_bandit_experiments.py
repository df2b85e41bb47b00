"""Whole experiments with population based bandits, in virtual time."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest

from dasktune.config import RunConfig, TuneConfig
from dasktune.schedulers import PB2, PopulationBasedTraining, TrialScheduler
from dasktune.space import uniform
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import MemoryStore, simulate
from dasktune.trial.status import PublicStatus

STEPS = 60
SEEDS = range(4)


def drifting(config: dict[str, Any], checkpoint: Any) -> Any:
    """Comes higher the nearer both rates are to an optimum that moves as it trains."""
    height, step = checkpoint or (0.0, 0)
    while step < STEPS:
        best = 0.2 + 0.6 * step / STEPS
        miss = (config["x"] - best) ** 2 + (config["y"] - (1 - best)) ** 2
        height, step = height + 1 - 4 * miss, step + 1
        yield {"height": height}, 10.0 + config["x"], (height, step)


def run(scheduler: TrialScheduler, seed: int = 0, **simulation: Any) -> tuple[Any, list[dict[str, Any]]]:
    store = MemoryStore()
    results = simulate(
        drifting,
        param_space={"x": uniform(0, 1), "y": uniform(0, 1)},
        tune_config=TuneConfig(metric="height", mode="max", num_samples=4, seed=seed, scheduler=scheduler),
        run_config=RunConfig(),
        store=store,
        **{"slots": 4, **simulation},
    )
    return results, [decode(line) for line in store.journal.splitlines()]


def pb2(kind: type[PB2] = PB2, **changes: Any) -> PB2:
    return kind(
        **{
            "time_attr": "training_iteration",
            "perturbation_interval": 4,
            "hyperparam_bounds": {"x": [0.0, 1.0], "y": [0.0, 1.0]},
            **changes,
        }
    )


def by_chance() -> PopulationBasedTraining:
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=4,
        hyperparam_mutations={"x": uniform(0, 1), "y": uniform(0, 1)},
        resample_probability=1.0,
    )


def best(scheduler: TrialScheduler, seed: int) -> float:
    return float(run(scheduler, seed)[0].get_best_result().metrics["height"])


@pytest.mark.slow
def test_a_few_trials_follow_an_optimum_that_moves_better_than_by_chance():
    learnt = [best(pb2(), seed) for seed in SEEDS]
    chance = [best(by_chance(), seed) for seed in SEEDS]
    assert mean(learnt) > mean(chance) + 2, (learnt, chance)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("synch", [False, True])
def test_every_question_is_answered_and_every_trial_ends(synch: bool, slots: int, quick_bandit: None):
    results, records = run(pb2(synch=synch), slots=slots, lose={105.0: 1, 250.0: 0, 251.0: 2, 400.0: 3})
    assert all(result.status is PublicStatus.TERMINATED for result in results)
    answers = [one for one in records if one["event"] == "Answered"]
    assert [one["number"] for one in answers] == [*range(1, len(answers) + 1)]
    assert len(answers) >= 5
    orders = [action["do"] for one in answers for action in one.get("actions", ())]
    assert orders.count("ExploitTrial") >= 5


class FailingBandit(PB2):
    """Cannot answer any question."""

    @property
    def questions(self) -> dict[int, Any]:
        return dict.fromkeys(super().questions, self.fail)

    def fail(self) -> Any:
        raise ArithmeticError("not positive definite")


def test_a_bandit_that_fails_leaves_exploring_to_chance(caplog: pytest.LogCaptureFixture):
    results, records = run(pb2(FailingBandit))
    answers = [one for one in records if one["event"] == "Answered"]
    assert all(one["answer"] is None for one in answers)
    assert sum("not positive definite" in (one.exc_text or "") for one in caplog.records) == len(answers)
    assert any(action["do"] == "ExploitTrial" for one in answers for action in one["actions"])
    assert all(result.status is PublicStatus.TERMINATED for result in results)
