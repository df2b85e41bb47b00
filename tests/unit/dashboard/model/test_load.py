from __future__ import annotations

import json

import pytest
from projection_kit import falling

from dasktune.config import TuneConfig
from dasktune.dashboard.model.load import load_projection, projection_of_results
from dasktune.errors import StorageError
from dasktune.schedulers import ASHAScheduler
from dasktune.space import uniform
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.testing import simulate


@pytest.fixture
def experiment(tmp_path):
    store = ExperimentStore(Storage(tmp_path / "exp"))
    store.create({"name": "exp", "metric": "loss", "mode": "min", "scales": {"x": "log", "y": 7}})
    grid = simulate(
        falling,
        param_space={"x": uniform(0, 1)},
        tune_config=TuneConfig(
            metric="loss", mode="min", num_samples=9, scheduler=ASHAScheduler(max_t=27), seed=0
        ),
        slots=2,
        store=store,
    )
    store.close()
    return tmp_path / "exp", grid


def test_a_directory_tells_what_its_journal_does(experiment):
    path, grid = experiment
    projection = load_projection(path)
    assert (projection.name, projection.metric, projection.mode) == ("exp", "loss", "min")
    assert projection.scales == {"x": "log"}
    assert [trial.iteration for trial in projection.trials] == [len(one.history) for one in grid]
    assert projection.best.trial_id == grid.get_best_result(scope="all").trial_id


def test_another_metric_can_be_looked_at(experiment):
    projection = load_projection(experiment[0], metric="training_iteration", mode="max")
    assert projection.best_value == 27


def test_no_experiment_and_a_damaged_one_raise_different_errors(tmp_path):
    with pytest.raises(StorageError, match="no experiment"):
        load_projection(tmp_path)
    (tmp_path / "experiment.json").write_text(json.dumps({"metric": 7, "mode": "low"}))
    with pytest.raises(StorageError, match=r"experiment\.json is damaged"):
        load_projection(tmp_path)


def test_results_alone_tell_curves_configurations_and_ends(experiment):
    _, grid = experiment
    projection = projection_of_results(grid, metric="loss", mode="min")
    assert projection.malformed == 0
    assert [trial.iteration for trial in projection.trials] == [len(one.history) for one in grid]
    assert [trial.status for trial in projection.trials] == [one.status.value for one in grid]
    assert [trial.reason for trial in projection.trials] == [one.reason for one in grid]
    assert projection.best.trial_id == grid.get_best_result(scope="all").trial_id
    for trial, one in zip(projection.trials, grid, strict=True):
        assert trial.runtime(projection.now) == pytest.approx(one.metrics["time_total_s"])


def test_results_whose_directory_is_gone_still_tell_something(experiment, tmp_path):
    projection = projection_of_results(
        experiment[1], metric="loss", mode="min", storage=Storage(tmp_path / "gone")
    )
    assert len(projection.trials) == 9
