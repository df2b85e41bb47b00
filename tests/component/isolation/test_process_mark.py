"""The search for processes that have left the process group of a trial."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dasktune.isolation import process_mark
from dasktune.isolation.process_mark import MARK, give_mark, kill_marked, new_mark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system does not show environments")

#: A process that starts another one in a group of its own and ends, again and again.
RELAY = """
import os, sys
print(flush=True)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""

#: The same, but each process begins to run another program.
EXEC_RELAY = """
import os, sys
print(flush=True)
os.setsid() if os.getpid() != os.getpgid(0) else None
os.execv(sys.executable, [sys.executable, "-S", "-c", sys.argv[1], sys.argv[1]])
"""


def marked(mark: str) -> list[int]:
    """Return the processes with a mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().get(MARK, ""):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    """Return a mark, of which no process is left after the test."""
    mark = new_mark()
    yield mark
    for pid in marked(mark):
        os.kill(pid, 9)


@pytest.mark.parametrize("program", [RELAY, EXEC_RELAY], ids=["forks", "execs"])
def test_a_process_that_changes_all_the_time_does_not_escape(mark: str, program: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program, program],
        env={**os.environ, **give_mark(os.environ, mark)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as begun:
        assert begun.stdout is not None
        begun.stdout.readline()
        kill_marked(mark)
        assert marked(mark) == []


def test_marks_that_wait_for_a_search_are_searched_together(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[set[bytes]] = []
    begun, go_on = threading.Event(), threading.Event()

    def kill_all(marks: set[bytes]) -> None:
        searched.append(marks)
        begun.set()
        go_on.wait(60)

    monkeypatch.setattr(process_mark, "_kill_all", kill_all)
    first = threading.Thread(target=kill_marked, args=(mark,))
    first.start()
    assert begun.wait(60)
    others = [threading.Thread(target=kill_marked, args=(f"{mark}-{number}",)) for number in range(3)]
    for other in others:
        other.start()
    while len(process_mark._wanted) < 3:
        threading.Event().wait(0.005)
    go_on.set()
    for thread in (first, *others):
        thread.join(60)
    assert searched == [{mark.encode()}, {f"{mark}-{number}".encode() for number in range(3)}]


def test_a_number_that_belongs_to_another_process_now_is_not_killed(
    mark: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "60"]) as innocent:
        try:
            seen: list[str] = []

            def environment(number: str) -> bytes:
                # The first look has found the process that had the number before.
                seen.append(number)
                if number == str(innocent.pid) and seen.count(number) == 1:
                    return f"{MARK}={mark}".encode()
                return b"PATH=/bin"

            monkeypatch.setattr(process_mark, "_environment", environment)
            kill_marked(mark)
            assert seen.count(str(innocent.pid)) >= 2
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_a_process_is_read_until_it_has_begun_its_program(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, **give_mark(os.environ, mark)}
    with (
        subprocess.Popen(["sleep", "60"], env=environment) as marked_one,
        subprocess.Popen(["sleep", "60"], env={}) as without_environment,
    ):
        try:
            seen: list[str] = []
            read = process_mark._environment

            def beginning(number: str) -> bytes | None:
                seen.append(number)
                return b"" if number == str(marked_one.pid) and seen.count(number) < 9 else read(number)

            monkeypatch.setattr(process_mark, "_environment", beginning)
            kill_marked(mark)
            assert marked_one.wait(60) == -9
            # Those that never show one are not waited for.
            assert without_environment.poll() is None
            assert seen.count(str(without_environment.pid)) <= 2
        finally:
            marked_one.kill()
            without_environment.kill()


def test_a_search_waits_no_longer_for_an_environment_than_it_may(
    mark: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_mark, "_PATIENCE", 0.05)
    monkeypatch.setattr(process_mark, "_environment", lambda number: b"")
    kill_marked(mark)
    assert caplog.text == ""


def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for(
    mark: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_mark, "_SECONDS", 0.1)
    monkeypatch.setattr(process_mark.signal, "pidfd_send_signal", lambda descriptor, signum: None)
    environment = {**os.environ, **give_mark(os.environ, mark)}
    with subprocess.Popen(["sleep", "60"], env=environment) as stubborn:
        kill_marked(mark)
        assert f"could not be killed in 0.1 s: [{stubborn.pid}]" in caplog.text
        stubborn.kill()
