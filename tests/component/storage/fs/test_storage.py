from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_object_store import FakeObjectStore

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs import filesystem
from dasktune.storage.fs.storage import Storage


def test_what_was_written_is_read_back_and_listed(storage: Storage) -> None:
    storage.write_bytes("a/b/c.bin", b"one")
    storage.write_bytes("a/b/c.bin", b"two")
    storage.write_bytes("a/d", b"")
    assert storage.read_bytes("a/b/c.bin") == b"two"
    assert storage.find() == ["a/b/c.bin", "a/d"]
    assert storage.names("a") == ["b", "d"]
    assert storage.child("a", "b").read_bytes("c.bin") == b"two"
    with storage.open_read("a", "b", "c.bin") as stream:
        assert stream.read() == b"two"


def test_a_file_that_is_missing_is_missing_everywhere(storage: Storage) -> None:
    assert not storage.exists("x")
    assert storage.names() == storage.find("x") == []
    storage.remove("x")
    storage.remove_tree("x")
    with pytest.raises(FileNotFoundError):
        storage.read_bytes("x")
    with pytest.raises(FileNotFoundError):
        storage.open_read("x")


def test_exists_is_about_files_not_directories(storage: Storage) -> None:
    storage.write_bytes("a/b", b"1")
    assert storage.exists("a", "b")
    assert not storage.exists("a")


def test_a_file_is_created_once(storage: Storage) -> None:
    storage.create("x/y", b"first")
    with pytest.raises(FileExistsError):
        storage.create("x/y", b"second")
    assert storage.read_bytes("x/y") == b"first"
    assert storage.find() == ["x/y"]


def test_a_tree_is_deleted_with_nothing_beside_it(storage: Storage) -> None:
    for name in ("a/1", "a/b/2", "ab/3", "a*/4"):
        storage.write_bytes(name, b"1")
    storage.remove_tree("a")
    assert storage.find() == ["a*/4", "ab/3"]
    storage.remove("ab/3")
    assert storage.find() == ["a*/4"]


@pytest.mark.parametrize("name", ["", "/etc", "..", "a/../b", "a//b", ".", "a/", "a\0b", None])
def test_names_never_escape(storage: Storage, name: Any) -> None:
    with pytest.raises(ConfigError, match="name must be a relative path"):
        storage.child(name)
    with pytest.raises(ConfigError):
        storage.write_bytes(name, b"")


def test_patterns_are_refused_where_fsspec_would_expand_them(local: Storage, remote: Storage) -> None:
    assert local.child("lr=[1]").url.endswith("lr=[1]")
    with pytest.raises(ConfigError, match="patterns"):
        remote.child("lr=[1]")
    with pytest.raises(ConfigError, match="URL without"):
        Storage("fakes3://bucket/x*")


@pytest.mark.parametrize("name", ["a::b", "memory::b", "file::b", "a:b", "memory:b", "x #%&;"])
def test_a_place_is_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    for number, url in enumerate([f"{tmp_path}/{name}", f"./{name}", f"file://{tmp_path}/{name}"]):
        storage = Storage(url).child("exp", name)
        assert storage.is_local
        assert not storage.is_process_private
        storage.write_bytes(f"{number}.txt", b"1")
        assert (tmp_path / name / "exp" / name / f"{number}.txt").read_bytes() == b"1"
        assert Checkpoint(storage.url).path == f"{tmp_path}/{name}/exp/{name}"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_local_path_may_have_the_separator_of_a_url(tmp_path: Path) -> None:
    Storage(f"{tmp_path}/a://b").write_bytes("x", b"1")
    assert (tmp_path / "a:" / "b" / "x").exists()


@pytest.mark.parametrize(
    "url",
    [
        "fakes3://bucket/a::b",
        "fakes3://bucket/a::memory",
        "fakes3://bucket/a::memory://b",
        "memory://a::b",
        "zip://a.zip::fakes3://bucket/b",
        "a::b",
        "memory::b",
        "file::b",
        "simplecache::/tmp/x",
    ],
)
def test_a_chain_of_urls_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=f"storage_path must be .* got {url!r}"):
        Storage(url)


def test_a_cache_in_front_of_a_url_is_fsspec_s() -> None:
    storage = Storage("simplecache::fakes3://bucket/x/").child("y")
    assert storage.url == "simplecache::fakes3://bucket/x/y"
    assert not storage.is_local


