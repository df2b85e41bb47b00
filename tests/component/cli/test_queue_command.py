"""``dasktune queue`` on the files of a queue, without drivers."""

from __future__ import annotations

import pytest

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.queue.experiment_queue import ExperimentQueue
from dasktune.storage.queue.queue_state import QueueState


@pytest.fixture
def place(tmp_path) -> str:
    """Return a queue with three experiments: one waits, one has finished, and one has failed."""
    queue = ExperimentQueue(Storage(str(tmp_path / "queue")))
    for name, outcome in (("waits", None), ("good", QueueState.FINISHED), ("bad", QueueState.FAILED)):
        entry_id = queue.add(name, b"tuner", priority=0, weight=1, submitted=1e9)
        if outcome is not None:
            queue.end(entry_id, outcome)
    return str(tmp_path / "queue")


def names(place: str) -> set[str]:
    return {one.name for one in ExperimentQueue(Storage(place)).statuses()}


def test_prune_removes_what_is_over_and_old_enough(place, dasktune):
    code, out, _ = dasktune("queue", "prune", place, "--older-than", "7d")
    assert (code, out) == (0, "nothing to remove\n")
    code, out, _ = dasktune("queue", "prune", place, "--older-than", "0s", "--state", "failed")
    assert code == 0
    assert "bad (" in out
    assert "is removed; it had failed" in out
    assert names(place) == {"waits", "good"}
    assert dasktune("queue", "prune", place, "--older-than", "0m")[0] == 0
    assert names(place) == {"waits"}


@pytest.mark.parametrize("text", ["7", "d", "-1d", "nand", "infs", "1w", ""])
def test_a_duration_needs_a_unit(place, dasktune, text):
    code, _, err = dasktune("queue", "prune", place, f"--older-than={text}")
    assert code == 2
    assert "must be a number with s, m, h or d" in err
    assert len(names(place)) == 3


def test_prune_needs_a_duration_and_removes_no_state_that_is_not_over(place, dasktune):
    code, _, err = dasktune("queue", "prune", place)
    assert code == 2
    assert "--older-than must be given with prune" in err
    code, _, err = dasktune("queue", "prune", place, "--older-than", "0s", "--state", "queued")
    assert code == 2
    assert "invalid choice: 'queued'" in err
    assert dasktune("queue", "prune", place, "good", "--older-than", "0s")[0] == 2
    assert len(names(place)) == 3


def test_the_python_function_returns_the_ids(place):
    handle = tune.QueuedExperiment(place, "good")
    assert tune.prune_queue(place, older_than=3600) == []
    assert tune.prune_queue(place, older_than=0, states=["finished"]) == [handle.entry_id]
    with pytest.raises(ConfigError, match="must be one of the queue"):
        _ = handle.state
    with pytest.raises(ConfigError, match="older_than must be a finite number of seconds, at least 0"):
        tune.prune_queue(place, older_than=-1)
    with pytest.raises(ConfigError, match="states must be some of"):
        tune.prune_queue(place, older_than=0, states=["queued"])  # type: ignore[list-item]
