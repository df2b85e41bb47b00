from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dasktune.isolation.child import ProcessState


def test_nothing_done_leaves_no_traces() -> None:
    assert ProcessState.now().changes() == ""


def test_variables_are_named_whether_new_changed_or_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B_CHANGED", "1")
    monkeypatch.setenv("C_GONE", "1")
    before = ProcessState.now()
    monkeypatch.setenv("A_NEW", "1")
    monkeypatch.setenv("B_CHANGED", "2")
    monkeypatch.delenv("C_GONE")
    names = "os.environ['A_NEW'], os.environ['B_CHANGED'], os.environ['C_GONE']"
    assert before.changes() == names


@pytest.mark.parametrize("name", ["KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"])
def test_what_libraries_set_at_their_import_is_no_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ProcessState.now()
    monkeypatch.setenv(name, "FALSE")
    assert before.changes() == ""


def test_the_working_directory_is_a_trace_even_if_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ProcessState.now()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert before.changes() == "the working directory"


@pytest.mark.parametrize(("name", "trace"), [("mine", "thread mine"), ("fsspecIO", ""), ("tqdm_monitor", "")])
def test_a_thread_is_a_trace_unless_it_is_that_of_a_library(name: str, trace: str) -> None:
    before, end = ProcessState.now(), threading.Event()
    thread = threading.Thread(target=end.wait, name=name)
    thread.start()
    try:
        assert before.changes() == trace
    finally:
        end.set()
        thread.join()
