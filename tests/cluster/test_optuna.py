"""Optuna's suggestions on real workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import journal, note, notes, run_config, statuses
from distributed import LocalCluster

import dasktune as tune
from dasktune.search import OptunaSearch

optuna = pytest.importorskip("optuna", reason="it is an extra")

pytestmark = pytest.mark.cluster

SLOTS = 4
TRIALS = 16


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster:
        yield cluster


def tuner_of(
    place: Path, cluster: LocalCluster, trainable: Any, search: OptunaSearch, count: int
) -> tune.Tuner:
    return tune.Tuner(
        trainable,
        param_space={"x": tune.uniform(0, 1), "place": str(place)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=count, search_alg=search, seed=1),
        run_config=run_config(place),
        client=cluster.scheduler_address,
    )


def trivial(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": config["x"]}


def crowded(config: dict[str, Any]) -> dict[str, Any]:
    """Ends only when all slots are busy, unless the last trials have begun."""
    place = Path(config["place"])
    note(place, "begin")
    while True:
        seen = notes(place)
        begun, ended = seen.count("begin"), seen.count("end")
        if begun - ended == SLOTS or begun == TRIALS:
            break
        time.sleep(0.01)
    note(place, "end")
    return {"loss": config["x"]}


@pytest.mark.slow
def test_a_hundred_trivial_trials_end_and_teach_the_sampler(tmp_path: Path, cluster: LocalCluster):
    results = tuner_of(tmp_path, cluster, trivial, OptunaSearch(), 100).fit()
    assert len(results) == 100
    assert statuses(results) == {"TERMINATED"}
    # Which of them the sampler knows when it is asked depends on who is faster; chance alone would
    # fail once in 37,000 times.
    assert results.get_best_result().config["x"] < 0.1
    asked = [one for one in journal(tmp_path, event="Suggested") if one["config"]]
    assert len(asked) == 100


def test_every_slot_is_kept_busy(tmp_path: Path, cluster: LocalCluster):
    sampler = optuna.samplers.TPESampler(seed=1, n_startup_trials=2)
    results = tuner_of(tmp_path, cluster, crowded, OptunaSearch(sampler=sampler), TRIALS).fit()
    assert statuses(results) == {"TERMINATED"}
    busy, most = 0, 0
    for line in notes(tmp_path):
        busy += 1 if line == "begin" else -1
        most = max(most, busy)
    assert most == SLOTS


def test_an_experiment_that_was_restored_resumes_its_study(tmp_path: Path, cluster: LocalCluster):
    tuner_of(tmp_path, cluster, trivial, OptunaSearch(), 5).fit()
    more = tune.TuneConfig(metric="loss", mode="min", num_samples=12, search_alg=OptunaSearch())
    restored = tune.Tuner.restore(
        tmp_path / "run", trivial, tune_config=more, client=cluster.scheduler_address
    )
    results = restored.fit()
    assert len(results) == 12
    assert statuses(results) == {"TERMINATED"}
    assert len({result.config["x"] for result in results}) == 12
