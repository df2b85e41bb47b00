from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dasktune.storage.fs import local_files


def _no_links(*_: Any) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def test_a_disk_without_hard_links_creates_once_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _no_links)
    path = str(tmp_path / "x")
    local_files.create(path, b"first")
    with pytest.raises(FileExistsError):
        local_files.create(path, b"second")
    assert Path(path).read_bytes() == b"first"
    assert local_files.names(str(tmp_path)) == ["x"]


def test_a_rival_that_holds_the_lock_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _no_links)
    (tmp_path / "x.lock").touch()
    with pytest.raises(FileExistsError):
        local_files.create(str(tmp_path / "x"), b"late")
    assert local_files.names(str(tmp_path)) == ["x.lock"]


def test_a_link_whose_answer_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    local_files.create(str(tmp_path / "x"), b"mine")
    assert (tmp_path / "x").read_bytes() == b"mine"


def test_a_durable_write_is_synced_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    local_files.replace(str(tmp_path / "a"), b"1", durable=True)
    local_files.create(str(tmp_path / "b"), b"1", durable=True)
    assert len(synced) == 4
    local_files.replace(str(tmp_path / "a"), b"2")
    assert len(synced) == 4


@pytest.mark.parametrize("write", [local_files.replace, local_files.create])
def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write(str(tmp_path / "x"), b"1", durable=True)
    assert local_files.names(str(tmp_path)) == []


def test_a_failed_replacement_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="directory"):
        local_files.replace(str(tmp_path / "x"), b"1")
    assert local_files.names(str(tmp_path)) == ["x"]


def _tree(place: Path) -> Path:
    tree = place / "trial" / "checkpoint"
    tree.mkdir(parents=True)
    (tree / "model").write_bytes(b"1")
    return tree


@pytest.mark.parametrize("aside", [False, True])
def test_a_tree_is_deleted_and_may_be_missing(tmp_path: Path, aside: bool) -> None:
    tree = _tree(tmp_path)
    for _ in range(2):
        local_files.remove_tree(str(tree), str(tmp_path) if aside else None)
        assert local_files.names(str(tmp_path)) == ["trial"]
        assert local_files.names(str(tree.parent)) == []


def test_a_tree_that_cannot_be_moved_is_deleted_where_it_is(tmp_path: Path) -> None:
    tree = _tree(tmp_path)
    local_files.remove_tree(str(tree), str(tmp_path / "missing"))
    assert not tree.exists()


def test_a_tree_that_cannot_be_deleted_is_found_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = _tree(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", _no_links)
        with pytest.raises(OSError, match="no hard links"):
            local_files.remove_tree(str(tree), str(tmp_path))
    assert (tree / "model").read_bytes() == b"1"
    assert local_files.names(str(tmp_path)) == ["trial"]
    local_files.remove_tree(str(tree), str(tmp_path))
    assert not tree.exists()


def test_two_processes_delete_all_of_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = _tree(tmp_path)
    rmtree = shutil.rmtree

    def outrun(path: str, **options: Any) -> None:
        """Meet a file that another process has deleted since the directory was listed."""
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        raise FileNotFoundError(errno.ENOENT, "gone", f"{path}/other")

    monkeypatch.setattr(shutil, "rmtree", outrun)
    local_files.remove_tree(str(tree), str(tmp_path))
    assert local_files.names(str(tmp_path)) == ["trial"]
