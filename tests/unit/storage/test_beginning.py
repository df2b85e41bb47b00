"""Tests of the checkpoint that trials begin from."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigError
from dasktune.storage.beginning import (
    BEGINNING,
    check_beginning,
    copy_beginning,
    has_beginning,
)
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.location import Storage


@pytest.fixture
def given(tmp_path):
    place = tmp_path / "given"
    place.mkdir()
    (place / "weights").write_bytes(b"12")
    return place


def loaded(storage):
    with CheckpointStore(storage).load(BEGINNING).as_directory() as directory:
        return (Storage(directory)).read_bytes("weights")


def test_it_is_copied_once(given, tmp_path):
    storage = Storage(str(tmp_path / "exp"))
    assert not has_beginning(storage)
    for content in (b"12", b"changed"):
        (given / "weights").write_bytes(content)
        copy_beginning(check_beginning(str(given), storage.url, {}), storage)
        assert loaded(storage) == b"12"
    assert has_beginning(storage)


def test_half_a_copy_is_made_anew(given, tmp_path):
    storage = Storage(str(tmp_path / "exp"))
    storage.write_bytes(f"{BEGINNING.path}/half", b"1")
    copy_beginning(check_beginning(given, storage.url, {}), storage)
    assert loaded(storage) == b"12"
    assert not storage.exists(BEGINNING.path, "half")


def test_options_of_the_storage_are_for_urls_of_its_kind_only(given):
    there = Storage("memory://beginning", {"skip_instance_cache": False})
    there.write_bytes("weights", b"12")
    checkpoint = check_beginning("memory://beginning", "memory://exp", {})
    assert isinstance(checkpoint, Checkpoint)
    # A local filesystem would not know this one.
    check_beginning(str(given), "s3://bucket", {"key": "secret"})


@pytest.mark.parametrize("name", ["missing", "empty", "given/weights"])
def test_what_is_no_directory_with_files_is_refused(given, tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="restore must be a"):
        check_beginning(str(tmp_path / name), str(tmp_path), {})


def test_an_empty_place_in_a_store_is_refused():
    with pytest.raises(ConfigError, match="restore must be a checkpoint"):
        check_beginning("memory://nothing-there", "memory://exp", {})
