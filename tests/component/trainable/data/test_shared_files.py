"""Files of shared objects that a killed process has left."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dasktune.trainable.data.shared_objects import SharedObject, frames_of

HOLDER = """
import os, signal, sys, tempfile
from dasktune.trainable.data.shared_objects import SharedObject, frames_of
tempfile.tempdir = sys.argv[1]
SharedObject(frames_of([1]), memory_directory="/nowhere").path()
os.kill(os.getpid(), signal.SIGKILL)
"""


def shared_object(thing: Any) -> SharedObject:
    return SharedObject(frames_of(thing), memory_directory="/nowhere")


def shared_files(folder: Path) -> list[Path]:
    return list(folder.glob("dasktune-shared-*"))


def test_what_a_killed_process_left_is_swept_and_what_another_holds_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    holder = shared_object([0])
    held = Path(holder.path())
    subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path)], check=False, timeout=60)
    [left] = set(shared_files(tmp_path)) - {held}
    another = shared_object([2])
    new = Path(another.path())
    assert not left.exists()
    assert set(shared_files(tmp_path)) == {held, new}
    holder.close()
    another.close()
