"""Programs with callbacks, loggers, reporters, stoppers and failures; only the import differs."""

from __future__ import annotations

import csv
import json
import tempfile
import time
from pathlib import Path

import pytest

from dasktune import tune
from dasktune.experiment import Trial
from dasktune.logger import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    TBXLoggerCallback,
)
from dasktune.results import SHOULD_CHECKPOINT
from dasktune.stopper import (
    ExperimentPlateauStopper,
    FunctionStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
)

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("connected")]


def steps(config):
    for step in range(1, 5):
        tune.report({"loss": config.get("x", 1) / step, "step": step})


class Model(tune.Trainable):
    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        return {"count": self.count, "loss": abs(3 - self.count)}

    def save_checkpoint(self, checkpoint_dir):
        return {"count": self.count}

    def load_checkpoint(self, checkpoint):
        self.count = checkpoint["count"]

    def _export_model(self, export_formats, export_dir):
        path = Path(export_dir, "model.txt")
        path.write_text(str(self.count))
        return {"model": str(path)}


def fit(trainable, run_config, tune_config=None, **space):
    tuner = tune.Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config)
    return tuner.fit()


# Callbacks, loggers, reporters


class Recorder(tune.Callback):
    def __init__(self):
        self.seen = []

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        self.seen.append("setup")

    def on_step_begin(self, iteration, trials, **info):
        assert isinstance(iteration, int)

    def on_trial_start(self, iteration, trials, trial, **info):
        self.seen.append("start")

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.seen.append(result["step"])
        assert trial in trials
        assert trial.config == {"x": 2}

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.seen.append(str(trial.status.value))

    def on_trial_error(self, iteration, trials, trial, **info):
        self.seen.append("error")

    def on_experiment_end(self, trials, **info):
        self.seen.append("end")


def test_a_callback(run_config):
    recorder = Recorder()
    fit(steps, run_config(callbacks=[recorder]), x=2)
    assert recorder.seen == ["setup", "start", 1, 2, 3, 4, "TERMINATED", "end"]


class SavesTheBest(tune.Callback):
    """Requests a checkpoint at each result that is better than all before it."""

    def __init__(self):
        self.best = {}

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["loss"] < self.best.get(trial.trial_id, float("inf")):
            self.best[trial.trial_id] = result["loss"]
            result[SHOULD_CHECKPOINT] = True


def test_a_callback_that_requests_checkpoints(run_config):
    # The stopper is asked at each result, so each checkpoint is that of the result.
    config = run_config(
        callbacks=[SavesTheBest()],
        stop=lambda trial_id, result: result["count"] == 5,
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
    )
    (result,) = fit(Model, config)
    # The losses are 2, 1, 0, 1 and 2.
    saved = [metrics["count"] for _, metrics in result.best_checkpoints]
    assert sorted(saved) == [1, 2, 3]
    assert [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints] == [
        {"count": count} for count in saved
    ]


class TrainsUntilSaved(tune.Trainable):
    def setup(self, config):
        self.count, self.saved = 0, False

    def step(self):
        self.count += 1
        # The driver's request is on its way.
        time.sleep(0.01)
        return {"count": self.count, "loss": -self.count, "done": self.saved or self.count > 6000}

    def save_checkpoint(self, checkpoint_dir):
        self.saved = True
        return {"count": self.count}


def test_a_callback_that_requests_checkpoints_of_a_trial_that_streams_its_results(run_config):
    config = run_config(
        callbacks=[SavesTheBest()],
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
    )
    (result,) = fit(TrainsUntilSaved, config)
    (checkpoint, metrics) = result.best_checkpoints[0]
    assert checkpoint.to_dict() == {"count": metrics["count"]}
    # The step after the checkpoint is the last one.
    assert result.metrics["count"] == metrics["count"] + 1


class AsksItself(Model):
    def step(self):
        return {**super().step(), SHOULD_CHECKPOINT: self.count == 2, "done": self.count == 3}


def test_a_step_that_requests_a_checkpoint(run_config):
    config = tune.CheckpointConfig(checkpoint_at_end=False)
    (result,) = fit(AsksItself, run_config(checkpoint_config=config))
    assert [metrics["count"] for _, metrics in result.best_checkpoints] == [2]


