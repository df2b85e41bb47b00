"""Checkpoints as one piece of memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dasktune.errors import ConfigError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.serialization import from_bytes, to_bytes
from dasktune.storage.fs import local_files


def contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    files = local_files.relative_files(checkpoint.path)
    return {name: Path(entry.path).read_bytes() for name, entry in files}


def test_what_is_unpacked_is_what_was_packed(tmp_path: Path) -> None:
    files = {"a": b"", "b/c/d.bin": bytes(range(256)), "\u00fc.txt": b"text"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    checkpoint = Checkpoint.from_directory(tmp_path)
    checkpoint.set_metadata({"epoch": 3})
    packed = to_bytes(checkpoint, 1000)
    assert packed is not None
    again = from_bytes(packed)
    assert contents(again) == contents(checkpoint)
    assert again.get_metadata() == {"epoch": 3}


def test_a_checkpoint_without_files_is_one(tmp_path: Path) -> None:
    packed = to_bytes(tmp_path, 0)
    assert packed
    assert contents(from_bytes(packed)) == {}


def test_what_is_too_large_is_not_even_read(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    assert to_bytes(tmp_path, 1 << 20) is None


def test_exactly_the_limit_is_not_too_much() -> None:
    assert to_bytes({"a": b"12345"}, 5) is not None
    assert to_bytes({"a": b"12345"}, 4) is None


def test_what_cannot_be_copied_cannot_be_packed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe"):
        to_bytes(tmp_path, 1000)
