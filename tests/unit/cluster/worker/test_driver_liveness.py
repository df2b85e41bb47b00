from __future__ import annotations

import threading

import pytest

from dasktune.cluster.worker.driver_liveness import DriverLiveness


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def fresh(contact):
    with contact._changed:
        return contact._is_fresh()


def test_a_driver_that_has_just_called_is_in_touch(clock):
    contact = DriverLiveness(10.0, timer=clock)
    clock.now += 9
    assert fresh(contact)
    contact.on_call(1)
    clock.now += 9
    assert fresh(contact)
    assert contact.silence == 9


def test_a_silent_driver_is_out_of_touch(clock):
    contact = DriverLiveness(10.0, timer=clock)
    contact.on_call(1)
    clock.now += 11
    assert not fresh(contact)


def test_the_first_call_after_a_long_silence_proves_nothing_however_often_it_comes(clock):
    contact = DriverLiveness(10.0, timer=clock)
    contact.on_call(1)
    clock.now += 60
    contact.on_call(2)
    assert not fresh(contact)
    contact.on_call(2)
    assert not fresh(contact)
    contact.on_call(3)
    assert fresh(contact)


def test_a_new_trial_begins_with_a_driver_in_touch(clock):
    contact = DriverLiveness(10.0, timer=clock)
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


def test_waiting_in_vain_comes_to_an_end():
    contact = DriverLiveness(0.0)
    assert not contact.wait_until_alive()