class OwnLogger(LoggerCallback):
    def __init__(self, filename):
        self._trial_files, self._filename = {}, filename

    def log_trial_start(self, trial):
        self._trial_files[trial] = open(Path(trial.local_path, self._filename), "a")  # noqa: SIM115

    def log_trial_result(self, iteration, trial, result):
        self._trial_files[trial].write(json.dumps(result["loss"]) + "\n")

    def on_trial_complete(self, iteration, trials, trial, **info):
        self._trial_files.pop(trial).close()


def test_a_logger_of_the_users_own(run_config):
    (result,) = fit(steps, run_config(callbacks=[OwnLogger("log.txt")]), x=2)
    assert Path(result.path, "log.txt").read_text().split() == [
        "2.0",
        "1.0",
        "0.6666666666666666",
        "0.5",
    ]


def test_the_usual_loggers(run_config):
    callbacks = [CSVLoggerCallback(), JsonLoggerCallback()]
    (result,) = fit(steps, run_config(callbacks=callbacks), x=2)
    with open(Path(result.path, "progress.csv")) as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]
    lines = Path(result.path, "result.json").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert json.loads(Path(result.path, "params.json").read_text()) == {"x": 2}


def test_tensorboard(run_config):
    pytest.importorskip("tensorboardX")
    (result,) = fit(steps, run_config(callbacks=[TBXLoggerCallback()]), x=2)
    assert list(Path(result.path).rglob("events.out.tfevents*"))


def test_a_reporter_with_columns(tmp_path, capsys):
    reporter = tune.CLIReporter(
        metric_columns={"loss": "LOSS"}, parameter_columns=["x"], max_report_frequency=0
    )
    reporter.add_metric_column("step")
    config = tune.RunConfig(storage_path=str(tmp_path), progress_reporter=reporter)
    fit(steps, config, x=2)
    told = capsys.readouterr().err
    assert "LOSS" in told
    assert "TERMINATED" in told


def test_a_reporter_of_the_users_own(tmp_path):
    reports = []

    class Own(tune.ProgressReporter):
        def should_report(self, trials, done=False):
            return done

        def report(self, trials, done, *sys_info):
            reports.append((len(trials), done))

    config = tune.RunConfig(storage_path=str(tmp_path), progress_reporter=Own())
    fit(steps, config, x=2)
    assert reports[-1] == (1, True)


# Failures and files


def failing(config):
    tune.report({"loss": 1})
    raise RuntimeError("no luck")


def test_fail_fast(run_config):
    config = run_config(failure_config=tune.FailureConfig(fail_fast=True))
    results = fit(failing, config, x=tune.grid_search(list(range(8))))
    assert results.num_errors >= 1
    assert len(results) - results.num_errors > 0
    assert "no luck" in str(results.errors[0])


def fails_beside_another(config):
    marks = Path(config["marks"])
    if config["x"] == 0:
        while not Path(marks, "started").exists():
            time.sleep(0.01)
        raise RuntimeError("no luck")
    Path(marks, "started").touch()
    try:
        while True:  # it never reports
            time.sleep(0.01)
    finally:
        Path(marks, "cleaned").touch()


@pytest.mark.parametrize("fail_fast", [True, "raise"])
def test_fail_fast_waits_for_no_other_trial(run_config, tmp_path, fail_fast):
    # If the other trial had its time to end by itself, this test would take an hour.
    config = run_config(failure_config=tune.FailureConfig(fail_fast=fail_fast), stop_grace=3600)
    space = {"x": tune.grid_search([0, 1]), "marks": str(tmp_path)}
    tuner = tune.Tuner(fails_beside_another, param_space=space, run_config=config)
    if fail_fast == "raise":
        with pytest.raises(RuntimeError, match="no luck"):
            tuner.fit()
    else:
        tuner.fit()
    failed, stopped = tuner.get_results()
    assert (failed.status, stopped.status) == (Trial.ERROR, Trial.TERMINATED)
    assert stopped.reason == f"trial {failed.trial_id} failed"
    assert Path(tmp_path, "cleaned").exists()


def test_fail_fast_raise(run_config):
    config = run_config(failure_config=tune.FailureConfig(fail_fast="raise"))
    with pytest.raises(RuntimeError, match="no luck"):
        fit(failing, config)


