from __future__ import annotations

import csv
import io
import json
import threading
from math import inf, nan
from time import monotonic
from typing import Any

import pytest

from dasktune.callback import TrialStorage, TrialViews
from dasktune.errors import StorageError
from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback
from dasktune.logger.file_logger import FileLoggerCallback
from dasktune.logger.trial_logger import FileWriter, ResultsUnreadable
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.rows.trial_history import History, StoredRows
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


class Book:
    """A trial, and the file of its logger, which is written when the test says so."""

    def __init__(self, logger: FileLoggerCallback, storage: Storage) -> None:
        resources = PlacementGroupFactory([{"CPU": 1}])
        self.trial = Trial(trial_id="a_00000", config={"lr": 0.5, "net": (3,)}, resources=resources)
        trial_storage = TrialStorage(
            trainable_name="train", storage=storage, checkpoint=lambda record: Checkpoint("x")
        )
        self.trials = TrialViews({"a_00000": self.trial}, trial_storage)
        self.logger = logger
        self.log = logger.open_log(self.trials[0].present)
        self.log.on_restart()

    def report(self, **metrics: Any) -> dict[str, Any]:
        row = {"training_iteration": len(self.trial.history) + 1, "timestamp": 100, **metrics}
        self.trial.history.append(row)
        return dict(row)

    def settle(self) -> None:
        """Write the file, as the thread does."""
        self.log.write()

    def end(self) -> None:
        self.trial.status = TrialStatus.TERMINATED
        self.log.end()
        self.log.write(retry=True)

    def read(self) -> bytes:
        return self.trials[0].storage.read_bytes(self.logger.file_name)


@pytest.fixture(params=["local", "remote"])
def storage(request: pytest.FixtureRequest, tmp_path: Any) -> Storage:
    if request.param == "local":
        return Storage(str(tmp_path))
    place = Storage("memory://loggers")
    place.remove_tree()
    return place


def table(book: Book) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(book.read().decode())))


def test_a_metric_that_comes_later_gets_a_column_and_no_value_is_dropped(storage: Storage):
    book = Book(CSVLoggerCallback(), storage)
    book.report(loss=0.5)
    book.settle()
    book.report(loss=0.25)
    book.settle()
    assert [row["loss"] for row in table(book)] == ["0.5", "0.25"]
    book.report(loss=0.1, accuracy=0.9)
    book.settle()
    assert [row["accuracy"] for row in table(book)] == ["", "", "0.9"]
    book.report(accuracy=0.95)
    book.end()
    assert [row["loss"] for row in table(book)] == ["0.5", "0.25", "0.1", ""]


def test_lines_are_strict_json(storage: Storage):
    book = Book(JsonLoggerCallback(), storage)
    book.report(loss=nan, low=-inf, high=inf, shape=(2, 3), what=object)
    book.report(**{"$ref": "a"})
    book.end()
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in book.read().splitlines())
    assert (first["loss"], first["low"], first["high"]) == (None, "-Infinity", "Infinity")
    assert first["shape"] == [2, 3]
    assert first["what"] == "<class 'object'>"
    assert second["$ref"] == "a"


def test_a_trial_that_goes_back_has_its_file_rewritten(storage: Storage):
    book = Book(JsonLoggerCallback(), storage)
    for step in range(4):
        book.report(loss=step)
    book.settle()
    book.trial.history.cut_back(2)  # it became a clone
    book.log.on_restart()
    book.report(loss=20)
    book.settle()
    assert [json.loads(line)["loss"] for line in book.read().splitlines()] == [0, 1, 20]


def test_what_a_trial_computed_again_stands_in_the_file_at_its_end(storage: Storage):
    book = Book(JsonLoggerCallback(), storage)
    book.report(loss=1)
    book.settle()
    assert not book.trial.history.record({**book.trial.history[0], "loss": 2})
    book.end()
    assert [json.loads(line)["loss"] for line in book.read().splitlines()] == [2]


def test_a_file_on_a_disk_grows_and_is_not_rewritten(tmp_path: Any):
    book = Book(JsonLoggerCallback(), Storage(str(tmp_path)))
    book.report(loss=1)
    book.settle()
    path = tmp_path / "trials" / "a_00000" / "result.json"
    before = path.stat().st_ino
    book.report(loss=2)
    book.settle()
    assert path.stat().st_ino == before
    assert len(path.read_bytes().splitlines()) == 2


