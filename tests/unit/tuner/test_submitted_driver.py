from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.control.issuer import this_user
from dasktune.errors import ControlError
from dasktune.tuner.submitted import DetachedExperiment
from dasktune.tuner.submitted_driver import DriverRun


def test_a_command_reaches_the_runner_as_soon_as_there_is_one():
    tuner: Any = SimpleNamespace(runner="runner")
    assert DriverRun(tuner, None, "").runner() == "runner"  # type: ignore[comparison-overlap]


def test_a_command_to_a_driver_that_failed_before_its_trials_could_start_is_refused():
    tuner: Any = SimpleNamespace(runner=None)
    driver = DriverRun(tuner, None, "")
    driver.ended.set()
    with pytest.raises(ControlError, match="ended before its trials could start"):
        driver.runner()


class Driver:
    """A driver on a cluster that knows some commands."""

    name, status = "run", "pending"

    def __init__(self, *known: str) -> None:
        self.known = known
        self.calls: list[tuple[Any, ...]] = []

    def call(self, name: str, *arguments: Any) -> str:
        if name not in self.known:
            raise ControlError(f"there is no command {name!r:.100}", "invalid")
        self.calls.append((name, *arguments))
        return "outcome"


def test_a_driver_takes_commands_with_their_issuers():
    driver: Any = Driver("issued_by")
    assert DetachedExperiment(driver).stop_trial("a") == "outcome"
    assert driver.calls == [("issued_by", this_user(), "stop_trial", "a")]
    with pytest.raises(ControlError, match="there is no command"):
        DetachedExperiment(Driver()).hold()  # type: ignore[arg-type]