def test_tune_run_raises_if_trials_failed_unless_set_otherwise(tmp_path):
    with pytest.raises(tune.TuneError):
        tune.run(failing, storage_path=str(tmp_path), verbose=0)
    analysis = tune.run(failing, storage_path=str(tmp_path), raise_on_failed_trial=False, verbose=0)
    assert [trial.status for trial in analysis.trials] == ["ERROR"]


def test_what_trials_print_goes_to_files(run_config):
    def talking(config):
        print("said by", config["x"])
        tune.report({"loss": 1})

    (result,) = fit(talking, run_config(log_to_file=True), x=7)
    assert "said by 7" in Path(result.path, "stdout").read_text()
    assert Path(result.path, "stderr").exists()


def test_names_of_trials_and_their_directories(run_config):
    def name(trial):
        return f"{trial.trainable_name}-{trial.config['x']}"

    config = tune.TuneConfig(trial_name_creator=name, trial_dirname_creator=name)

    def telling(config):
        tune.report({"name": tune.get_context().get_trial_name()})

    (result,) = fit(telling, run_config(), config, x=3)
    assert result.metrics["name"] == "telling-3"
    assert Path(result.path).name == "telling-3"


# Trainables


def test_functions_that_return_and_that_yield(run_config, tmp_path):
    def yielding(config):
        for step in range(3):
            yield {"loss": step}

    def returning(config):
        return 0.0

    (result,) = fit(yielding, run_config())
    assert [row["loss"] for row in result.history] == [0, 1, 2]
    (number,) = fit(returning, tune.RunConfig(storage_path=str(tmp_path / "more"), verbose=0))
    assert number.metrics["_metric"] == 0.0


def test_models_are_exported(tmp_path):
    analysis = tune.run(
        Model,
        stop={"training_iteration": 2},
        export_formats=["model"],
        storage_path=str(tmp_path),
        verbose=0,
    )
    (trial,) = analysis.trials
    assert next(Path(trial.path).rglob("model.txt")).read_text() == "2"


def test_resources_in_each_spelling(tmp_path):
    def asking(config):
        resources = tune.get_context().get_trial_resources()
        tune.report({"cpus": resources.required_resources["CPU"], "n": len(resources.bundles)})

    bundles = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 0.5}], strategy="PACK")
    spellings = [
        ({"cpu": 1, "gpu": 0}, 1, 1),
        (bundles, 1.5, 2),
        (lambda config: tune.PlacementGroupFactory([{"CPU": config["n"]}]), 1, 1),
    ]
    for number, (resources, cpus, count) in enumerate(spellings):
        trainable = tune.with_resources(asking, resources)
        config = tune.RunConfig(storage_path=str(tmp_path / str(number)), verbose=0)
        (result,) = fit(trainable, config, n=1)
        assert (result.metrics["cpus"], result.metrics["n"]) == (cpus, count)


# Stoppers


def test_stoppers_of_each_kind(tmp_path):
    class Own(Stopper):
        def __init__(self):
            self.should_stop = False

        def __call__(self, trial_id, result):
            self.should_stop = self.should_stop or result["count"] >= 3
            return self.should_stop

        def stop_all(self):
            return self.should_stop

    stops = [
        ({"training_iteration": 3}, 3),
        (lambda trial_id, result: result["count"] >= 3, 3),
        (Own(), 3),
        (FunctionStopper(lambda trial_id, result: result["count"] >= 3), 3),
        (ExperimentPlateauStopper("loss", mode="min", top=2, std=2, patience=1), 3),
    ]
    for number, (stop, at_least) in enumerate(stops):
        (result,) = fit(Model, tune.RunConfig(storage_path=str(tmp_path / str(number)), stop=stop, verbose=0))
        assert result.metrics["count"] >= at_least


class OwnBudget(Stopper):
    """As a user of Ray Tune writes it: it asks a TimeoutStopper, and knows no `on_time`."""

    def __init__(self, seconds):
        self.budget = TimeoutStopper(seconds)

    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return self.budget.stop_all()


def test_a_time_budget_in_a_stopper_of_the_users_own(run_config):
    (result,) = fit(Model, run_config(stop=OwnBudget(0.5)))
    assert result.status == Trial.TERMINATED
    assert result.reason == "OwnBudget said so"


