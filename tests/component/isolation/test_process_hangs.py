"""Tests of trials in processes of their own that come to no result."""

from __future__ import annotations

import pytest
from process_run_kit import Slot

from dasktune.trainable.reporting.trial_messages import Ended, Failed

MESSAGE = "no result for 0.5 s (report_timeout_s)"


@pytest.fixture
def slot(tmp_path):
    slot = Slot(tmp_path)
    yield slot
    slot.warm.close()


def spin(config):
    import dasktune as tune

    tune.report({"x": 1})
    while True:
        pass


def sleep(config):
    import time

    import dasktune as tune

    tune.report({"x": 1})
    time.sleep(3600)


def keep_python_from_running(config):
    import ctypes

    import dasktune as tune

    tune.report({"x": 1})
    # Unlike CDLL it does not release the lock of the interpreter.
    ctypes.PyDLL(None).sleep(3600)


@pytest.mark.parametrize("do", [spin, sleep, keep_python_from_running])
def test_a_trial_that_hangs_has_failed_and_its_process_is_gone(slot, do):
    trial = slot.start(do, report_timeout_s=0.5, stop_grace=0.2)
    end = trial.end()
    assert isinstance(end, Failed)
    assert end.error.message == MESSAGE
    assert do.__name__ in end.error.traceback
    assert trial.values("x") == [1]
    assert not trial.run.in_use
    assert isinstance(slot.run(lambda config: None).messages[-1], Ended)


def test_a_process_is_not_guarded_any_longer_than_its_trial(slot):
    first = slot.run(lambda config: {"x": 1}, report_timeout_s=0.5)
    assert isinstance(first.messages[-1], Ended)

    def wait(config):
        import threading

        threading.Event().wait(2.0)
        return {"x": 2}

    second = slot.run(wait)
    assert isinstance(second.messages[-1], Ended)
    assert second.values("x") == [2]
