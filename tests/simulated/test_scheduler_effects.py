"""What schedulers are for: the same answer for less training, whatever is lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dasktune.config import RunConfig, TuneConfig
from dasktune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    FunctionScheduler,
    MedianStoppingRule,
    MultiObjectiveASHAScheduler,
    PromotingASHAScheduler,
    TrialScheduler,
)
from dasktune.space import grid_search, uniform
from dasktune.testing import MemoryStore, simulate
from dasktune.trial.status import PublicStatus
from dasktune.tuner.result_grid import ResultGrid

LOSE = {100.0 * n: n % 7 for n in range(1, 30)}

EPOCHS = 27


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    for epoch in range(checkpoint or 0, EPOCHS):
        yield {"loss": config["x"] + 1 / (epoch + 1)}, 10.0 + config["x"], epoch + 1


class Forgetful(MemoryStore):
    """Keeps no snapshots, which would take most of the time: no driver resumes from them."""

    def save_snapshot(self, state: Any) -> None:
        pass


def run(scheduler: TrialScheduler, space: dict[str, Any], **settings: Any) -> ResultGrid:
    tune = {"metric": "loss", "mode": "min", "num_samples": 60, "seed": 3}
    tune |= settings.pop("tune", {})
    results = simulate(
        settings.pop("trainable", curve),
        param_space=space,
        tune_config=TuneConfig(scheduler=scheduler, **tune),
        run_config=RunConfig(stop={"training_iteration": settings.pop("end", EPOCHS)}),
        **{"slots": 4, "store": Forgetful(), **settings},
    )
    for result in results:
        iterations = [row["training_iteration"] for row in result.history]
        assert iterations == list(range(1, len(iterations) + 1))
        assert result.status is PublicStatus.TERMINATED
        assert result.reason or len(iterations) == EPOCHS or isinstance(scheduler, FIFOScheduler)
    return results


def epochs(results: ResultGrid) -> int:
    return sum(len(result.history) for result in results)


HALVING = {"max_t": EPOCHS, "reduction_factor": 3}

SAVING = {
    "asha": (lambda: ASHAScheduler(**HALVING), 0.4),
    "promoting": (lambda: PromotingASHAScheduler(**HALVING), 0.2),
    "median": (lambda: MedianStoppingRule(grace_period=50), 0.7),
    "median by epochs": (
        lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=3),
        0.7,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("lose", [None, LOSE], ids=["calm", "losses"])
@pytest.mark.parametrize("name", SAVING)
def test_the_best_is_found_with_a_part_of_the_training(name: str, lose: Any):
    make, part = SAVING[name]
    space = {"x": uniform(0, 1)}
    everything = run(FIFOScheduler(), space)
    results = run(make(), space, lose=lose)
    assert results.get_best_result().config == everything.get_best_result().config
    assert epochs(results) <= part * epochs(everything)


def test_even_in_order_of_improvement_fewer_are_promoted_than_are_not_stopped():
    """The stopping variant stops no trial then, by its definition; a new one is always best."""
    space = {"x": grid_search([1 - n / 27 for n in range(27)])}
    tune = {"num_samples": 1}
    stopping, promoting = (
        run(scheduler, space, tune=tune, slots=1)
        for scheduler in (ASHAScheduler(**HALVING), PromotingASHAScheduler(**HALVING))
    )
    assert epochs(stopping) == 27 * EPOCHS
    assert epochs(promoting) < epochs(stopping)
    assert promoting.get_best_result().config == stopping.get_best_result().config


def test_with_a_narrow_limiter_the_better_half_still_gets_promoted():
    results = run(
        PromotingASHAScheduler(**HALVING),
        {"x": uniform(0, 1)},
        tune={"max_concurrent_trials": 4},
    )
    assert len(results) == 60
    assert max(len(result.history) for result in results) == EPOCHS


def test_a_soft_median_lets_the_bad_ones_train_last():
    finished: list[float] = []
    paused: set[str] = set()

    class Watching(Forgetful):
        def append(self, record: Any) -> int:
            paused.update(
                action["trial_id"]
                for action in record.get("actions", ())
                if action["do"] == "PauseTrial" and "at best" in action["reason"]
            )
            return super().append(record)

    def noting(config: dict[str, Any], checkpoint: Any) -> Any:
        yield from curve(config, checkpoint)
        finished.append(config["x"])

    median = MedianStoppingRule(
        time_attr="training_iteration", grace_period=3, min_time_slice=EPOCHS, hard_stop=False
    )
    # Each ends by itself, so that it can be noted in which order.
    space = {"x": uniform(0, 1)}
    results = run(median, space, trainable=noting, end=EPOCHS + 1, store=Watching())
    assert epochs(results) == 60 * EPOCHS
    assert 20 < len(paused) < 50
    bad = {one.config["x"] for one in results if one.trial_id in paused}
    assert bad.issuperset(finished[-15:])


def remove_worst(history: dict[str, Any]) -> dict[str, int]:
    """The policy in the documentation of dask-ml's incremental fit."""
    last = {name: rows[-1]["loss"] for name, rows in history.items()}
    worst = max(last.values())
    wanted = {name: 1 for name, loss in last.items() if loss != worst}
    return wanted if len(wanted) > 1 else dict.fromkeys(wanted, 0)


