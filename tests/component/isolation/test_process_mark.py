"""The search for processes that have left the process group of a trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from dasktune.isolation.process_mark import (
    MARK,
    MarkSearch,
    give_mark,
    kill_marked,
    new_mark,
    read_environment,
)

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


def test_marks_that_wait_for_a_search_are_searched_together() -> None:
    begun, go_on = threading.Event(), threading.Event()
    this, searches = str(os.getpid()), []

    def read(number: str) -> bytes | None:
        if number == this:
            searches.append(number)
            begun.set()
            assert go_on.wait(60)
        return read_environment(number)

    search = MarkSearch(read=read)
    first, *others = marks = [new_mark() for _ in range(4)]
    threads = {mark: threading.Thread(target=search.kill, args=(mark,)) for mark in marks}
    threads[first].start()
    assert begun.wait(60)
    with ExitStack() as stack:
        for mark in others:
            environment = {**os.environ, **give_mark(os.environ, mark)}
            process = stack.enter_context(subprocess.Popen(["sleep", "60"], env=environment))
            stack.callback(process.kill)
            threads[mark].start()
        # The first one searches, and the others wait for its end.
        while [one.name for one in threading.enumerate()].count("dasktune-marked") < len(marks):
            threading.Event().wait(0.005)
        go_on.set()
        for thread in threads.values():
            thread.join(60)
        assert [marked(mark) for mark in marks] == [[]] * len(marks)
    assert len(searches) == 2


def test_a_number_that_belongs_to_another_process_now_is_not_killed(mark: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as innocent:
        try:
            seen: list[str] = []

            def read(number: str) -> bytes:
                # The first look has found the process that had the number before.
                seen.append(number)
                if number == str(innocent.pid) and seen.count(number) == 1:
                    return f"{MARK}={mark}".encode()
                return b"PATH=/bin"

            MarkSearch(read=read).kill(mark)
            assert seen.count(str(innocent.pid)) >= 2
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_a_process_is_read_until_it_has_begun_its_program(mark: str) -> None:
    environment = {**os.environ, **give_mark(os.environ, mark)}
    with (
        subprocess.Popen(["sleep", "60"], env=environment) as marked_one,
        subprocess.Popen(
            ["cat"], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        ) as without_environment,
    ):
        try:
            # While it begins its program, nothing says that its environment is empty.
            assert without_environment.stdin is not None
            assert without_environment.stdout is not None
            without_environment.stdin.write(b"begun\n")
            assert without_environment.stdout.readline() == b"begun\n"
            seen: list[str] = []

            def read(number: str) -> bytes | None:
                seen.append(number)
                is_beginning = number == str(marked_one.pid) and seen.count(number) < 9
                return b"" if is_beginning else read_environment(number)

            MarkSearch(read=read).kill(mark)
            assert marked_one.wait(60) == -9
            # Those that never show one are not waited for.
            assert without_environment.poll() is None
            assert seen.count(str(without_environment.pid)) <= 2
        finally:
            marked_one.kill()
            without_environment.kill()


def test_a_search_waits_no_longer_for_an_environment_than_it_may(
    mark: str, caplog: pytest.LogCaptureFixture
) -> None:
    MarkSearch(patience_s=0.05, read=lambda number: b"").kill(mark)
    assert caplog.text == ""


def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for(
    mark: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda descriptor, signum: None)
    environment = {**os.environ, **give_mark(os.environ, mark)}
    with subprocess.Popen(["sleep", "60"], env=environment) as stubborn:
        MarkSearch(limit_s=0.1).kill(mark)
        assert f"could not be killed in 0.1 s: [{stubborn.pid}]" in caplog.text
        stubborn.kill()
