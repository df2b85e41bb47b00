"""The driver of a queued experiment, with trials in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import dasktune as tune
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
