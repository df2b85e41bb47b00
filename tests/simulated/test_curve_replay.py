"""The light loop of `whatif` takes the same decisions as a whole experiment in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from numpy.random import SeedSequence, default_rng

from dasktune.config import TuneConfig
from dasktune.forecast.curve_replay import CurveReplay
from dasktune.forecast.recorded_trial import FullCurve
from dasktune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    FunctionScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PromotingASHAScheduler,
    SuccessiveHalvingScheduler,
)
from dasktune.space import grid_search
from dasktune.testing import simulate

EPOCHS = 27


def better_half(history: Any) -> dict[str, int]:
    best = sorted(history, key=lambda name: history[name][-1]["loss"])
    return dict.fromkeys(best[: len(best) // 2], 3)


MAKERS = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHAScheduler(max_t=EPOCHS, reduction_factor=3),
    "asha, brackets": lambda: ASHAScheduler(max_t=EPOCHS, grace_period=2, reduction_factor=2, brackets=3),
    "asha, to the end": lambda: ASHAScheduler(max_t=9, reduction_factor=3, stop_last_trials=False),
    "asha by seconds": lambda: ASHAScheduler(
        time_attr="time_total_s", max_t=20, grace_period=1, reduction_factor=3
    ),
    "promoting": lambda: PromotingASHAScheduler(max_t=EPOCHS, reduction_factor=3),
    "promoting, brackets": lambda: PromotingASHAScheduler(max_t=EPOCHS, reduction_factor=3, brackets=3),
    "promoting, to the end": lambda: PromotingASHAScheduler(
        max_t=EPOCHS, reduction_factor=3, stop_last_trials=False
    ),
    "hyperband": lambda: HyperBandScheduler(max_t=EPOCHS),
    "halving": lambda: SuccessiveHalvingScheduler(max_t=EPOCHS),
    "halving in cohorts": lambda: SuccessiveHalvingScheduler(max_t=EPOCHS, n_trials=9),
    "median": lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=3),
    "median by seconds": lambda: MedianStoppingRule(grace_period=4),
    "median, paused": lambda: MedianStoppingRule(
        time_attr="training_iteration", grace_period=3, hard_stop=False
    ),
    "median, slices": lambda: MedianStoppingRule(
        time_attr="training_iteration", grace_period=1, min_samples_required=8, min_time_slice=2
    ),
    "median at milestones": lambda: MedianStoppingRule(time_attr="training_iteration", check_at=[3, 9]),
    "median at milestones, slices": lambda: MedianStoppingRule(
        time_attr="training_iteration", grace_period=2, reduction_factor=2, min_samples_required=8
    ),
    "function": lambda: FunctionScheduler(better_half),
}


def recorded(seed: int, trials: int = 40) -> list[list[dict[str, Any]]]:
    """Return the rows of trials that cross each other, of which some end early or diverge."""
    rng = default_rng(seed)
    found = []
    for number in range(trials):
        floor, pace, rate = rng.random(), float(rng.uniform(0.5, 2)), rng.uniform(0.2, 2)
        length = int(rng.integers(1, EPOCHS)) if number % 10 == 3 else EPOCHS
        rows, total = [], 0.0
        for epoch in range(1, length + 1):
            loss = float(floor + epoch**-rate + 0.05 * rng.normal())
            if number % 10 == 7 and epoch > 4:
                loss = float("nan")
            total += pace
            rows.append({"loss": loss, "training_iteration": epoch, "time_total_s": total})
        found.append(rows)
    return found


def simulated(scheduler: Any, recorded_rows: list[list[dict[str, Any]]], slots: int, seed: int) -> Any:
    def curve(config: dict[str, Any], checkpoint: int | None) -> Iterator[tuple[Any, float, int]]:
        rows = recorded_rows[config["number"]]
        for epoch in range(checkpoint or 0, len(rows)):
            yield {"loss": rows[epoch]["loss"]}, rows[0]["time_total_s"], epoch + 1

    return simulate(
        curve,
        param_space={"number": grid_search(list(range(len(recorded_rows))))},
        tune_config=TuneConfig(metric="loss", mode="min", scheduler=scheduler, seed=seed),
        slots=slots,
    )


def replayed(scheduler: Any, recorded_rows: list[list[dict[str, Any]]], workers: int, seed: int) -> Any:
    scheduler.set_search_properties("loss", "min")
    # As the experiment seeds its scheduler.
    scheduler.seed(SeedSequence(seed).spawn(2)[1].spawn(2)[1])
    replay = CurveReplay(scheduler, [FullCurve(rows, "loss", "min") for rows in recorded_rows], workers)
    replay.run()
    return replay


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("seed", "workers"), [(0, 4), (1, 1), (2, 11)])
def test_the_light_loop_decides_as_an_experiment_does(name, seed, workers):
    rows = recorded(seed)
    results = simulated(MAKERS[name](), rows, workers, seed)
    replay = replayed(MAKERS[name](), rows, workers, seed)
    trials = list(replay.trials.values())
    assert [trial.last_iteration for trial in trials] == [len(result.history) for result in results]
    assert [trial.reason for trial in trials] == [result.reason for result in results]
    assert replay.iterations == sum(len(result.history) for result in results)
    assert all(trial.public_status is result.status for trial, result in zip(trials, results, strict=True))
