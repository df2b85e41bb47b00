from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dasktune.errors import StorageError
from dasktune.results.journal_trials import JournalHistories, retention_of
from dasktune.storage.experiment.tuner_json import TunerFile, entries_of
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.trial.retention import Retention


def test_the_rule_that_keeps_checkpoints_is_read_as_it_was_written():
    storage = Storage("memory://rule-of-checkpoints")
    rule = {"num_to_keep": 2, "checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}
    given = {f"run_config.checkpoint_config.{name}": value for name, value in rule.items()}
    TunerFile(entries_of(given)).write(storage)
    assert retention_of(storage) == Retention(2, "loss", "min")


@pytest.fixture
def storage(tmp_path: Any) -> Storage:
    place = Storage(str(tmp_path))
    journal = JournalWriter(place, 1)
    journal.append({"event": "TimePassed", "time": 1.0})
    journal.close()
    return place


def caused(error: StorageError, cause: Exception) -> StorageError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("make", "reads"),
    [
        (lambda: StorageError("line 3 is torn"), 1),
        (lambda: caused(StorageError("malformed record"), KeyError("trial_id")), 1),
        (lambda: caused(StorageError("line 3"), StorageError("torn")), 1),
        (lambda: caused(StorageError("cannot read"), FileNotFoundError()), 1),
        (lambda: caused(StorageError("cannot read"), OSError(errno.EIO, "disk")), 2),
    ],
    ids=["torn", "malformed", "torn below", "no file", "disk"],
)
def test_a_damaged_journal_is_parsed_once_and_one_that_cannot_be_read_again(
    storage: Storage, make: Callable[[], StorageError], reads: int
):
    tries: list[StorageError] = []

    def fail(storage: Storage) -> Iterator[Any]:
        tries.append(make())
        raise tries[-1]
        yield

    histories = JournalHistories(storage, 1, records=fail)
    for trial_id in ("a", "b"):
        with pytest.raises(StorageError) as raised:
            histories(trial_id)
        assert str(raised.value) == str(tries[0])
    assert len(tries) == reads


def test_a_journal_that_is_gone_is_not_called_damaged_and_may_be_put_back(storage: Storage):
    [name] = storage.names("journal")
    content = storage.read_bytes(f"journal/{name}")
    storage.remove_tree("journal")
    histories = JournalHistories(storage, 1)
    with pytest.raises(
        StorageError, match=r"has lost its journal.* Put the directory journal/ back"
    ) as raised:
        histories("a")
    assert "damaged" not in str(raised.value)
    storage.write_bytes(f"journal/{name}", content)
    assert histories("a") == []
