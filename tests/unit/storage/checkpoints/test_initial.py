"""Tests of the checkpoint that trials begin from."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.initial import (
    INITIAL_CHECKPOINT,
    check_initial_checkpoint,
    copy_initial_checkpoint,
    has_initial_checkpoint,
)
from dasktune.storage.fs.storage import Storage


@pytest.fixture
def given(tmp_path):
    place = tmp_path / "given"
    place.mkdir()
    (place / "weights").write_bytes(b"12")
    return place


def loaded(storage):
    with CheckpointStore(storage).load(INITIAL_CHECKPOINT).as_directory() as directory:
        return (Storage(directory)).read_bytes("weights")


def test_it_is_copied_once(given, tmp_path):
    storage = Storage(str(tmp_path / "exp"))
    assert not has_initial_checkpoint(storage)
    for content in (b"12", b"changed"):
        (given / "weights").write_bytes(content)
        copy_initial_checkpoint(check_initial_checkpoint(str(given), storage.url, {}), storage)
        assert loaded(storage) == b"12"
    assert has_initial_checkpoint(storage)


def test_half_a_copy_is_replaced(given, tmp_path):
    storage = Storage(str(tmp_path / "exp"))
    storage.write_bytes(f"{INITIAL_CHECKPOINT.path}/half", b"1")
    copy_initial_checkpoint(check_initial_checkpoint(given, storage.url, {}), storage)
    assert loaded(storage) == b"12"
    assert not storage.exists(INITIAL_CHECKPOINT.path, "half")


def test_options_of_the_storage_are_for_urls_of_its_kind_only(given):
    there = Storage("memory://beginning", {"skip_instance_cache": False})
    there.write_bytes("weights", b"12")
    checkpoint = check_initial_checkpoint("memory://beginning", "memory://exp", {})
    assert isinstance(checkpoint, Checkpoint)
    # A local filesystem would not know this one.
    check_initial_checkpoint(str(given), "s3://bucket", {"key": "secret"})


@pytest.mark.parametrize("name", ["missing", "empty", "given/weights"])
def test_what_is_no_directory_with_files_is_refused(given, tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="restore must be a"):
        check_initial_checkpoint(str(tmp_path / name), str(tmp_path), {})


def test_an_empty_place_in_a_store_is_refused():
    with pytest.raises(ConfigError, match="restore must be a checkpoint"):
        check_initial_checkpoint("memory://nothing-there", "memory://exp", {})
