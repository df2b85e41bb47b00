from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.errors import ControlError
from dasktune.tuner.submitted_driver import wait_for_runner


def test_a_command_reaches_the_runner_as_soon_as_there_is_one():
    tuner: Any = SimpleNamespace(runner="runner")
    assert wait_for_runner(tuner, Event()) == "runner"


def test_a_command_to_a_driver_that_failed_before_its_trials_could_start_is_refused():
    ended = Event()
    ended.set()
    tuner: Any = SimpleNamespace(runner=None)
    with pytest.raises(ControlError, match="ended before its trials could start"):
        wait_for_runner(tuner, ended)
