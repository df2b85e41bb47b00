"""Copies of ranks' files, and what is left of them whenever they are dropped."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import disk_store
import pytest

from dasktune.errors import StorageError
from dasktune.isolation.ranks.rank_messages import Shard
from dasktune.isolation.ranks.shard_staging import ShardStaging
from dasktune.storage.fs.storage import Storage

PATIENCE = 60.0
PATH = "trials/a/checkpoint_000000_i01"


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardStaging:
    """Return a staging whose storage holds up the file `slow` until there is a file `gate`."""
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    return ShardStaging(Storage(f"disk://{tmp_path}/runs", {"gate": str(tmp_path / "gate")}))


def shards(place: Path) -> dict[int, Shard]:
    """Write the files of two ranks."""
    found = {}
    for rank, names in enumerate((["0.bin", "deep/0.bin"], ["1.bin", "slow", "other"])):
        directory = place / f"rank-{rank}"
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(f"{name} of {rank}")
        found[rank] = Shard(directory=str(directory), names=frozenset(set(names) - {"other"}))
    return found


def copies(place: Path) -> list[str]:
    return disk_store.files_below(place / "copies")


def test_a_copy_does_not_change_with_the_files_and_is_deleted_with_its_upload(
    staging: ShardStaging, tmp_path: Path
) -> None:
    (tmp_path / "gate").touch()
    given = shards(tmp_path)
    staging.stage(1, given)
    for path in tmp_path.glob("rank-*/**/*"):
        if path.is_file():
            path.write_text("changed")
    entries = staging.upload(1, PATH)
    assert sorted(entries) == ["0.bin", "1.bin", "deep/0.bin", "slow"]
    stored = tmp_path / "runs" / PATH
    assert disk_store.files_below(stored) == sorted(entries)
    assert (stored / "deep/0.bin").read_text() == "deep/0.bin of 0"
    assert copies(tmp_path) == []


def test_a_missing_file_leaves_no_copy(staging: ShardStaging, tmp_path: Path) -> None:
    given = shards(tmp_path)
    (tmp_path / "rank-1" / "slow").unlink()
    with pytest.raises(StorageError, match="must stay until report"):
        staging.stage(1, given)
    assert copies(tmp_path) == []


def test_a_dropped_copy_is_deleted_and_cannot_be_uploaded(staging: ShardStaging, tmp_path: Path) -> None:
    staging.stage(1, shards(tmp_path))
    assert len(copies(tmp_path)) == 4
    assert staging.close() == [1]
    staging.drop(1)
    staging.drop(1)
    assert copies(tmp_path) == []
    for act in (lambda: staging.upload(1, PATH), lambda: staging.stage(2, shards(tmp_path))):
        with pytest.raises(OSError, match="not needed any more"):
            act()
    assert copies(tmp_path) == []


def test_a_drop_cuts_an_upload_short(staging: ShardStaging, tmp_path: Path) -> None:
    given = shards(tmp_path)
    staging.stage(1, given)
    raised: list[Any] = []

    def upload() -> None:
        try:
            staging.upload(1, PATH)
        except OSError as error:
            raised.append(error)

    uploading = threading.Thread(target=upload, daemon=True)
    uploading.start()
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "runs" / PATH / "1.bin").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    staging.drop(1)
    # The upload reads the end of each file at once, and its thread deletes the files.
    left = copies(tmp_path)
    assert len(left) == 4
    assert {(tmp_path / "copies" / name).stat().st_size for name in left} == {0}
    (tmp_path / "gate").touch()
    uploading.join(PATIENCE)
    assert "not needed any more" in str(raised[0])
    assert copies(tmp_path) == []