@pytest.mark.parametrize("name", ["a::b", "memory::b", "a*", "a?", "a["])
def test_a_name_that_would_lead_elsewhere_is_refused_in_a_url(storage: Storage, name: str) -> None:
    if storage.is_local:
        assert storage.child(name).path() == f"{storage.path()}/{name}"
    else:
        with pytest.raises(ConfigError, match="name must be free of"):
            storage.child(name)


def test_a_name_with_the_version_of_an_object_is_refused(storage: Storage) -> None:
    """S3's client would write another object."""
    with pytest.raises(ConfigError, match="name must be a relative path"):
        storage.write_bytes("w?versionId=1", b"")


def test_local_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert Storage("runs").url == Storage(Path("runs/")).url == f"{tmp_path}/runs"  # type: ignore[arg-type]
    assert Storage("~/runs").url == Storage("file://~/runs").url == "/home/me/runs"
    assert Storage(f"file://{tmp_path}/x").path("y") == f"{tmp_path}/x/y"
    assert Storage("/").child("x").url == "/x"


def test_it_knows_who_can_see_it(storage: Storage) -> None:
    assert storage.is_local == filesystem.is_local(storage.fs)
    assert storage.is_process_private == filesystem.is_memory(storage.fs)


@pytest.mark.parametrize("url", ["", "  ", None, 3, "s3://b/../x"])
def test_a_bad_url_is_refused(url: Any) -> None:
    with pytest.raises(ConfigError, match="storage_path must be"):
        Storage(url)


def test_an_unknown_protocol_is_explained_when_it_is_opened() -> None:
    with pytest.raises(ConfigError, match=r"storage_path must be .* got 'nosuch://x'"):
        Storage("nosuch://x").path()


def test_options_must_be_a_mapping_and_are_not_shown() -> None:
    with pytest.raises(ConfigError, match="storage_options must be a mapping") as caught:
        Storage("x", "secret")  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_secrets_are_never_shown() -> None:
    storage = Storage("ftp://me:hunter2@host/x", {"password": "hunter3"})
    shown = f"{storage} {storage!r} {storage.child('y')!r}"
    assert "hunter" not in shown
    assert "ftp://***@host/x" in shown
    with pytest.raises(ConfigError) as caught:
        Storage("ftp://me:hunter2@host/../x")
    assert "hunter" not in str(caught.value)
    assert repr(Storage("memory://x")) == "Storage('memory://x')"


def test_a_child_shares_what_its_parent_has_opened(storage: Storage) -> None:
    before = storage.child("a")
    assert before.path("b") == storage.path("a", "b")
    after = storage.child("a")
    assert after == before
    assert after.fs is storage.fs
    assert after.path("b") == before.path("b")


def test_it_is_a_value(storage: Storage) -> None:
    storage.write_bytes("x", b"1")
    other = pickle.loads(pickle.dumps(storage))
    assert other == storage
    assert hash(other) == hash(storage)
    assert other.read_bytes("x") == b"1"
    assert Storage("memory://x", {"a": 1}) != Storage("memory://x", {"a": 2})


def test_a_child_process_opens_its_own(remote: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    before = remote.fs
    assert remote.fs is before
    monkeypatch.setattr(os, "getpid", lambda: -1)
    after = remote.fs
    assert after is not before
    assert remote.fs is after


def test_remote_listings_are_never_cached(remote: Storage) -> None:
    assert remote.fs.storage_options == {"use_listings_cache": False}


def test_a_lost_answer_does_not_look_like_a_rival(remote: Storage) -> None:
    FakeObjectStore.failures, FakeObjectStore.answer_lost = [OSError("reset")], True
    with pytest.raises(OSError, match="reset"):
        remote.claim("x", b"mine")
    remote.claim("x", b"mine")
    with pytest.raises(FileExistsError):
        remote.claim("x", b"theirs")


def test_a_mute_store_does_not_hang_its_caller(remote: Storage) -> None:
    impatient = replace(remote, timeout=lambda size: 0.01)
    FakeObjectStore.mute = True
    for same in (impatient, impatient.with_retry(0.0)):
        with pytest.raises(StorageError, match=r"no answer within 0.01 s to pipe_file of bucket/exp/x"):
            same.write_bytes("x", b"1")
    with pytest.raises(StorageError, match=r"no answer within 0.01 s to pipe_file of bucket/exp/a/x"):
        impatient.child("a").write_bytes("x", b"1")


def test_a_marker_of_a_directory_is_no_file(remote: Storage) -> None:
    FakeObjectStore.objects = {"bucket/exp/a/": b"", "bucket/exp/a/b": b"1"}
    assert remote.find() == ["a/b"]
