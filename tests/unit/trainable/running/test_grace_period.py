"""The orders in which a clean-up and its grace period end."""

from __future__ import annotations

import threading

import pytest

from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.running.grace_period import GracePeriod

PATIENCE = 30.0


class Watched:
    """A grace period whose time passes when the test says so."""

    def __init__(self):
        self.calls = []
        self.waits = threading.Semaphore(0)
        self.passes = threading.Semaphore(0)
        self.abandoning, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.closed = False
        self.period = GracePeriod(
            1.0,
            trial_id="t1",
            interrupt=lambda: self.calls.append("interrupt"),
            abandon=self.abandon,
            wait=self.wait,
        )
        self.period.start()
        assert self.waits.acquire(timeout=PATIENCE)

    def wait(self, seconds):
        self.calls.append(seconds)
        self.waits.release()
        assert self.passes.acquire(timeout=PATIENCE)
        return self.closed

    def abandon(self):
        self.abandoning.set()
        assert self.gate.wait(PATIENCE)
        self.calls.append("abandon")

    def finish(self):
        """Let the rest of the time pass, and wait for the thread of the grace period."""
        self.passes.release()
        for thread in threading.enumerate():
            if thread.name == "dasktune-t1-grace":
                thread.join(PATIENCE)

    def pass_time(self):
        """Let the first time pass, and return when the second one has begun."""
        self.passes.release()
        assert self.waits.acquire(timeout=PATIENCE)


def test_user_code_that_returns_in_time_is_left_alone():
    watched = Watched()
    watched.period.close()
    watched.closed = True
    watched.finish()
    assert watched.calls == [1.0]


def test_user_code_that_returns_after_the_interrupt_is_not_abandoned():
    watched = Watched()
    watched.pass_time()
    watched.period.close()
    # Its time is over at the same moment: the close was first.
    watched.finish()
    assert watched.calls == [1.0, "interrupt", 1.0]


def test_user_code_that_returns_while_it_is_abandoned_waits_and_learns_of_it():
    watched = Watched()
    watched.gate.clear()
    watched.pass_time()
    watched.passes.release()
    assert watched.abandoning.wait(PATIENCE)
    threading.Timer(0.01, watched.gate.set).start()
    with pytest.raises(TrialInterrupted):
        watched.period.close()
    assert watched.calls == [1.0, "interrupt", 1.0, "abandon"]
