"""What a failed test has left running is ended."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time

import pytest
from leftover_processes import guarded_test

ENDLESS = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]


@pytest.mark.parametrize("error", [ValueError("no"), AssertionError("no"), pytest.fail.Exception("no")])
def test_the_processes_that_a_failed_test_has_started_are_killed(error):
    others = subprocess.Popen(ENDLESS)
    try:
        with (  # noqa: PT012 - the process must be started where the test fails
            pytest.raises(type(error), match="no"),
            guarded_test("a test that fails"),
        ):
            started = subprocess.Popen(ENDLESS)
            raise error
        assert started.wait(60) == -signal.SIGKILL
        assert others.poll() is None
    finally:
        others.kill()
        others.wait()


def test_the_forks_that_a_failed_test_has_started_are_killed_and_others_may_follow():
    forks = multiprocessing.get_context("forkserver")
    started, later = (forks.Process(target=time.sleep, args=(3600,)) for _ in range(2))
    with (  # noqa: PT012 - the process must be started where the test fails
        pytest.raises(ValueError, match="no"),
        guarded_test("a test that fails"),
    ):
        # This may start the process that forks, which is one for all tests.
        started.start()
        raise ValueError("no")
    started.join(60)
    assert started.exitcode == -signal.SIGKILL
    later.start()
    assert later.is_alive()
    later.kill()
    later.join(60)


def test_the_processes_of_a_test_that_passes_run():
    with guarded_test("a test that passes"):
        started = subprocess.Popen(ENDLESS)
    assert started.poll() is None
    started.kill()
    started.wait()
