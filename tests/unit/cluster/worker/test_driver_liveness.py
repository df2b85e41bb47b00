from __future__ import annotations

import threading

import pytest

from dasktune.cluster.worker.driver_liveness import DriverLiveness

#: Seconds of silence. Short, since a test that waits for a silent driver really waits for them.
LIMIT = 0.01


class Clock:
    """Counts in tenths of the limit."""

    now = 100

    def __call__(self) -> float:
        return self.now * LIMIT / 10


@pytest.fixture
def clock():
    return Clock()


def fresh(contact):
    return contact.wait_until_alive()


def test_a_driver_that_has_just_called_is_in_touch(clock):
    contact = DriverLiveness(LIMIT, timer=clock)
    clock.now += 9
    assert fresh(contact)
    contact.on_call(1)
    clock.now += 9
    assert fresh(contact)
    assert contact.silence == pytest.approx(0.9 * LIMIT)


def test_a_silent_driver_is_out_of_touch(clock):
    contact = DriverLiveness(LIMIT, timer=clock)
    contact.on_call(1)
    clock.now += 11
    assert not fresh(contact)


def test_the_first_call_after_a_long_silence_proves_nothing_however_often_it_comes(clock):
    contact = DriverLiveness(LIMIT, timer=clock)
    contact.on_call(1)
    clock.now += 60
    contact.on_call(2)
    assert not fresh(contact)
    contact.on_call(2)
    assert not fresh(contact)
    contact.on_call(3)
    assert fresh(contact)


def test_a_new_trial_begins_with_a_driver_in_touch(clock):
    contact = DriverLiveness(LIMIT, timer=clock)
    clock.now += 60
    contact.on_call(7)
    contact.reset(2)
    assert fresh(contact)
    contact.on_call(1)
    assert fresh(contact)


def test_waiting_ends_with_the_call_that_proves_something(clock):
    contact = DriverLiveness(30.0, timer=clock)
    clock.now += 60
    contact.on_call(1)
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(contact.wait_until_alive()))
    thread.start()
    contact.on_call(2)
    thread.join(30)
    assert outcome == [True]


def test_waiting_without_a_call_ends():
    contact = DriverLiveness(0.0)
    assert not contact.wait_until_alive()
