"""Tests of how much of the processor the dashboard takes from the driver."""

from __future__ import annotations

import pytest

from dasktune.dashboard.server.cpu_budget import CpuBudget


class Seconds:
    """Clocks that are set by hand: of the wall, of the process, and of the dashboard's thread."""

    def __init__(self):
        self.wall = self.process = self.thread = 0.0

    def pass_by(self, seconds, *, own=0.0, others=0.0):
        self.wall += seconds
        self.process += own + others
        self.thread += own


@pytest.fixture
def seconds():
    return Seconds()


@pytest.fixture
def pace(seconds):
    return CpuBudget(lambda: seconds.wall, lambda: seconds.process, lambda: seconds.thread)


def test_beside_an_idle_driver_there_is_no_need_to_rest(pace, seconds):
    with pace.measured():
        seconds.pass_by(1.0, own=1.0)
    assert pace.pause_seconds() == 0.0
    assert not pace.is_contended
    assert pace.figure_share == 1.0


def test_a_busy_driver_has_nearly_all_of_the_time(pace, seconds):
    with pace.measured():
        seconds.pass_by(0.1, own=0.05, others=0.05)
    assert pace.pause_seconds() == pytest.approx(0.05 * 99)
    assert pace.is_contended
    assert pace.figure_share < 1.0
    # What was worked is accounted for.
    seconds.pass_by(4.95, others=4.95)
    assert pace.pause_seconds() == 0.0


def test_who_waits_is_served_sooner(pace, seconds):
    with pace.measured():
        seconds.pass_by(0.1, own=0.05, others=0.05)
    assert 0.0 < pace.pause_seconds(hurry=True) < 0.5


def test_what_was_worked_elsewhere_is_not_taken_for_the_driver_s(pace, seconds):
    seconds.pass_by(1.0, own=0.9, others=0.1)
    assert pace.pause_seconds(0.9) == 0.0


def test_what_fails_has_been_work_too(pace, seconds):
    def fail():
        with pace.measured():
            seconds.pass_by(0.2, own=0.1, others=0.1)
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert pace.pause_seconds() == pytest.approx(0.1 * 99)
