from __future__ import annotations

import gc
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

#: Makes a checkpoint, says where, and ends in the way that it reads.
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


def test_what_a_cleaner_has_taken_is_replaced(place: Path) -> None:
    Checkpoint.temporary()
    (home,) = place.iterdir()
    shutil.rmtree(home)
    again = Checkpoint.temporary()
    assert Path(again.path).is_dir()


#: Forks, and shows what there is when the fork has ended as Python ends, with its exit handlers.
FORKING = """
import os, sys, tempfile
from dasktune.storage.fs.temp_dirs import make_directory
mine = make_directory()
fork = os.fork()
if fork == 0:
    other = make_directory()
    assert os.path.dirname(other) != os.path.dirname(mine)
    sys.exit(0)
assert os.waitpid(fork, 0)[1] == 0
print(os.path.isdir(mine), len(os.listdir(tempfile.gettempdir())))
"""


def test_a_fork_neither_shares_nor_removes_what_its_parent_has(place: Path) -> None:
    shown = subprocess.check_output([sys.executable, "-c", FORKING], text=True, timeout=60)
    assert shown == "True 1\n"
    assert list(place.iterdir()) == []


#: Forks inside the blocks that the argument names; the fork ends as Python ends.
FORKING_WITH_A_CHECKPOINT = """
import os, sys
from dasktune.storage.checkpoints.checkpoint import Checkpoint
checkpoint = Checkpoint.from_dict({"x": 1})
remote = Checkpoint("memory://forked")
remote.filesystem.pipe_file("/forked/y", b"2")
with remote.as_directory() as copy:
    fork = os.fork()
    if fork == 0:
        if "collects" in sys.argv:
            del checkpoint
        sys.exit(0)
    assert os.waitpid(fork, 0)[1] == 0
    print(os.listdir(copy), checkpoint.to_dict())
"""


@pytest.mark.parametrize("way", ["ends", "collects"])
def test_a_fork_that_ends_leaves_its_parent_s_checkpoints(way: str) -> None:
    command = [sys.executable, "-c", FORKING_WITH_A_CHECKPOINT, way]
    assert subprocess.check_output(command, text=True, timeout=60) == "['y'] {'x': 1}\n"


@pytest.mark.parametrize("moment", ["when it is made", "when it is opened"])
def test_one_that_is_swept_before_it_is_locked_is_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    others: list[Any] = []

    def sweep() -> None:
        """Let another process start, which removes what no process has locked."""
        if not others:
            others.append(None)
            others[0], _ = start()

    make, open_directory = tempfile.mkdtemp, os.open

    def make_and_sweep(*args: Any, **options: Any) -> str:
        made = make(*args, **options)
        sweep()
        return made

    def open_and_sweep(path: Any, *args: Any, **options: Any) -> int:
        descriptor = open_directory(path, *args, **options)
        if str(path).startswith(str(place)):
            sweep()
        return descriptor

    if moment == "when it is made":
        monkeypatch.setattr(tempfile, "mkdtemp", make_and_sweep)
    else:
        monkeypatch.setattr(os, "open", open_and_sweep)
    mine = Checkpoint.temporary()
    monkeypatch.undo()
    home = Path(mine.path).parent
    assert Path(mine.path).is_dir()
    # The other process has removed the first one, and has made its own.
    assert len(list(place.iterdir())) == 2
    others[0].communicate("end\n", timeout=60)
    assert list(place.iterdir()) == [home]


def test_what_it_has_made_is_known_to_be_temporary(place):
    inside = temp_dirs.make_directory()
    assert temp_dirs.is_temporary(os.path.join(inside, "experiment"))
    for other in (str(place), os.path.dirname(inside) + "-not", "memory://results", ""):
        assert not temp_dirs.is_temporary(other)
