from __future__ import annotations

from math import inf

import pytest

from dasktune.cluster.membership.worker_monitor import HeartbeatAges

ADDRESS = "tcp://a:1"


def age(ages, *, heartbeat, age, now, answered=-inf):
    return ages.update({ADDRESS: (heartbeat, age)}, now, 2.0, lambda _: answered)[ADDRESS]


@pytest.fixture
def ages():
    ages = HeartbeatAges()
    assert age(ages, heartbeat=1000.0, age=0.5, now=100.0) == 0.5
    return ages


def test_a_worker_that_is_new_is_as_old_as_the_scheduler_says():
    assert age(HeartbeatAges(), heartbeat=1000.0, age=70.0, now=5.0) == 70.0


def test_silence_adds_up(ages):
    ages = [age(ages, heartbeat=1000.0, age=0.5 + n, now=100.0 + n) for n in range(1, 40)]
    assert ages == [0.5 + n for n in range(1, 40)]


@pytest.mark.parametrize("jump", [-500.0, 500.0])
def test_a_clock_that_jumps_makes_none_silent(ages, jump):
    assert age(ages, heartbeat=1000.0, age=max(0.0, 0.7 + jump), now=101.0) == 1.5
    # The next heartbeat is stamped by the new clock.
    assert age(ages, heartbeat=1001.0 + jump, age=0.1, now=102.0) == 0.1


def test_a_clock_that_was_put_back_hides_no_silence(ages):
    ages = [age(ages, heartbeat=1000.0, age=0.0, now=100.0 + n) for n in range(1, 40)]
    assert ages[-1] == 39.5


def test_who_did_not_look_has_seen_no_silence(ages):
    assert age(ages, heartbeat=1000.0, age=60.5, now=160.0) == 2.5
    assert age(ages, heartbeat=1060.0, age=60.0, now=160.2) == pytest.approx(0.2)


def test_a_worker_that_answers_is_not_silent(ages):
    assert age(ages, heartbeat=1000.0, age=1.5, now=101.0, answered=100.75) == 0.25
    assert age(ages, heartbeat=1000.0, age=2.5, now=102.0, answered=100.75) == 1.25


def test_a_worker_that_was_gone_is_new(ages):
    ages.update({}, 101.0, 2.0)
    assert age(ages, heartbeat=1000.0, age=70.0, now=102.0) == 70.0
