"""Whole experiments on clusters where nothing goes wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    SharedPair,
    assert_clean,
    driver_settings,
    fitting,
    histories,
    journal,
    restarts,
    run_config,
    statuses,
    steps,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster, Scheduler, SchedulerPlugin

import dasktune as tune
from dasktune.schedulers.decision import Continue, Decision, Pause
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.testing.simulation import simulate
from dasktune.trial.trial import Trial

pytestmark = [pytest.mark.cluster, pytest.mark.core]

SPACE = {"x": tune.uniform(0, 1), "depth": tune.randint(1, 9)}


def three(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for step in (1, 2, 3):
        yield {"step": step, "x": config["x"]}


@pytest.fixture(scope="module")
def many(shared_pair: SharedPair, tmp_path_factory: pytest.TempPathFactory) -> tuple[tune.ResultGrid, Path]:
    place = tmp_path_factory.mktemp("many")
    pair = shared_pair.cluster()
    tuner = tune.Tuner(
        three,
        param_space=SPACE,
        tune_config=tune.TuneConfig(num_samples=200, seed=7),
        run_config=run_config(place),
        client=pair,
    )
    return tuner.fit(), place


def test_200_trials_end_with_every_result_once_and_in_order(
    many: tuple[tune.ResultGrid, Path],
) -> None:
    results, place = many
    assert (len(results), statuses(results)) == (200, {"TERMINATED"})
    assert histories(results) == [[1, 2, 3]] * 200
    assert all(row["x"] == result.config["x"] for result in results for row in result.history)
    # Nothing was lost and done again on the way.
    assert len(journal(place, event="ResultReported")) == 600
    # A trial that found no room where the driver had seen some was not begun.
    not_begun = journal(place, event="TrialReturned") + journal(place, event="StartFailed")
    assert len(restarts(place)) - len(not_begun) == 200
    assert not any(one["charged"] for one in journal(place, event="StartFailed"))


def test_both_workers_are_used(many: tuple[tune.ResultGrid, Path]) -> None:
    assert len({one["worker"] for one in journal(many[1], event="TrialStarted")}) == 2


def test_nothing_is_left_on_the_cluster(many: tuple[tune.ResultGrid, Path], pair: LocalCluster) -> None:
    with Client(pair, set_as_default=False) as client:
        assert_clean(client)


def test_no_trial_is_kept_from_running_by_a_long_one_that_it_was_to_follow(
    pair: LocalCluster, tmp_path: Path
) -> None:
    def trainable(config: dict[str, Any]) -> dict[str, int]:
        if config["number"] == 40:
            # It does not leave before all others have been here, those handed over behind it too.
            until(lambda: len(list(tmp_path.glob("*.was"))) == 100)
        else:
            (tmp_path / f"{config['number']}.was").touch()
        return {"step": 1}

    results = tune.Tuner(
        trainable,
        param_space={"number": tune.grid_search([*range(40), 40, *range(42, 102)])},
        run_config=run_config(tmp_path),
        client=pair,
    ).fit()
    assert (len(results), statuses(results)) == (101, {"TERMINATED"})
    # Each ran once to its end, however often it was handed over.
    assert histories(results) == [[1]] * 101
    returned = {one["trial_id"] for one in journal(tmp_path, event="TrialReturned")}
    ended = [one["trial_id"] for one in journal(tmp_path, event="TrialEnded")]
    assert returned <= set(ended)
    assert len(ended) == 101


def test_a_trial_is_sent_to_its_worker_before_the_predicted_end_of_the_one_before(
    pair: LocalCluster, tmp_path: Path
) -> None:
    def trainable(config: dict[str, Any]) -> dict[str, int]:
        time.sleep(0.3)
        return {"step": 1}

    tuner = tune.Tuner(
        trainable,
        param_space=SPACE,
        tune_config=tune.TuneConfig(num_samples=20),
        run_config=run_config(tmp_path),
        client=pair,
    )
    # Even on a machine where trials of one length take different times.
    with driver_settings(steady_s=inf):
        results = tuner.fit()
    assert histories(results) == [[1]] * 20
    started = journal(tmp_path, event="TrialStarted")
    assert len(started) == 20
    worker = {one["trial_id"]: one["worker"] for one in started}
    granted = {one["trial_id"]: one["time"] for one in journal(tmp_path, event="ResourcesGranted")}
    ends = [(worker[one["trial_id"]], one["time"]) for one in journal(tmp_path, event="TrialEnded")]
    ahead = []
    for one in started:
        before = [end for place, end in ends if place == one["worker"] and end <= one["time"]]
        ahead += [max(before) - granted[one["trial_id"]]] if before else []
    # Otherwise a trial gets its place when another one has ended.
    assert max(ahead) > 0.02, ahead


def test_the_same_seed_gives_the_same_configurations_everywhere(
    many: tuple[tune.ResultGrid, Path], tmp_path: Path
) -> None:
    def virtual(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
        yield {"step": 1}, 1.0

    search = tune.TuneConfig(num_samples=20, seed=7)
    simulated = simulate(virtual, param_space=SPACE, tune_config=search)
    with LocalCluster(processes=False, n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster:
        threaded = tune.Tuner(
            three,
            param_space=SPACE,
            tune_config=search,
            run_config=run_config(tmp_path),
            client=cluster,
        ).fit()
    expected = {result.trial_id: result.config for result in many[0]}
    for results in (simulated, threaded):
        assert len(results) == 20
        assert all(expected[result.trial_id] == result.config for result in results)


def test_storage_in_memory_works_where_the_workers_are_threads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def trainable(config: dict[str, Any]) -> None:
        tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))

    with LocalCluster(processes=False, n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster:
        results = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(num_samples=8),
            run_config=tune.RunConfig(storage_path="memory://executor", verbose=0),
            client=cluster,
        ).fit()
    assert statuses(results) == {"TERMINATED"}
    assert [result.checkpoint.to_dict() for result in results if result.checkpoint] == [{"step": 1}] * 8
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_four_threads_of_a_process_run_four_trials_at_a_time(tmp_path: Path) -> None:
    def trainable(config: dict[str, Any]) -> None:
        (tmp_path / tune.get_context().get_trial_id()).touch()
        # No trial continues before all four are here.
        while len(list(tmp_path.glob("*_0000?"))) < 4:
            pass
        tune.report({"step": 1})

    with LocalCluster(n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster:
        results = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(num_samples=4),
            run_config=run_config(tmp_path),
            client=cluster,
        ).fit()
    assert statuses(results) == {"TERMINATED"}


class Messages(SchedulerPlugin):
    """Counts the tasks of each message that submits some, by their kind."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []

    def update_graph(self, scheduler: Scheduler, *, keys: set[Any], **facts: Any) -> None:
        kinds = {"lease" if "-lease-" in str(key) else "actor" for key in keys}
        self.found.append(("/".join(kinds), len(keys)))


