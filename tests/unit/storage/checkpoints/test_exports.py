"""Tests of what trials export."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.checkpoints.exports import read_exports, write_export_list, write_exports
from dasktune.storage.fs.storage import Storage


@pytest.fixture(params=["disk", "memory"])
def storage(request, tmp_path):
    return Storage(str(tmp_path / "exp") if request.param == "disk" else "memory://exports")


@pytest.fixture
def directory(tmp_path):
    place = tmp_path / "export"
    (place / "saved").mkdir(parents=True)
    (place / "saved" / "weights").write_bytes(b"12")
    (place / "net.onnx").write_bytes(b"3")
    return place


def test_what_was_exported_is_found_again(storage, directory):
    write_export_list(str(directory), {"model": str(directory / "saved"), "onnx": "net.onnx"})
    write_exports(storage, "a_00000", str(directory))
    told = read_exports(storage, "a_00000")
    base = f"{storage.url}/trials/a_00000/exported"
    assert told == {"model": f"{base}/saved", "onnx": f"{base}/net.onnx"}
    place = storage.child("trials", "a_00000", "exported")
    assert place.read_bytes("saved/weights") == b"12"


def test_a_later_export_takes_the_place_of_an_earlier_one(storage, directory):
    write_export_list(str(directory), {"model": "saved", "onnx": "net.onnx"})
    write_exports(storage, "a_00000", str(directory))
    (directory / "net.onnx").unlink()
    write_export_list(str(directory), {"model": "saved"})
    write_exports(storage, "a_00000", str(directory))
    assert list(read_exports(storage, "a_00000")) == ["model"]
    assert not storage.exists("trials/a_00000/exported/net.onnx")


def test_a_trial_that_has_exported_nothing_says_so(storage):
    assert read_exports(storage, "a_00000") == {}


@pytest.mark.parametrize("path", ["../elsewhere", "missing", "/etc/passwd", "."])
def test_only_what_lies_in_the_directory_is_exported(directory, path):
    (directory.parent / "elsewhere").touch()
    with pytest.raises(ConfigError, match=r"what _export_model\(\) returns must be"):
        write_export_list(str(directory), {"model": path})


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"model": "../../x"}', b'{"model": 1}'])
def test_a_damaged_list_is_refused(storage, content):
    storage.write_bytes("trials/a_00000/exported/.exported.json", content)
    with pytest.raises(StorageError, match="is damaged"):
        read_exports(storage, "a_00000")
