from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from dasktune.errors import ConfigError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage


def filled(storage: Storage) -> Checkpoint:
    storage.write_bytes("model/weights", b"w" * 10)
    storage.write_bytes("empty", b"")
    return Checkpoint(storage.path(), storage.fs)


def test_it_can_be_read_as_a_local_directory(storage: Storage) -> None:
    with filled(storage).as_directory() as directory:
        assert Path(directory, "model", "weights").read_bytes() == b"w" * 10
        assert sorted(os.listdir(directory)) == ["empty", "model"]
    assert os.path.exists(directory) == storage.is_local


def test_it_can_be_copied(storage: Storage, tmp_path: Path) -> None:
    checkpoint = filled(storage)
    storage.write_bytes(".manifest.json", b"internal")
    target = tmp_path / "copy"
    assert checkpoint.to_directory(target) == str(target)
    assert sorted(os.listdir(target)) == ["empty", "model"]
    directory = checkpoint.to_directory()
    assert Checkpoint.from_directory(directory).to_directory(target / "2") == str(target / "2")


def test_metadata_is_kept_beside_the_files(storage: Storage) -> None:
    checkpoint = filled(storage)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    checkpoint.update_metadata({"b": [2]})
    assert checkpoint.get_metadata() == {"a": 1, "b": [2]}
    with pytest.raises(ConfigError, match="metadata must be values of JSON"):
        checkpoint.set_metadata({"a": object()})


def test_a_dict_survives(tmp_path: Path) -> None:
    data = {"epoch": 3, "rule": lambda x: x + 1}
    checkpoint = Checkpoint.from_dict(data)
    assert checkpoint.to_dict()["rule"](1) == 2
    path = checkpoint.path
    del checkpoint
    gc.collect()
    assert not os.path.exists(path)
    with pytest.raises(ConfigError, match=r"made by Checkpoint.from_dict"):
        Checkpoint.from_directory(tmp_path).to_dict()


def test_it_is_a_value(storage: Storage) -> None:
    checkpoint = filled(storage)
    other = pickle.loads(pickle.dumps(checkpoint))
    assert other == checkpoint
    assert hash(other) == hash(checkpoint)
    assert checkpoint != "checkpoint"
    assert checkpoint.path in repr(checkpoint)
    with other.as_directory() as directory:
        assert os.listdir(directory)


def test_a_url_and_a_relative_path_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c").mkdir()
    assert Checkpoint.from_directory("c").path == str(tmp_path / "c")
    assert Checkpoint("memory://x/c").path == "/x/c"


@pytest.mark.parametrize("path", ["", None, 3])
def test_a_bad_path_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="path must be a non-empty path"):
        Checkpoint(path)


def test_a_missing_directory_is_explained(storage: Storage, tmp_path: Path) -> None:
    missing = Checkpoint(storage.path("gone"), storage.fs)
    with pytest.raises(ConfigError, match="checkpoint must be"), missing.as_directory():
        pass
    with pytest.raises(ConfigError, match="checkpoint must be"):
        missing.to_directory()
    with pytest.raises(ConfigError, match="Write the files first"):
        Checkpoint.from_directory(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"Use Checkpoint\(url\)"):
        Checkpoint.from_directory("memory://x")