@pytest.mark.parametrize("lose", [None, LOSE], ids=["calm", "losses"])
@pytest.mark.parametrize("slots", [1, 3, 20])
def test_a_policy_of_dask_ml_makes_as_many_calls_as_there(slots: int, lose: Any):
    results = run(
        FunctionScheduler(remove_worst),
        {"x": uniform(0, 1)},
        tune={"num_samples": 10},
        slots=slots,
        lose=lose,
    )
    assert epochs(results) == 10 + sum(range(2, 10))
    ranked = sorted(results, key=lambda result: result.config["x"])
    assert [len(result.history) for result in ranked] == [9, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert ranked[0].reason == "remove_worst requests no more iterations"
    assert ranked[5].reason == "remove_worst returned no entry for it after iteration 5"


def halving(history: dict[str, Any]) -> dict[str, int]:
    """Successive halving with eta = 3, from 1 to 27 calls."""
    done = max(len(rows) for rows in history.values())
    best = sorted(history, key=lambda name: history[name][-1]["loss"])[: len(history) // 3]
    return dict.fromkeys(best, 2 * done)


def test_successive_halving_is_a_function_of_the_history():
    results = run(FunctionScheduler(halving), {"x": uniform(0, 1)}, tune={"num_samples": 27})
    lengths = sorted(len(result.history) for result in results)
    assert lengths == [1] * 18 + [3] * 6 + [9] * 2 + [27]
    assert len(results.get_best_result().history) == 27


# Several objectives


def zdt1(config: dict[str, Any]) -> Any:
    """ZDT1 with five variables, which are seen better the longer one trains."""
    x = [config[f"x{i}"] for i in range(5)]
    g = 1 + 9 * sum(x[1:]) / 4
    for epoch in range(1, 10):
        blur = 0.5 / epoch
        yield {"f1": x[0] + blur, "f2": g * (1 - (x[0] / g) ** 0.5) + blur}, 1.0


def hypervolume(results: ResultGrid) -> float:
    """Area between what was reached and (1.5, 8), which is worse than nearly everything."""
    points = sorted((one.history[-1]["f1"], one.history[-1]["f2"]) for one in results)
    area, ceiling = 0.0, 8.0
    for f1, f2 in points:
        if f1 < 1.5 and f2 < ceiling:
            area += (1.5 - f1) * (ceiling - f2)
            ceiling = f2
    return area


@pytest.mark.slow
def test_several_objectives_are_reached_further_than_at_random_for_as_much_training():
    """Ten seeds, all fixed; the ratios were 1.03 to 1.14."""
    space = {f"x{i}": uniform(0, 1) for i in range(5)}
    ratios = []
    for seed in range(10):
        tune = {"metric": "f1", "num_samples": 90, "seed": seed}
        ours = run(
            MultiObjectiveASHAScheduler(metrics=["f1", "f2"], modes="min", max_t=9, reduction_factor=3),
            space,
            tune=tune,
            trainable=zdt1,
        )
        tune["num_samples"] = -(-epochs(ours) // 9)
        random = run(FIFOScheduler(), space, tune=tune, trainable=zdt1)
        assert epochs(random) >= epochs(ours)
        ratios.append(hypervolume(ours) / hypervolume(random))
    assert np.mean(ratios) > 1.05
    assert min(ratios) > 1


@pytest.mark.parametrize("name", ["asha", "promoting", "median by epochs"])
def test_one_scheduler_decides_the_same_in_each_of_two_experiments(name: str):
    scheduler = SAVING[name][0]()
    first, second = (run(scheduler, {"x": uniform(0, 1)}) for _ in range(2))
    assert epochs(first) < 60 * EPOCHS
    assert [result.history for result in first] == [result.history for result in second]
