"""Experiments that learn from others by their directories."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktune as tune
from dasktune.errors import ConfigError, StorageError
from dasktune.results.past_lookup import read_earlier_experiments
from dasktune.runner.build import build_experiment
from dasktune.schedulers import ASHAScheduler
from dasktune.search import SearchGenerator, WarmStart
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.testing import simulate
from dasktune.tuner.saved_setup import SavedSetup

pytest.importorskip("sklearn")

SPACE = {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])}
GOAL = {"metric": "eval/loss", "mode": "min", "seed": 2}


def train(config: dict[str, Any]) -> Any:
    for epoch in range(4):
        yield {"eval": {"loss": abs(config["x"] - 0.7) + (config["kind"] == "b") + 1 / (epoch + 1)}}, 1.0


def run(path: Path, scheduler: Any = None) -> Path:
    """Write the journal of an experiment of 40 trials."""
    store = ExperimentStore(Storage(str(path)))
    store.create({"metric": "eval/loss", "mode": "min", "created": "2026-01-01T00:00:00+00:00"})
    simulate(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(num_samples=40, scheduler=scheduler, **GOAL),
        slots=4,
        store=store,
    )
    store.close()
    return path


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("full") / "exp")


def near(results: Any) -> float:
    return float(
        np.mean([abs(one.config["x"] - 0.7) < 0.15 and one.config["kind"] == "a" for one in results])
    )


def test_an_experiment_learns_from_the_directory_of_another(full):
    results = simulate(
        train,
        param_space={**SPACE, "x": tune.uniform(-2, 2), "new": tune.randint(1, 5)},
        tune_config=tune.TuneConfig(num_samples=10, search_alg=WarmStart([full]), **GOAL),
        slots=2,
    )
    assert near(results) >= 0.5


def test_trials_that_a_scheduler_stopped_are_left_out(tmp_path, caplog):
    path = run(tmp_path / "exp", ASHAScheduler(max_t=4, reduction_factor=2))
    search = WarmStart([str(path)])
    read_earlier_experiments(search)
    caplog.set_level("INFO", "dasktune")
    search.set_search_properties("eval/loss", "min", SPACE)
    [message] = [one.getMessage() for one in caplog.records if "learning" in one.getMessage()]
    left_out = int(message.rpartition(" ")[2])
    assert 0 < left_out <= 30
    assert f"learning from {40 - left_out} full trials" in message


def test_the_stored_searcher_has_the_data_when_the_directory_is_gone(full, tmp_path):
    path = tmp_path / "moved"
    shutil.copytree(full, path)
    search = WarmStart([str(path)])
    tuner = tune.Tuner(
        lambda config: None,
        param_space=SPACE,
        tune_config=tune.TuneConfig(search_alg=search, **GOAL),
    )
    shutil.rmtree(path)
    again = SavedSetup(tuner._setup, None, None, None).build()
    first = build_experiment(
        tune.TuneConfig(search_alg=pickle.loads(pickle.dumps(search)), **GOAL), tune.RunConfig(), SPACE
    )
    assert again.search.next_trial("a").config == first.search.next_trial("a").config


def test_what_is_no_experiment_is_said_when_the_tuner_is_made(tmp_path):
    with pytest.raises(StorageError, match="no experiment is stored"):
        tune.Tuner(
            lambda config: None,
            param_space=SPACE,
            tune_config=tune.TuneConfig(search_alg=SearchGenerator(WarmStart([tmp_path])), **GOAL),
        )


def test_the_other_direction_is_refused_by_what_the_directory_says(full):
    with pytest.raises(ConfigError, match=r"mode of .*exp must be 'max', got 'min'"):
        simulate(
            train,
            param_space=SPACE,
            tune_config=tune.TuneConfig(metric="eval/loss", mode="max", search_alg=WarmStart([full])),
        )


def test_policies_without_earlier_experiments_are_left_alone():
    for search in (None, "random", train):
        read_earlier_experiments(search)