def test_tasks_of_trials_that_start_together_travel_in_two_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trainable(config: dict[str, Any]) -> None:
        (tmp_path / tune.get_context().get_trial_id()).touch()
        # No actor gets a second trial.
        while len(list(tmp_path.glob("*_0000?"))) < 4:
            pass
        tune.report({"step": 1})

    messages = Messages()
    # The runner starts trials for at most this time before it waits for events.
    monkeypatch.setattr("dasktune.runner.trial_runner._START_SECONDS", 60.0)
    with LocalCluster(processes=False, n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster:
        cluster.scheduler.add_plugin(messages)
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(num_samples=4),
            run_config=run_config(tmp_path),
            client=cluster,
        )
        assert statuses(tuner.fit()) == {"TERMINATED"}
    assert sorted(messages.found) == [("actor", 4), ("lease", 4)]


def test_a_worker_that_comes_later_is_used(tmp_path: Path) -> None:
    def trainable(config: dict[str, Any]) -> None:
        (tmp_path / f"runs-{config['number']}").touch()
        wait_for_file(tmp_path / f"runs-{1 - config['number']}")
        tune.report({"step": 1})

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster:
        tuner = tune.Tuner(
            trainable,
            param_space={"number": tune.grid_search([0, 1])},
            run_config=run_config(tmp_path),
            client=cluster,
        )
        with fitting(tuner) as future:
            until(lambda: journal(tmp_path, event="TrialStarted"))
            cluster.scale(2)
            results = future.result(timeout=120)
    # Each waits for the other one, so both ran at the same time.
    assert statuses(results) == {"TERMINATED"}


