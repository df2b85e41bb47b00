"""End what a failed test, or a killed run of the tests, has left running.

A cluster, driver or browser that runs on takes the processor from all tests that follow. Every
process inherits the environment of the one that started it, so a variable there finds them all,
also those whose parents have died.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

#: In the command lines of the helpers of `multiprocessing`, which Python starts only once, and of
#: the forks of the second.
TRACKER, FORKSERVER = "resource_tracker", "multiprocessing.forkserver"

#: Names the run of the tests, and the test, that started a process.
RUN, TEST = "DASKTUNE_TEST_RUN", "DASKTUNE_TEST"

#: Seconds within which a started process has begun its program.
_BEGIN_SECONDS = 2.0

#: The program of the guard: it waits until the process of the tests has ended, however it did.
GUARD = """
import sys
sys.path.insert(0, {directory!r})
import leftover_processes
sys.stdin.read()
leftover_processes.kill_started_with({variable!r}, {value!r})
"""


def kill_started_with(variable: str, value: str, spared: str = TRACKER) -> list[str]:
    """Kill the processes whose environment has this value; return their command lines.

    Leaves out this process, the one that tracks resources, and those with `spared` in their command
    line.
    """
    killed: list[str] = []
    until = time.monotonic() + _BEGIN_SECONDS
    while _kill_those_there(variable, value, spared, killed) and time.monotonic() < until:
        time.sleep(0.01)
    return killed


def _kill_those_there(variable: str, value: str, spared: str, killed: list[str]) -> bool:
    """Kill the processes that show this value; return whether some may show it soon.

    While a process begins its program it shows neither environment nor command line, although
    `Popen` has returned to its caller. A thread of the kernel never shows them, so only a process
    that has just been started counts.
    """
    some_begin = False
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid():
                continue
            environment, command = process.environ(), " ".join(process.cmdline())
            if not (environment and command):
                some_begin |= time.time() - process.create_time() < _BEGIN_SECONDS
            elif environment.get(variable) == value and TRACKER not in command and spared not in command:
                process.kill()
                killed.append(command)
    return some_begin


def kill_forks_since(begun: float) -> None:
    """Kill the processes that were forked for this one after a time in seconds since the epoch.

    They have the environment, and the command line, of the helper of `multiprocessing` that forks.
    When they began is known to a second, so one that began just before may have to begin again.
    """
    for helper in psutil.Process().children():
        with contextlib.suppress(psutil.Error, OSError):
            if FORKSERVER in " ".join(helper.cmdline()):
                for fork in helper.children():
                    if fork.create_time() > begun - 1:
                        fork.kill()


@contextlib.contextmanager
def guarded_test(name: str) -> Iterator[None]:
    """Kill what has been started in the block if it fails; fixtures end their own processes."""
    import pytest  # here, because the guard has no need of it

    before, begun = os.environ.get(TEST), time.time()
    os.environ[TEST] = name
    try:
        yield
    # `pytest.fail`, and so `pytest.raises` if nothing is raised, raises what is no `Exception`.
    except (Exception, pytest.fail.Exception):
        kill_started_with(TEST, name, spared=FORKSERVER)
        kill_forks_since(begun)
        raise
    finally:
        if before is None:
            del os.environ[TEST]
        else:
            os.environ[TEST] = before


@contextlib.contextmanager
def guarded_run() -> Iterator[None]:
    """Let no process that is started meanwhile outlive this process, or the end of the block."""
    value = f"{os.getpid()}-{psutil.Process().create_time()}"
    os.environ[RUN] = value
    program = GUARD.format(directory=str(Path(__file__).parent), variable=RUN, value=value)
    with_other_value = {**os.environ, RUN: "guard"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, env=with_other_value
    ) as guard:
        yield
        assert guard.stdin is not None
        guard.stdin.close()
