"""The driver of a queued experiment, with trials in this process."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import dasktune as tune
from dasktune.errors import PreflightError, StorageError
from dasktune.sklearn.fits.search_experiment import InProcessTuner
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.segments import segment_name
from dasktune.storage.queue.experiment_queue import ExperimentQueue
from dasktune.tuner.queued_driver import GIVEN_BACK, DriverOrder, count_results, drive


class TunerInProcess(tune.Tuner):
    """Runs the trials in the calling thread, one after the other."""

    _open_environment = InProcessTuner._open_environment

    def _record_exception(self, error: Exception) -> None:
        pass  # the trial has its text


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drivers run the trials in this process, without a cluster."""
    monkeypatch.setattr("dasktune.tuner.queued_driver.Tuner", TunerInProcess)


@pytest.fixture
def queue(tmp_path: Path) -> ExperimentQueue:
    return ExperimentQueue(Storage(str(tmp_path / "queue")))


def submit(
    queue: ExperimentQueue,
    trainable: Any,
    *,
    space: dict[str, Any] | None = None,
    tune_config: tune.TuneConfig | None = None,
    **options: Any,
) -> tune.QueuedExperiment:
    place = Path(queue.storage.path()).parent
    run_config = tune.RunConfig(**{"name": "run", "storage_path": place / "results", **options})
    return tune.Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config).submit(
        queue=queue.storage.path()
    )


def run_driver(queue: ExperimentQueue, experiment: tune.QueuedExperiment, client: Any = None) -> int:
    return drive(DriverOrder(queue.storage, experiment.entry_id, client), threading.Event())


def histories(experiment: tune.QueuedExperiment) -> list[list[int]]:
    return [[row["training_iteration"] for row in one.history] for one in experiment.result(timeout=0)]


class Interrupted(tune.Trainable):
    """Ends its driver in the third step of ten, while there is a file."""

    def setup(self, config: dict[str, Any]) -> None:
        self.gate = Path(config["gate"])

    def step(self) -> dict[str, Any]:
        if self.iteration == 2 and self.gate.exists():
            raise KeyboardInterrupt
        return {"done": self.iteration == 9}


def test_a_result_that_is_reported_again_is_no_new_one(queue, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    experiment = submit(queue, Interrupted, space={"gate": str(gate)})
    counts = []
    for _ in range(3):
        assert run_driver(queue, experiment) == GIVEN_BACK
        counts.append(count_results(experiment.path, queue.storage))
    records = list(read_journal(Storage(experiment.path)))
    assert [one.get("event") for one in records].count("ResultReported") == 6
    assert counts == [2, 2, 2]
    gate.unlink()
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "finished"
    # The last results are packed in the journal.
    assert count_results(experiment.path, queue.storage) == 10


def test_results_without_a_journal_are_unknown(queue, tmp_path):
    assert count_results("", queue.storage) == 0
    damaged = Storage(str(tmp_path / "damaged"))
    damaged.write_bytes(segment_name(1, 0), b"damaged\n" * 2)
    assert count_results(damaged.url, queue.storage) is None


class Steps(tune.Trainable):
    """Ends after one step."""

    def step(self) -> dict[str, Any]:
        return {"done": True}


def test_a_missing_scheduler_file_leaves_the_experiment_in_the_queue(queue, tmp_path, monkeypatch):
    monkeypatch.setattr("dasktune.tuner.queued_driver.Tuner", tune.Tuner)
    experiment = submit(queue, Steps)
    assert run_driver(queue, experiment, f"{tmp_path}/./scheduler.json") == GIVEN_BACK
    assert experiment.state == "queued"
    assert "scheduler.json" in experiment.reason


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (OSError(errno.EIO, "503 Slow Down"), "queued"),
        (PermissionError("no access"), "failed"),
        (None, "failed"),
    ],
)
@pytest.mark.parametrize("kind", [PreflightError, StorageError])
def test_an_error_of_the_storage_that_may_pass_is_not_the_experiments_own(
    queue, monkeypatch, kind, cause, state
):
    def fail(storage: Storage) -> None:
        raise kind("the results cannot be stored") from cause

    experiment = submit(queue, Steps)
    with monkeypatch.context() as patch:
        patch.setattr("dasktune.cluster.checks.preflight.check_storage", fail)
        assert run_driver(queue, experiment) == (GIVEN_BACK if state == "queued" else 0)
    assert experiment.state == state
    assert "cannot be stored" in experiment.reason
    assert run_driver(queue, experiment) == 0
    assert experiment.state == ("finished" if state == "queued" else "failed")


class Unreachable(tune.Trainable):
    """Fails with an error that would be transient in a storage."""

    def step(self) -> dict[str, Any]:
        raise ConnectionResetError("no answer from the service of the user")


def test_errors_of_trials_are_not_taken_for_errors_of_the_storage(queue):
    experiment = submit(queue, Unreachable, failure_config=tune.FailureConfig(fail_fast="raise"))
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "failed"
    assert "service of the user" in experiment.reason


@pytest.mark.parametrize("kind", [ConnectionResetError, KeyboardInterrupt, SystemExit])
def test_an_error_that_a_dead_driver_has_not_raised_ends_the_experiment(queue, monkeypatch, kind):
    experiment = submit(queue, Unreachable, failure_config=tune.FailureConfig(fail_fast="raise"))

    def die(queue: ExperimentQueue, *args: object) -> None:
        raise StorageError("the queue is away")

    with monkeypatch.context() as patch:
        patch.setattr(ExperimentQueue, "end", die)
        assert run_driver(queue, experiment) == GIVEN_BACK
    assert experiment.state == "queued"
    monkeypatch.setattr("dasktune.tuner.raise_trial_error._unpickled", lambda blob: kind("of the trial"))
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "failed"
    assert experiment.reason == f"{kind.__name__}: of the trial"


def fail_to_unpickle() -> None:
    raise RuntimeError("a bug")


class Broken:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return fail_to_unpickle, ()


def test_an_error_of_the_users_own_objects_is_the_experiments_own(queue):
    experiment = submit(queue, Steps, space={"x": Broken()})
    assert run_driver(queue, experiment) == 0
    assert (experiment.state, experiment.reason) == ("failed", "RuntimeError: a bug")


@pytest.mark.parametrize(("given", "used"), [(None, True), (True, True), (False, False)])
def test_trials_wait_for_a_cluster_without_room_unless_the_user_forbids_it(queue, monkeypatch, given, used):
    found = []

    class Watched(TunerInProcess):
        def _fit(self, signals: Any) -> Any:
            found.append(self._run_config.queue_trials)
            return super()._fit(signals)

    monkeypatch.setattr("dasktune.tuner.queued_driver.Tuner", Watched)
    run_driver(queue, submit(queue, Steps, queue_trials=given))
    assert found == [used]


def test_an_experiment_whose_queue_becomes_exposed_waits(queue):
    experiment = submit(queue, Steps)
    os.chmod(queue.storage.path(), 0o777)
    assert run_driver(queue, experiment) == GIVEN_BACK
    assert experiment.state == "queued"
    assert "only you can change" in experiment.reason
    os.chmod(queue.storage.path(), 0o700)
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "finished"
