from __future__ import annotations

from math import inf

import pytest

from dasktune.cluster.pulse import Pulse
from dasktune.placement import WorkerCapacity

ADDRESS = "tcp://a:1"


def age(pulse, *, heartbeat, age, now, answered=-inf):
    worker = WorkerCapacity(address=ADDRESS, heartbeat=heartbeat, age=age)
    return pulse.read({ADDRESS: worker}, now, lambda _: answered)[ADDRESS].age


@pytest.fixture
def pulse():
    pulse = Pulse(2.0)
    assert age(pulse, heartbeat=1000.0, age=0.5, now=100.0) == 0.5
    return pulse


def test_a_worker_that_is_new_is_as_old_as_the_scheduler_says():
    assert age(Pulse(2.0), heartbeat=1000.0, age=70.0, now=5.0) == 70.0


def test_silence_adds_up(pulse):
    ages = [age(pulse, heartbeat=1000.0, age=0.5 + n, now=100.0 + n) for n in range(1, 40)]
    assert ages == [0.5 + n for n in range(1, 40)]


@pytest.mark.parametrize("jump", [-500.0, 500.0])
def test_a_clock_that_jumps_makes_nobody_silent(pulse, jump):
    assert age(pulse, heartbeat=1000.0, age=max(0.0, 0.7 + jump), now=101.0) == 1.5
    # The next heartbeat is stamped by the new clock.
    assert age(pulse, heartbeat=1001.0 + jump, age=0.1, now=102.0) == 0.1


def test_a_clock_that_was_put_back_hides_no_silence(pulse):
    ages = [age(pulse, heartbeat=1000.0, age=0.0, now=100.0 + n) for n in range(1, 40)]
    assert ages[-1] == 39.5


def test_who_did_not_look_has_seen_no_silence(pulse):
    assert age(pulse, heartbeat=1000.0, age=60.5, now=160.0) == 2.5
    assert age(pulse, heartbeat=1060.0, age=60.0, now=160.2) == pytest.approx(0.2)


def test_a_worker_that_answers_is_not_silent(pulse):
    assert age(pulse, heartbeat=1000.0, age=1.5, now=101.0, answered=100.75) == 0.25
    assert age(pulse, heartbeat=1000.0, age=2.5, now=102.0, answered=100.75) == 1.25


def test_a_worker_that_was_gone_is_new(pulse):
    pulse.read({}, 101.0)
    assert age(pulse, heartbeat=1000.0, age=70.0, now=102.0) == 70.0
