from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs import temp_dirs

#: Makes a checkpoint, says where, and ends when it is told how.
PROCESS = """
import os, sys
from dasktune.storage.checkpoints.checkpoint import Checkpoint
checkpoint = Checkpoint.from_dict({})
print(checkpoint.path, flush=True)
if sys.stdin.readline() == "die\\n":
    os._exit(9)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, in this process and those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start() -> tuple[Any, Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_process_that_died_has_left_is_removed_and_what_another_holds_is_not() -> None:
    (dead, left), (alive, held) = start(), start()
    dead.communicate("die\n", timeout=60)
    assert left.exists()
    mine = Checkpoint.from_dict({})
    assert not left.parent.exists()
    assert held.exists()
    alive.communicate("end\n", timeout=60)
    assert Path(mine.path).exists()


def test_a_process_that_ends_leaves_nothing(place: Path) -> None:
    process, path = start()
    assert path.exists()
    process.communicate("end\n", timeout=60)
    assert list(place.iterdir()) == []


def test_directories_of_one_process_lie_together_and_go_one_by_one(place: Path) -> None:
    first, second = Checkpoint.temporary(), Checkpoint.from_dict({"x": 1})
    (home,) = place.iterdir()
    assert {Path(first.path), Path(second.path)} == set(home.iterdir())
    del first
    gc.collect()
    assert list(home.iterdir()) == [Path(second.path)]


def test_what_a_cleaner_has_taken_is_made_anew(place: Path) -> None:
    Checkpoint.temporary()
    (home,) = place.iterdir()
    shutil.rmtree(home)
    again = Checkpoint.temporary()
    assert Path(again.path).is_dir()


def test_a_fork_neither_shares_nor_removes_what_its_parent_has(place: Path) -> None:
    mine = Checkpoint.from_dict({"x": 1})

    def leave() -> None:
        Checkpoint.from_dict({})
        temp_dirs._cleanup(os.getppid(), os.path.dirname(mine.path))

    fork = multiprocessing.get_context("fork").Process(target=leave)
    fork.start()
    fork.join(60)
    assert fork.exitcode == 0
    assert mine.to_dict() == {"x": 1}
    assert len(list(place.iterdir())) == 2


@pytest.mark.parametrize("before", [(tempfile, "mkdtemp"), (os, "open")])
def test_one_that_is_swept_before_it_is_locked_is_given_up(
    place: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[Any, str]
) -> None:
    swept: list[Path] = []
    module, name = before
    real = getattr(module, name)

    def then_sweep(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        if not swept:
            swept.extend(place.iterdir())
            temp_dirs._remove_stale(str(place))
        return made

    monkeypatch.setattr(module, name, then_sweep)
    home = Path(temp_dirs._register(str(place)))
    assert len(swept) == 1
    assert home not in swept
    assert list(place.iterdir()) == [home]


def test_what_it_has_made_is_known_to_be_temporary(place):
    inside = temp_dirs.make_directory()
    assert temp_dirs.is_temporary(os.path.join(inside, "experiment"))
    for other in (str(place), os.path.dirname(inside) + "-not", "memory://results", ""):
        assert not temp_dirs.is_temporary(other)
