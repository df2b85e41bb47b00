"""Ctrl-C and SIGTERM at many moments from the import of dasktune to the first result.

The moment is a number of calls of Python functions in the main thread, so that the signal comes
within imports, callbacks of weak references, destructors and waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals are POSIX"),
]

#: ``make chaos`` tries a hundred moments.
CHAOS = "CHAOS_SEEDS" in os.environ

#: Names the script of a moment, and all that it has started.
VARIABLE = "DASKTUNE_TEST_MOMENT"

#: Gets a directory, the name of a signal and the number of a call. Its trials never end.
SCRIPT = """
import os, signal, sys, time

HOME, NUMBER, MOMENT = sys.argv[1], getattr(signal, sys.argv[2]), int(sys.argv[3])
calls = 0

def press():
    # Ctrl-C reaches all processes of a terminal, a batch system may mean only this one.
    sys.setprofile(None)
    if NUMBER == signal.SIGINT:
        os.killpg(0, NUMBER)
    else:
        os.kill(os.getpid(), NUMBER)

def count(frame, event, arg):
    global calls
    if event == "call":
        calls += 1
        if calls == MOMENT:
            press()

if __name__ == "__main__":
    sys.setprofile(count)

import dasktune as tune

def train(config):
    while True:
        tune.report({"loss": 1.0})
        time.sleep(0.01)

class FirstResult(tune.Callback):
    has_pressed = False

    def on_trial_result(self, iteration, trials, trial, result, **info):
        # A run takes more calls or fewer each time: then this is the last moment.
        if calls < MOMENT and not self.has_pressed:
            self.has_pressed = True
            print("FIRST", calls, flush=True)
            press()

if __name__ == "__main__":
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=HOME, name="e", callbacks=[FirstResult()]),
    ).fit()
    print("RETURNED", len(results), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a script has ended."""

    moment: int
    status: int
    seconds: float
    output: str
    errors: str
    left: list[str]

    def check(self, number: signal.Signals) -> None:
        """Check that it has obeyed the signal as a process must."""
        story = f"moment {self.moment}, {self.seconds:.1f} s:\n{self.output}\n{self.errors}"
        assert not self.left, f"{self.left} are left, {story}"
        returned = "RETURNED" in self.output
        if number == signal.SIGINT:
            # Python ends by the signal after a KeyboardInterrupt; a run that has begun returns.
            assert self.status == (0 if returned else -signal.SIGINT), story
            assert not returned or "interrupted: finishing" in self.errors, story
        else:
            # Outside of `fit` the signal has its usual effect.
            assert self.status in (-number, 128 + number), story
            assert not returned, story


def start(home: Path, number: signal.Signals, moment: int) -> Ended:
    place = home / f"{number.name}-{moment}"
    place.mkdir()
    script = place / "script.py"
    script.write_text(SCRIPT)
    mark = f"{os.getpid()}-{number.name}-{moment}"
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, str(script), str(place), number.name, str(moment)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, VARIABLE: mark},
        start_new_session=True,
        # A shell without job control has its background processes, and so these, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            output, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            errors += "\nIT WAS KILLED: it had not ended after 120 s"
    seconds = time.monotonic() - began
    return Ended(moment, process.returncode, seconds, output, errors, left_behind(mark))


def left_behind(mark: str) -> list[str]:
    """Return the processes that do not end by themselves within a short time."""
    deadline = time.monotonic() + 30
    while left := list(started_with(mark)):
        if time.monotonic() > deadline:
            return left
        threading.Event().wait(0.1)
    return []


def started_with(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(VARIABLE) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("number", "moments"), [(signal.SIGINT, 100 if CHAOS else 25), (signal.SIGTERM, 20 if CHAOS else 10)]
)
def test_a_signal_is_obeyed_whenever_it_comes(tmp_path: Path, number: signal.Signals, moments: int) -> None:
    whole = start(tmp_path, number, 10**12)
    whole.check(number)
    [calls] = [int(line.split()[1]) for line in whole.output.splitlines() if line.startswith("FIRST ")]
    # Two at a time: most of a start is waiting for processes.
    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(lambda k: start(tmp_path, number, 1 + calls * k // moments), range(moments))
        for ended in ends:
            ended.check(number)
