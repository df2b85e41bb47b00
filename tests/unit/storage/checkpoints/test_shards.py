"""The shards that ranks write into a checkpoint which another process has begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.fs.storage import Storage


def test_a_rank_that_does_not_see_the_checkpoint_writes_nothing(local: Storage, tmp_path: Path) -> None:
    store = CheckpointStore(local)
    with pytest.raises(StorageError, match="is not visible to this worker"):
        store.write_shard({"a": b"1"}, "trials/t/checkpoint_000000_i01", ["a"])
    assert list(tmp_path.rglob("a")) == []
    (tmp_path / "exp/trials/t/checkpoint_000000_i01").mkdir(parents=True)
    assert set(store.write_shard({"a": b"1"}, "trials/t/checkpoint_000000_i01", ["a"])) == {"a"}


def test_an_object_store_needs_no_directory(remote: Storage) -> None:
    shard = CheckpointStore(remote).write_shard({"a": b"1"}, "trials/t/checkpoint_000000_i01", ["a"])
    assert shard["a"].size == 1


def test_a_file_that_was_offered_and_deleted_is_an_error(remote: Storage) -> None:
    with pytest.raises(StorageError, match=r"got none named \['b'\]"):
        CheckpointStore(remote).write_shard({"a": b"1"}, "trials/t/checkpoint_000000_i01", ["a", "b"])