def test_two_drivers_on_one_cluster_do_not_mix(pair: LocalCluster, tmp_path: Path) -> None:
    spaces = [{"x": 100.0}, {"x": 200.0}]
    tuners = [
        tune.Tuner(
            three,
            param_space=space,
            # Equal seeds: even the trials' names are the same.
            tune_config=tune.TuneConfig(num_samples=10, seed=1),
            run_config=run_config(tmp_path, name=f"run-{number}"),
            client=pair,
        )
        for number, space in enumerate(spaces)
    ]
    with ExitStack() as stack:
        futures = [stack.enter_context(fitting(tuner)) for tuner in tuners]
        grids = [future.result(timeout=120) for future in futures]
    for number, results in enumerate(grids):
        assert histories(results) == [[1, 2, 3]] * 10
        assert {row["x"] for result in results for row in result.history} == {spaces[number]["x"]}
        assert len(journal(tmp_path, f"run-{number}", "ResultReported")) == 30


class OneByOne(TrialScheduler):
    """Pauses a trial after each result, and then runs the one with the fewest iterations."""

    def on_trial_result(self, trial: Trial, result: Any) -> Decision:
        return Pause("the others first")

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        trials = [*waiting.pending.values(), *waiting.paused.values()]
        return min(trials, key=lambda trial: trial.last_iteration, default=None)


def test_a_paused_function_resumes_from_its_checkpoint(pair: LocalCluster, tmp_path: Path) -> None:
    results = tune.Tuner(
        steps,
        param_space={"place": str(tmp_path), "steps": 3},
        tune_config=tune.TuneConfig(num_samples=3, scheduler=OneByOne()),
        run_config=run_config(tmp_path),
        client=pair,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3]] * 3
    assert sorted(iteration for _, iteration in restarts(tmp_path)) == sorted([0, 1, 2, 3] * 3)


class Counter(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"step": self.count, "done": self.count == 6}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = checkpoint["count"]


class SaveThird(TrialScheduler):
    """Wants a checkpoint of the third result, and pauses at the fifth."""

    def on_trial_result(self, trial: Trial, result: Any) -> Decision:
        if result["step"] == 5:
            return Pause("a rest")
        return Continue(save=result["step"] == 3)

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        return next(iter([*waiting.pending.values(), *waiting.paused.values()]), None)


def test_a_class_saves_at_its_frequency_on_demand_and_when_paused(pair: LocalCluster, tmp_path: Path) -> None:
    results = tune.Tuner(
        Counter,
        tune_config=tune.TuneConfig(num_samples=2, scheduler=SaveThird()),
        run_config=run_config(
            tmp_path,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, memory_limit=10_000),
        ),
        client=pair,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4, 5, 6]] * 2
    for result in results:
        # That of the pause was in memory, until there was a newer one.
        assert [record.iteration for record in result.records] == [2, 3, 4, 6]
    assert sorted(iteration for _, iteration in restarts(tmp_path)) == [0, 0, 5, 5]


def test_retention_leaves_the_newest_and_the_best_on_disk(pair: LocalCluster, tmp_path: Path) -> None:
    def trainable(config: dict[str, Any]) -> None:
        for step, score in enumerate([5, 9, 1, 8, 2, 3], start=1):
            tune.report(
                {"step": step, "score": score},
                checkpoint=tune.Checkpoint.from_dict({"step": step}),
            )

    results = tune.Tuner(
        trainable,
        run_config=run_config(
            tmp_path,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score"),
        ),
        client=pair,
    ).fit()
    on_disk = sorted(path.parent.name for path in tmp_path.glob("run/trials/*/*/.manifest.json"))
    # Scores 9 and 8, and the newest.
    assert on_disk == ["checkpoint_000001_i01", "checkpoint_000003_i01", "checkpoint_000005_i01"]
    assert not list(tmp_path.glob("run/trials/*/checkpoint_000000*"))
    checkpoint = results[0].checkpoint
    assert checkpoint is not None
    assert checkpoint.to_dict() == {"step": 6}