class Statuses(tune.Callback):
    def __init__(self):
        self.seen = []

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: dict, **info):
        assert isinstance(trial, Trial)
        if trial.status == Trial.RUNNING:
            self.seen.append("running")

    def on_trial_error(self, trial: Trial, **info):
        if trial.status == Trial.ERROR:
            self.seen.append("error")


def test_the_trial_of_ray_tune_in_annotations_and_comparisons(run_config):
    def train(config):
        tune.report({"loss": 1.0})
        raise ValueError("as it should")

    statuses = Statuses()
    fit(train, run_config(callbacks=[statuses]))
    assert statuses.seen == ["running", "error"]


def test_a_grid_of_a_directory(run_config):
    results = fit(steps, run_config(), x=tune.grid_search([2, 1]))
    grid = tune.ResultGrid(tune.ExperimentAnalysis(results.experiment_path))
    assert grid.get_best_result("loss", "min").config == {"x": 1}
    assert len(grid) == 2


def test_time_budgets_and_stoppers_that_never_stop(run_config):
    config = run_config(stop=TimeoutStopper(timeout=0.5))
    (result,) = fit(Model, config)
    assert result.status == "TERMINATED"
    assert not NoopStopper()("trial", {})


# tune.run, and what it leaves


def saving(config):
    for step in range(1, 5):
        with tempfile.TemporaryDirectory() as temporary:
            Path(temporary, "step").write_text(str(step))
            checkpoint = tune.Checkpoint.from_directory(temporary)
            tune.report({"loss": abs(2 - step), "step": step}, checkpoint=checkpoint)


def test_older_spellings_of_tune_run(tmp_path):
    analysis = tune.run(
        Model,
        name="older",
        stop={"training_iteration": 5},
        checkpoint_freq=1,
        checkpoint_at_end=True,
        keep_checkpoints_num=2,
        checkpoint_score_attr="min-loss",
        local_dir=str(tmp_path),
        max_failures=1,
        fail_fast=False,
        resources_per_trial={"cpu": 1, "gpu": 0},
        reuse_actors=False,
        resume="AUTO",
        verbose=0,
    )
    trial = analysis.get_best_trial("loss", "min", "all")
    paths = analysis.get_trial_checkpoints_paths(trial, "loss")
    assert sorted(loss for _, loss in paths)[0] == 0
    assert analysis.get_best_checkpoint(trial, "loss", "min") is not None
    again = tune.run(
        Model, name="older", stop={"training_iteration": 5}, local_dir=str(tmp_path),
        resume="AUTO", verbose=0,
    )  # fmt: skip
    assert [one.trial_id for one in again.trials] == [trial.trial_id]


def test_an_analysis_of_a_directory_alone(run_config, tmp_path):
    pytest.importorskip("pandas")
    fit(saving, run_config(), x=tune.grid_search([1, 2]))
    analysis = tune.ExperimentAnalysis(str(tmp_path / "exp"), default_metric="loss", default_mode="min")
    assert len(analysis.trials) == 2
    assert analysis.best_config["x"] in (1, 2)
    assert len(analysis.dataframe(metric="loss", mode="min")) == 2
    assert len(analysis.trial_dataframes) == 2
    checkpoint = analysis.get_best_checkpoint(analysis.trials[0], metric="loss", mode="min")
    with checkpoint.as_directory() as directory:
        assert Path(directory, "step").read_text() == "2"
    assert analysis.get_last_checkpoint(analysis.trials[0]) is not None
    assert {config["x"] for config in analysis.get_all_configs().values()} == {1, 2}


def test_results_as_a_table(run_config):
    pytest.importorskip("pandas")
    results = fit(steps, run_config(), x=tune.grid_search([1, 2]))
    frame = results.get_dataframe(filter_metric="loss", filter_mode="min")
    assert sorted(frame["config/x"]) == [1, 2]
    best = results.get_best_result(metric="loss", mode="min", scope="all")
    assert len(best.metrics_dataframe) == 4
    assert tune.Result.from_path(best.path).metrics["step"] == 4


def test_several_experiments(tmp_path):
    trials = tune.run_experiments(
        {
            "one": {"run": steps, "config": {"x": 1}, "storage_path": str(tmp_path)},
            "two": {"run": Model, "stop": {"count": 2}, "storage_path": str(tmp_path)},
        },
        verbose=0,
    )
    assert [trial.last_result["training_iteration"] for trial in trials] == [4, 2]
