"""Analyses of experiments that no driver has in memory any more."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dasktune.config import CheckpointConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError, StorageError
from dasktune.results.result import Result
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.space import grid_search
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.testing import ManualClock, SimulatedTrialExecutor
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.tuner.analysis import ExperimentAnalysis
from dasktune.tuner.result_grid import NoResultError, ResultGrid
from dasktune.tuner.saved_setup import setup_of


class Untouchable:
    """Fails the test that unpickles it."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("was unpickled",)

    def __deepcopy__(self, memo: Any) -> Untouchable:
        return self


def curve(config: dict[str, Any]) -> Any:
    for epoch in range(4):
        if config["x"] == 3 and epoch == 2:
            raise ValueError("<b>diverged</b>")
        yield {"eval": {"loss": abs(config["x"] - 1) + (epoch - 2) ** 2}}, 1.0


PARTS = (
    TuneConfig(metric="eval/loss", mode="min", seed=1),
    RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2)),
    {"x": grid_search([0, 1, 2, 3]), "odd": {"thing": Untouchable()}},
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an experiment whose driver has finished."""
    path = tmp_path_factory.mktemp("analysis") / "exp"
    store = ExperimentStore(Storage(str(path)))
    store.create({"metric": "eval/loss", "mode": "min", "created": "2026-01-01T00:00:00+00:00"})
    setup_of(*PARTS).write(store.storage)
    TrialRunner(
        build_experiment(*PARTS),
        SimulatedTrialExecutor(curve, clock=(clock := ManualClock()), slots=2),
        store=store,
        clock=clock,
        resources_for=lambda config: PlacementGroupFactory([{"CPU": 1}]),
        checkpoint_period=3.0,
    ).run()
    return path


@pytest.fixture
def analysis(home: Path) -> ExperimentAnalysis:
    return ExperimentAnalysis(home)


def test_a_directory_is_all_that_it_takes(analysis, home):
    assert [trial.config["x"] for trial in analysis.trials] == [0, 1, 2, 3]
    assert len(analysis) == 4
    assert (home / "trials" / analysis.trials[0].trial_id / "params.pkl").exists()
    assert analysis.experiment_path == str(home)
    assert (analysis.default_metric, analysis.default_mode) == ("eval/loss", "min")
    assert [trial.status.value for trial in analysis.trials] == ["TERMINATED"] * 3 + ["ERROR"]
    assert analysis.trials[3].error.message == "ValueError: <b>diverged</b>"
    assert [row["eval/loss"] for row in analysis.trials[0].history] == [5, 2, 1, 2]
    assert len(ExperimentAnalysis(home / "experiment.json")) == 4


def test_an_url_and_a_directory_without_snapshots_tell_the_same(analysis, home, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(home, moved)
    shutil.rmtree(moved / "snapshots")
    (moved / "tuner.json").unlink()
    again = ExperimentAnalysis(f"file://{moved}")
    assert again.results == analysis.results
    assert again.get_all_configs() == analysis.get_all_configs()


def test_the_best_trial_is_the_best_by_what_was_optimised(analysis):
    best = analysis.best_trial
    assert best.config["x"] == 1
    assert analysis.best_config == analysis.get_best_config() == best.config
    assert analysis.best_result == best.last_result
    assert analysis.best_logdir == analysis.get_best_logdir() == best.logdir
    assert analysis.get_best_trial(mode="max").config["x"] == 3
    assert analysis.get_best_trial("training_iteration", "min").config["x"] == 3


@pytest.mark.parametrize(
    ("scope", "mode", "x"),
    [("last", "min", 1), ("all", "max", 3), ("avg", "max", 3), ("last-5-avg", "min", 1)],
)
def test_every_scope_is_there(analysis, scope, mode, x):
    assert analysis.get_best_trial("eval/loss", mode, scope).config["x"] == x


def test_no_best_trial_is_none_or_an_error_that_says_why(analysis, home, caplog):
    assert analysis.get_best_trial("los") is None
    assert "none of the 4 trials reported 'los'" in caplog.text
    assert analysis.get_best_config("los") is None
    assert analysis.get_best_logdir("los") is None
    assert analysis.get_last_checkpoint(metric="los") is None
    lost = ExperimentAnalysis(home, default_metric="los", default_mode="min")
    with pytest.raises(NoResultError, match="'los'"):
        _ = lost.best_trial
    assert ExperimentAnalysis(home, default_mode="max").default_metric == "_metric"


def test_a_grid_is_made_from_an_analysis(analysis, home):
    grid = ResultGrid(ExperimentAnalysis(home))
    assert [one.trial_id for one in grid] == [one.trial_id for one in analysis.trials]
    assert grid.experiment_path == analysis.experiment_path
    # The metric, the mode and the storage are those of the experiment.
    assert grid.get_best_result().config == analysis.best_config
    assert grid.filesystem is not None
    assert len(grid.get_best_result().history) == 4
    assert ResultGrid(analysis, metric="eval/loss", mode="max").get_best_result().config["x"] == 3
    assert len(grid.to_html()) > 10_000


@pytest.mark.parametrize("wrong", [None, 3])
def test_a_grid_of_something_else_is_refused(wrong):
    with pytest.raises(ConfigError, match="results must be an ExperimentAnalysis or a list of Result"):
        ResultGrid(wrong)


def test_a_grid_of_results_needs_the_path_of_the_experiment(analysis):
    with pytest.raises(ConfigError, match="experiment_path must be the path or URL"):
        ResultGrid(analysis.trials)


def test_tables_have_a_row_for_each_trial(analysis):
    pytest.importorskip("pandas")
    table = analysis.dataframe()
    assert list(table["config/x"]) == [0, 1, 2, 3]
    assert list(table["logdir"]) == [trial.path for trial in analysis.trials]
    best = analysis.dataframe("eval/loss", "min")
    assert list(best["eval/loss"]) == [1, 0, 1, 3]
    assert list(analysis.dataframe("eval/loss")["eval/loss"]) == list(table["eval/loss"])
    assert list(analysis.results_df.index) == list(analysis.results)
    assert list(analysis.best_result_df["eval/loss"]) == [1]
    assert len(analysis.best_dataframe) == 4
    assert [len(one) for one in analysis.trial_dataframes.values()] == [4, 4, 4, 2]
    with pytest.raises(ConfigError, match="metric must be given with mode"):
        analysis.dataframe(mode="min")


def test_without_pandas_an_error_says_what_to_install(analysis, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        _ = analysis.results_df


def test_configurations_come_nested_or_flat(analysis):
    key = analysis.trials[2].trial_id
    assert analysis.get_all_configs()[key]["x"] == 2
    flat = analysis.get_all_configs(prefix=True)[key]
    assert flat["config/x"] == 2
    assert "Untouchable" in flat["config/odd/thing/$repr"]


def test_the_experiment_tells_when_it_ran(analysis):
    # A simulation stamps no results with the time of day.
    assert analysis.stats() == {"start_time": 1767225600.0, "timestamp": None}
    stamped = [replace(t, history=[{"timestamp": i}]) for i, t in enumerate(analysis.trials)]
    home = analysis.experiment_path
    assert ExperimentAnalysis(home, trials=stamped).stats()["timestamp"] == 3
    assert analysis.runner_data()["metric"] == "eval/loss"


def test_a_trial_is_named_by_itself_its_id_or_its_directory(analysis):
    trial = analysis.trials[0]
    for name in (trial, trial.trial_id, trial.path):
        assert analysis.get_trial_checkpoints_paths(name) == []
        assert analysis.get_last_checkpoint(name) is None
        assert analysis.get_best_checkpoint(name) is None
    assert analysis.best_checkpoint is None
    with pytest.raises(ConfigError, match="trial must be a Result, or the ID of a trial, got 'x'"):
        analysis.get_best_checkpoint("x")


def test_results_in_memory_need_no_directory(analysis):
    again = ExperimentAnalysis(
        "/nowhere", trials=analysis.trials, default_metric="eval/loss", default_mode="min"
    )
    assert again.best_config["x"] == 1
    with pytest.raises(StorageError, match="no experiment is stored"):
        again.stats()


def test_it_shows_itself_as_a_grid_does(analysis):
    assert repr(analysis).startswith("ExperimentAnalysis of 4 trials: 3 TERMINATED, 1 ERROR")
    assert "<p>ExperimentAnalysis of 4 trials" in analysis._repr_html_()


@pytest.mark.parametrize("path", ["nothing", "."])
def test_no_experiment_raises(tmp_path, path):
    with pytest.raises(StorageError, match="no experiment is stored"):
        ExperimentAnalysis(tmp_path / path)


def test_a_result_is_read_from_its_own_directory(analysis):
    trial = analysis.trials[3]
    again = Result.from_path(f"{trial.path}/")
    assert again.history == trial.history
    assert again.path == trial.path
    assert again.filesystem.exists(f"{again.path}/params.json")
    assert again.retention.num_to_keep == 2
    assert str(again.error) == str(trial.error)


@pytest.mark.parametrize("path", ["{home}", "{home}/trials/unknown", "{home}/other/a"])
def test_what_is_no_trial_raises(home, path):
    with pytest.raises(StorageError, match="no trial of an experiment is stored at"):
        Result.from_path(path.format(home=home))


def test_a_result_shows_itself_in_a_notebook_and_lets_nothing_through(analysis):
    page = analysis.trials[3]._repr_html_()
    assert "(ValueError: &lt;b&gt;diverged&lt;/b&gt;)" in page
    assert "<caption>config</caption>" in page
    assert "<tr><td>eval/loss</td><td>3</td></tr>" in page
    assert "<b>" not in page
    well = analysis.trials[0]._repr_html_()
    assert "TERMINATED, in" in well


def test_a_grid_of_what_was_read_is_like_any_other(analysis):
    grid = ResultGrid(analysis.trials, analysis.experiment_path, "eval/loss", "min")
    assert grid.get_best_result().config["x"] == 1
    assert grid.num_errors == 1


def test_a_snapshot_that_makes_no_sense_is_passed_over(analysis, home, tmp_path, caplog):
    moved = tmp_path / "moved"
    shutil.copytree(home, moved)
    for snapshot in (moved / "snapshots").iterdir():
        lines = snapshot.read_text().splitlines()
        broken = ['{"trial_id": "a"}'] * (len(lines) - 1)
        snapshot.write_text("\n".join([lines[0], *broken]))
    assert ExperimentAnalysis(moved).results == analysis.results
    assert "ignoring an unusable snapshot" in caplog.text