def test_the_state_names_what_is_not_written_and_another_session_writes_it():
    # Remote files are written 10 s later.
    storage = Storage("memory://unwritten")
    book = Book(JsonLoggerCallback(), storage)
    book.logger.setup()
    book.logger.on_trial_start(1, book.trials, book.trials[0])
    book.logger.on_trial_result(1, book.trials, book.trials[0], book.report(loss=1))
    state = book.logger.get_state()
    assert state == {"unwritten": ["a_00000"]}
    after = JsonLoggerCallback()
    after.setup()
    after.set_state(state)
    assert after.get_state() == state
    after.on_step_begin(1, book.trials)
    after.on_experiment_end(book.trials)
    assert len(book.read().splitlines()) == 1
    assert after.get_state() == {"unwritten": []}
    book.logger.on_experiment_end(book.trials)
    assert book.logger.get_state() == {"unwritten": []}


def test_events_for_tensorboard_can_be_read_by_it(tmp_path: Any):
    pytest.importorskip("tensorboardX")
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    book = Book(TBXLoggerCallback(), Storage(str(tmp_path)))
    book.report(loss=0.5, name="x", done=False)
    book.settle()
    book.report(**{"loss": 0.25, "val/acc": 0.75})
    book.settle()
    book.end()
    events = loading.EventAccumulator(str(tmp_path / "trials" / "a_00000"))
    events.Reload()
    assert [(one.step, one.value, one.wall_time) for one in events.Scalars("loss")] == [
        (1, 0.5, 100.0),
        (2, 0.25, 100.0),
    ]
    assert [one.value for one in events.Scalars("val/acc")] == [0.75]
    assert sorted(events.Tags()["scalars"]) == ["loss", "val/acc"]
    hparams = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"lr" in hparams
    assert b"net" in hparams


# The thread


def test_a_storage_that_fails_for_a_while_costs_nothing(caplog: Any):
    writer = FileWriter(retry_seconds=3600.0, interval_s=0.001)
    tries: list[bool] = []
    written = threading.Event()

    def write(retry: bool) -> None:
        tries.append(retry)
        if len(tries) < 3:
            raise OSError("down")
        written.set()

    writer.mark("a", write)
    assert written.wait(60)
    writer.close()
    assert tries == [False, False, False]
    assert caplog.text.count("cannot write the files of a logger") == 1


def test_a_storage_that_keeps_failing_is_dropped(caplog: Any):
    writer = FileWriter(retry_seconds=0.0, interval_s=0.001)

    def write(retry: bool) -> None:
        raise OSError("gone")

    def mark_until_it_raises() -> None:
        until = monotonic() + 60
        while monotonic() < until:
            writer.mark("a", write)

    with pytest.raises(OSError, match="gone"):
        mark_until_it_raises()
    with pytest.raises(OSError, match="gone"):
        writer.close()
    assert writer.unwritten == ["a"]


def test_the_last_round_is_patient():
    writer = FileWriter(retry_seconds=1.0, interval_s=3600.0)
    seen: list[bool] = []
    writer.mark("a", seen.append)
    writer.close()
    assert seen == [True]


def test_results_that_cannot_be_read_stop_no_log_of_another_trial(caplog: Any):
    writer = FileWriter(retry_seconds=0.0, interval_s=0.001)
    tries: list[str] = []
    damage, other = StorageError("the journal is damaged"), StorageError("so is this")
    tried_again, written = threading.Event(), threading.Event()

    def broken(name: str, error: Exception) -> Any:
        def write(retry: bool) -> None:
            tries.append(name)
            if tries.count(name) > 2:
                tried_again.set()
            raise ResultsUnreadable(error)

        return write

    writer.mark("a", broken("a", damage))
    writer.mark("b", broken("b", other))
    writer.mark("c", lambda retry: written.set())
    assert written.wait(60)
    assert tried_again.wait(60)
    last: list[bool] = []
    writer.mark("d", last.append)
    with pytest.raises(StorageError) as raised:
        writer.close()
    assert raised.value is damage
    assert len(last) == 1
    assert writer.unwritten == ["a", "b"]
    assert caplog.text.count("cannot read the results of a, will retry") == 1


def test_a_file_tells_results_that_cannot_be_read_from_a_storage_that_fails(storage: Storage):
    def read() -> History:
        raise StorageError("the journal is damaged")

    book = Book(JsonLoggerCallback(), storage)
    row = {"training_iteration": 2, "loss": 1.0}
    book.trial.history = History([row], stored=StoredRows(1, read))
    with pytest.raises(ResultsUnreadable) as raised:
        book.settle()
    assert str(raised.value.cause) == "the journal is damaged"
