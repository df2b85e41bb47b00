"""What a trial in a process of its own prints, and where it works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from process_run_kit import Slot

import dasktune as tune
from dasktune.trainable.reporting.trial_messages import Ended, Failed

BOTH = ("stdout", "stderr")


def speak(config: Any) -> None:
    print("python")
    print("python's error", file=sys.stderr)
    os.write(1, b"C\n")
    subprocess.run(["echo", "a process"], check=True)


def die(config: Any) -> None:
    print("last words")
    os.abort()


def where(config: Any) -> None:
    Path("here").write_text(os.environ["TUNE_ORIG_WORKING_DIR"])
    tune.report({"pid": os.getpid()})


def test_all_that_the_process_and_its_children_print_is_kept_for_each_trial(tmp_path: Path):
    slot = Slot(tmp_path)
    for name in ("a", "b"):
        trial = slot.start(speak, trial_id=name, log_files=BOTH)
        assert isinstance(trial.end(), Ended)
    slot.start(speak, trial_id="silent").end()
    for name in ("a", "b"):
        folder = tmp_path / "trials" / name
        assert (folder / "stdout").read_text() == "python\nC\na process\n"
        assert (folder / "stderr").read_text() == "python's error\n"
    assert not (tmp_path / "trials" / "silent").exists()
    slot.warm.close()


def test_the_last_words_of_a_process_that_dies_are_kept(tmp_path: Path):
    slot = Slot(tmp_path)
    assert isinstance(slot.start(die, trial_id="a", log_files=BOTH).end(), Failed)
    assert (tmp_path / "trials" / "a" / "stdout").read_text() == "last words\n"
    slot.warm.close()


def test_a_trial_works_in_its_directory_if_that_is_wanted(tmp_path: Path):
    slot = Slot(tmp_path)
    pids: list[int] = []
    for name in ("a", "b"):
        trial = slot.start(where, trial_id=name, chdir=True)
        assert isinstance(trial.end(), Ended)
        pids += trial.values("pid")
        assert (tmp_path / "trials" / name / "here").read_text() == os.getcwd()
    # To have been there is nothing that a trial leaves behind.
    assert pids[0] == pids[1]
    slot.warm.close()
