"""Whole experiments in virtual time: what a user may count on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.experiment import ExperimentMachine
from dasktune.results.result import Result
from dasktune.schedulers import ASHAScheduler, FIFOScheduler
from dasktune.schedulers.decision import Continue, Pause
from dasktune.space import grid_search, loguniform, uniform
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import MemoryStore, WorkerDied, simulate
from dasktune.trial.status import PublicStatus
from dasktune.tuner.result_grid import ResultGrid

EPOCHS = 27


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    """Learn at a rate that is best at 0.1, a minute for each epoch, saving every second one."""
    floor = abs(math.log10(config["lr"] / 0.1))
    for epoch in range(checkpoint or 0, EPOCHS):
        saved = epoch + 1 if epoch % 2 else None
        yield {"loss": floor + 1 / (epoch + 1)}, 60.0, saved


def forgetful(config: dict[str, Any]) -> Any:
    for epoch in range(6):
        yield {"loss": 1 / (epoch + 1)}, 60.0


def run(trainable: Any = curve, **arguments: Any) -> tuple[ResultGrid, list[dict[str, Any]]]:
    """Return the results, and the journal as records."""
    store = MemoryStore()
    tune = {"metric": "loss", "mode": "min", "num_samples": 8, "seed": 0}
    results = simulate(
        trainable,
        param_space=arguments.pop("space", {"lr": loguniform(1e-4, 1.0)}),
        tune_config=TuneConfig(**{**tune, **arguments.pop("tune", {})}),
        store=store,
        **{"slots": 4, **arguments},
    )
    return results, [decode(line) for line in store.journal.splitlines()]


def iterations(result: Result) -> list[int]:
    return [row["training_iteration"] for row in result.history]


def epochs(results: ResultGrid) -> int:
    return sum(len(result.history) for result in results)


def until(journal: list[dict[str, Any]]) -> float:
    return max(record["time"] for record in journal)


# Losses


def test_a_lost_worker_costs_time_not_the_answer():
    calm, in_calm = run()
    stormy, in_storm = run(lose={90.0: 1, 400.0: 3, 1000.0: 0, 1001.0: 1, 3000.0: 6})
    assert [result.history[-1]["loss"] for result in stormy] == [
        result.history[-1]["loss"] for result in calm
    ]
    assert all(iterations(result) == list(range(1, EPOCHS + 1)) for result in stormy)
    assert {result.status for result in stormy} == {PublicStatus.TERMINATED}
    assert until(in_storm) > until(in_calm)


def test_a_trial_that_lost_its_worker_resumes_from_its_checkpoint_and_never_from_the_start():
    _, journal = run(lose={1000.0: 0}, tune={"num_samples": 1})
    lost = next(i for i, record in enumerate(journal) if record["event"] == "TrialLost")
    again = [record for record in journal[lost:] if record["event"] == "ResourcesGranted"]
    (restore,) = again[0]["actions"]
    assert restore["do"] == "RestoreTrial"
    assert restore["checkpoint"]["iteration"] == 16
    first = next(record for record in journal[lost:] if record["event"] == "ResultReported")
    assert first["metrics"]["training_iteration"] == 17
    assert first["metrics"]["time_total_s"] == 17 * 60.0


def test_without_checkpoints_a_trial_restarts_and_still_has_each_iteration_once():
    (result,), journal = run(forgetful, lose={200.0: 0}, tune={"num_samples": 1})
    assert iterations(result) == [1, 2, 3, 4, 5, 6]
    told = [
        record["metrics"]["training_iteration"] for record in journal if record["event"] == "ResultReported"
    ]
    assert told == [1, 2, 3, 1, 2, 3, 4, 5, 6]


def test_a_trial_that_never_gets_on_has_failed():
    lose = {100.0 * n: 0 for n in range(1, 20)}

    def slow(config: dict[str, Any]) -> Any:
        yield {"loss": 1.0}, 150.0

    (result,), _ = run(slow, lose=lose, tune={"num_samples": 1})
    assert result.status is PublicStatus.ERROR
    assert "lost its worker 4 times without progress" in str(result.error)


def test_losses_do_not_count_for_a_trial_that_gets_on():
    lose = {300.0 * n: 0 for n in range(1, 10)}
    (result,), _ = run(lose=lose, tune={"num_samples": 1})
    assert result.status is PublicStatus.TERMINATED


def among_innocents(config: dict[str, Any], checkpoint: Any) -> Any:
    """Save every second epoch; number 2 takes its worker along in the first one."""
    for epoch in range(checkpoint or 0, 4):
        if config["number"] == 2:
            yield {"loss": 1.0}, 60.0, None
            raise WorkerDied("killed by a signal")
        yield {"loss": 1 / (epoch + 1)}, 40.0, epoch + 1 if epoch % 2 else None


@pytest.mark.parametrize("workers", [[4], [8], [2, 2], [4, 4, 1]], ids=str)
def test_a_trial_that_kills_its_workers_is_found_out_and_no_other_pays_for_it(workers: list[int]):
    results, journal = run(
        among_innocents,
        workers=workers,
        space={"number": grid_search(list(range(6)))},
        tune={"num_samples": 1},
        run_config=RunConfig(failure_config=FailureConfig(max_worker_losses=1)),
    )
    statuses = {result.config["number"]: result.status for result in results}
    killer = statuses.pop(2)
    assert killer is PublicStatus.ERROR
    assert set(statuses.values()) == {PublicStatus.TERMINATED}
    (error,) = results.errors
    assert "and no other trial with it; the last time: its worker died: killed by a signal" in str(error)
    losses = [record for record in journal if record["event"] == "TrialLost"]
    alone = [record["trial_id"] for record in losses if not record["shared"]]
    assert len(alone) == 2
    assert len(set(alone)) == 1
    assert all(iterations(result) == [1, 2, 3, 4] for result in results if result.error is None)


def test_a_trial_that_has_to_be_alone_waits_for_a_worker_and_holds_it_until_it_gets_on():
    """The first three trials lose the only worker together, twice; the fourth is innocent."""

    def slow(config: dict[str, Any]) -> Any:
        for _ in range(3):
            yield {"loss": 1.0}, 100.0

    _, journal = run(slow, workers=[3], lose={10.0: 0, 20.0: 0}, tune={"num_samples": 4})
    last_loss = max(i for i, record in enumerate(journal) if record["event"] == "TrialLost")
    told = [
        (record["event"], record["time"], record["trial_id"][-1])
        for record in journal[last_loss:]
        if record["event"] in ("TrialStarted", "TrialEnded")
    ]
    suspects = [trial for what, _, trial in told if what == "TrialStarted"][:3]
    assert sorted(suspects) == ["0", "1", "2"]
    first, second, third = suspects
    assert told == [
        ("TrialStarted", 20.0, first),
        ("TrialEnded", 320.0, first),
        ("TrialStarted", 320.0, second),
        ("TrialEnded", 620.0, second),
        ("TrialStarted", 620.0, third),
        ("TrialStarted", 720.0, "3"),
        ("TrialEnded", 920.0, third),
        ("TrialEnded", 1020.0, "3"),
    ]


# Failures


def test_a_failing_trial_is_tried_again_from_its_checkpoint():
    failed: list[int] = []

    def fragile(config: dict[str, Any], checkpoint: Any) -> Any:
        for epoch in range(checkpoint or 0, 6):
            if epoch == 3 and len(failed) < 2:
                failed.append(epoch)
                raise ValueError("out of luck")
            yield {"loss": 1.0}, 1.0, epoch + 1

    kept = RunConfig(failure_config=FailureConfig(max_failures=2))
    (result,), journal = run(fragile, run_config=kept, tune={"num_samples": 1})
    assert result.status is PublicStatus.TERMINATED
    assert iterations(result) == [1, 2, 3, 4, 5, 6]
    assert [record["event"] for record in journal].count("TrialFailed") == 2


def bad_above_half(config: dict[str, Any]) -> Any:
    yield {"loss": config["lr"]}, 1.0
    if config["lr"] > 0.5:
        raise ValueError("diverged")


def test_a_failing_trial_does_not_hurt_the_others():
    results, _ = run(bad_above_half, space={"lr": grid_search([0.1, 0.9])}, tune={"num_samples": 1})
    assert [result.status for result in results] == [PublicStatus.TERMINATED, PublicStatus.ERROR]
    assert results[1].error.message == "ValueError: diverged"


def test_the_first_failure_may_end_everything():
    hasty = RunConfig(failure_config=FailureConfig(fail_fast=True))
    space = {"lr": grid_search([0.9, 0.1, 0.2])}
    results, _ = run(bad_above_half, space=space, run_config=hasty, slots=1, tune={"num_samples": 1})
    # The third one was not even suggested.
    assert [len(result.history) for result in results] == [1, 0]
    assert results[1].reason == f"trial {results[0].trial_id} failed"


# Schedulers


@pytest.mark.slow
def test_asha_saves_most_of_the_work_and_keeps_one_of_the_best():
    asha = ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3)
    plain, in_plain = run(tune={"num_samples": 60})
    spared, in_spared = run(tune={"num_samples": 60, "scheduler": asha})
    assert [result.config for result in spared] == [result.config for result in plain]
    assert epochs(plain) == 60 * EPOCHS
    assert epochs(spared) < epochs(plain) / 2
    assert until(in_spared) < until(in_plain) / 2
    ranking = sorted(result.history[-1]["loss"] for result in plain)
    assert spared.get_best_result().metrics["loss"] <= ranking[2]


def test_every_trial_that_asha_stops_says_why():
    asha = ASHAScheduler(max_t=EPOCHS, reduction_factor=3)
    results, _ = run(tune={"num_samples": 30, "scheduler": asha})
    assert all("cutoff" in result.reason or "max_t" in result.reason for result in results)


class TakesTurns(FIFOScheduler):
    """Every trial makes room for the others after each checkpoint."""

    def on_trial_result(self, trial: Any, result: Any) -> Any:
        turn_is_over = result["training_iteration"] % 4 == 0
        return Pause("its turn is over") if turn_is_over else Continue()


def test_a_paused_trial_resumes_from_its_checkpoint():
    results, journal = run(slots=1, tune={"num_samples": 3, "scheduler": TakesTurns()})
    assert all(iterations(result) == list(range(1, EPOCHS + 1)) for result in results)
    told = [record for record in journal if record["event"] == "ResultReported"]
    assert len(told) == 3 * EPOCHS
    turns = [told[4 * n]["trial_id"] for n in range(3)]
    assert len(set(turns)) == 3
    paused = [record["status"] for record in journal if record["event"] == "TrialPaused"]
    assert paused == ["PAUSED"] * 3 * (EPOCHS // 4)


class NeverWakes(TakesTurns):
    def choose_trial_to_run(self, waiting: Any) -> Any:
        return next(iter(waiting.pending.values()), None)


def test_trials_that_are_never_woken_do_not_hang_the_experiment():
    results, _ = run(tune={"scheduler": NeverWakes(), "max_concurrent_trials": 2})
    assert len(results) == 8
    assert {len(result.history) for result in results} == {4}
    assert {result.reason for result in results} == {"NeverWakes never chose it to run again"}


# Limits


def test_an_experiment_ends_when_its_time_is_up():
    results, journal = run(tune={"num_samples": -1, "time_budget_s": 3600.0})
    stop = "the time budget of 3600 s is used up"
    assert 3600.0 <= until(journal) <= 3660.0
    assert {result.reason for result in results} == {"", stop}
    granted = [record["time"] for record in journal if record["event"] == "ResourcesGranted"]
    assert max(granted) < 3600.0


def test_no_more_trials_are_unfinished_than_allowed():
    _, journal = run(tune={"max_concurrent_trials": 2})
    unfinished, most = set(), 0
    for record in journal:
        if record["event"] == "ResourcesGranted":
            unfinished.add(record["trial_id"])
        elif record["event"] == "TrialEnded":
            unfinished.discard(record["trial_id"])
        most = max(most, len(unfinished))
    assert most == 2


def test_a_stop_criterion_ends_trials_at_the_exact_result():
    results, _ = run(run_config=RunConfig(stop={"training_iteration": 5}))
    assert {tuple(iterations(result)) for result in results} == {(1, 2, 3, 4, 5)}


def test_every_sample_runs_at_every_point_of_the_grid():
    space = {"lr": uniform(0.1, 0.2), "depth": grid_search([1, 2, 3])}
    results, _ = run(forgetful, space=space, tune={"num_samples": 2})
    assert [result.config["depth"] for result in results] == [1, 2, 3, 1, 2, 3]
    assert len({result.config["lr"] for result in results}) == 6


def test_the_best_and_the_newest_checkpoints_are_kept():
    store = MemoryStore()
    (result,) = simulate(
        curve,
        param_space={"lr": 0.1},
        run_config=RunConfig(
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss")
        ),
        store=store,
    )
    assert [record.index for record in result.records] == [0, 1, 12]
    assert [record.index for record in store.deleted] == list(range(2, 12))


# Size


@pytest.mark.slow
def test_thousands_of_trials_are_no_trouble(monkeypatch: pytest.MonkeyPatch):
    # To look at everything after each event is quadratic.
    monkeypatch.setattr(ExperimentMachine, "validate_each_event", False)

    def quick(config: dict[str, Any]) -> Any:
        for epoch in range(20):
            yield {"loss": config["lr"] / (epoch + 1)}, 1.0

    store = MemoryStore()
    many = TuneConfig(num_samples=2000, seed=0)
    space = {"lr": uniform(0.1, 1.0)}
    results = simulate(quick, param_space=space, tune_config=many, slots=50, store=store)
    assert len(results) == 2000
    assert epochs(results) == 40_000
    # A record for each, and for each suggestion, place, start and end.
    assert len(store.journal.splitlines()) == 40_000 + 4 * 2000 + 1
