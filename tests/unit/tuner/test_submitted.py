"""Where a submitted driver begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from dasktune.config import RunConfig
from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.tuner.submitted_driver import restored_session


def session(place: Path, mark: str) -> object:
    parts = {"trainable": len, "run_config": RunConfig(storage_path=place, name="run")}
    return restored_session(parts, Storage(str(place / "run")), None, mark)


def test_a_driver_does_not_restart_where_it_does_not_see_its_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a worker that cannot access .*run"):
        session(tmp_path, ".submitted-1")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mark", ["", ".submitted-1"])
def test_a_driver_begins_where_its_mark_is_or_none_was_left(tmp_path: Path, mark: str) -> None:
    (tmp_path / "run").mkdir()
    if mark:
        (tmp_path / "run" / mark).touch()
    assert session(tmp_path, mark) is None


def test_a_driver_leaves_the_specification_of_another_one(tmp_path: Path) -> None:
    # A driver on another cluster may have written it a moment ago.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.json").write_text("{}", encoding="utf-8")
    assert session(tmp_path, "") is None
    assert (tmp_path / "run" / "experiment.json").exists()
