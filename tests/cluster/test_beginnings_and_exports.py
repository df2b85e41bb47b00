"""Trials that begin from a given checkpoint, and what they export at their end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dasktune as tune
from dasktune.trial.status import PublicStatus


class Counter(tune.Trainable):
    """Counts from where it begins, and exports how far it came."""

    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        return {"count": self.count}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint):
        self.count = int(Path(checkpoint, "count").read_text())

    def _export_model(self, export_formats, export_dir):
        told = {}
        for name in export_formats:
            path = Path(export_dir, f"{name}.txt")
            path.write_text(f"{name} {self.count}")
            told[name] = str(path)
        return told


def count_on(config):
    before = tune.get_checkpoint()
    count = 0 if before is None else before.to_dict()["count"]
    for _ in range(2):
        count += 1
        tune.report({"count": count})


def started_at(tmp_path, count):
    place = tmp_path / f"given-{count}"
    place.mkdir()
    (place / "count").write_text(str(count))
    return place


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_class_begins_from_a_checkpoint_and_exports_at_its_end(pair, tmp_path, isolation):
    given = started_at(tmp_path, 40)
    analysis = tune.run(
        Counter,
        name="counted",
        config={"x": tune.grid_search([1, 2])},
        stop={"training_iteration": 3},
        restore=str(given),
        export_formats=["Model", "onnx"],
        storage_path=str(tmp_path),
        isolation=isolation,
        verbose=0,
        client=pair,
    )
    assert len(analysis.trials) == 2
    for trial in analysis.trials:
        assert [row["count"] for row in trial.history] == [41, 42, 43]
        assert [row["training_iteration"] for row in trial.history] == [1, 2, 3]
        assert sorted(trial.exported) == ["model", "onnx"]
        assert Path(trial.exported["model"]).read_text() == "model 43"
        assert Path(trial.exported["onnx"]).parent == Path(trial.path, "exported")
        assert tune.Result.from_path(trial.path).exported == trial.exported
        assert trial.location is not None
        assert trial.location.worker in pair.scheduler_info["workers"]
    again = tune.ExperimentAnalysis(tmp_path / "counted")
    assert [one.exported for one in again.trials] == [one.exported for one in analysis.trials]
    assert [one.location for one in again.trials] == [one.location for one in analysis.trials]


def test_a_function_begins_from_a_checkpoint_object(pair, tmp_path):
    results = tune.Tuner(
        count_on,
        run_config=tune.RunConfig(
            name="function",
            storage_path=str(tmp_path),
            restore=tune.Checkpoint.from_dict({"count": 7}),
            verbose=0,
        ),
        client=pair,
    ).fit()
    assert [row["count"] for row in results[0].history] == [8, 9]
    assert results[0].exported == {}


def test_a_resumed_experiment_does_not_need_the_original(pair, tmp_path):
    given = started_at(tmp_path, 10)
    arguments = {
        "name": "again",
        "storage_path": str(tmp_path),
        "stop": {"training_iteration": 1},
        "restore": str(given),
        "verbose": 0,
        "client": pair,
    }
    tune.run(Counter, **arguments)
    shutil.rmtree(given)
    more = tune.Tuner.restore(
        tmp_path / "again",
        Counter,
        tune_config=tune.TuneConfig(num_samples=2),
        client=pair,
    ).fit()
    assert [[row["count"] for row in one.history] for one in more] == [[11], [11]]


def test_what_is_not_there_is_found_before_anything_begins(tmp_path):
    (tmp_path / "empty").mkdir()
    for place in ("missing", "empty"):
        with pytest.raises(tune.ConfigError, match="restore must be a"):
            tune.run(Counter, restore=str(tmp_path / place), storage_path=str(tmp_path), client="none:1")
    with pytest.raises(tune.ConfigError, match="export_formats must be left out for a function"):
        tune.run(count_on, export_formats=["model"], client="none:1")


class Astray(Counter):
    """Says that it has exported what is elsewhere."""

    def _export_model(self, export_formats, export_dir):
        return {"model": "../elsewhere"}


def test_an_export_that_is_not_where_it_should_be_fails_the_trial(pair, tmp_path):
    results = tune.Tuner(
        Astray,
        run_config=tune.RunConfig(
            name="astray",
            storage_path=str(tmp_path),
            stop={"training_iteration": 1},
            export_formats=["model"],
            verbose=0,
        ),
        client=pair,
    ).fit()
    assert results[0].status is PublicStatus.ERROR
    assert "what _export_model() returns must be" in str(results[0].error)
    assert results[0].exported == {}
