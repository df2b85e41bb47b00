from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dasktune.storage.fs.probe import STALE, remove_stale_files, scratch_name
from dasktune.storage.fs.storage import Storage

KINDS = ["preflight", "probe", "submitted"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", [STALE + 10, -STALE - 10])
def test_what_a_killed_process_left_is_deleted(storage: Storage, kind: str, shift: float) -> None:
    """Also if the clock of its machine was ahead."""
    name = scratch_name(kind)
    for one in (name, f"{name}-reply", f"{name}-reply27"):
        storage.write_bytes(one, b"1")
    remove_stale_files(storage, clock=lambda: time.time() + shift)
    assert storage.find() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_living_process_uses_stays(storage: Storage, kind: str) -> None:
    name = scratch_name(kind)
    storage.write_bytes(name, b"1")
    remove_stale_files(storage, clock=lambda: time.time() + STALE - 60)
    assert storage.find() == [name]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_older_dasktune_left_is_deleted(storage: Storage, kind: str) -> None:
    storage.write_bytes(f".{kind}-{0:032x}", b"1")
    remove_stale_files(storage)
    assert storage.find() == []


def test_files_of_others_stay(storage: Storage) -> None:
    names = [".preflight", ".preflight-mine", f"trials/.probe-{0:032x}", "experiment.json"]
    for name in names:
        storage.write_bytes(name, b"1")
    remove_stale_files(storage, clock=lambda: time.time() + 10 * STALE)
    assert sorted(storage.find()) == sorted(names)


@pytest.mark.parametrize("folder", ["", "driver", "journal", "snapshots"])
def test_files_that_were_never_complete_are_deleted(local: Storage, folder: str) -> None:
    where = Path(local.path(), folder)
    where.mkdir(parents=True)
    for name in ("old", "new"):
        (where / f".tmp-{name}").touch()
    then = time.time() - STALE - 10
    os.utime(where / ".tmp-old", (then, then))
    remove_stale_files(local)
    assert [path.name for path in where.iterdir()] == [".tmp-new"]


def test_the_rest_of_a_deletion_that_was_cut_off_is_deleted(local: Storage) -> None:
    local.write_bytes("trials/.tmp-0123/model", b"1")
    local.write_bytes("trials/a/params.json", b"{}")
    remove_stale_files(local)
    assert local.find() == ["trials/a/params.json"]
