from __future__ import annotations

import pytest

from dasktune.cluster.bell import Bell
from dasktune.trainable.outbox import Urgency

WHENEVER, NOW, AGAIN = Urgency


class Loop:
    """An event loop on which no time passes by itself."""

    def __init__(self):
        self.timers = {}
        self.rings = 0
        self.delays = []

    def send(self):
        self.rings += 1

    def call_later(self, delay, function):
        self.delays.append(delay)
        self.timers[len(self.delays)] = function
        return len(self.delays)

    def cancel(self, timer):
        self.timers.pop(timer, None)

    def pass_window(self):
        for timer in tuple(self.timers):
            self.timers.pop(timer)()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def bell(loop):
    return Bell(loop.send, loop.call_later, loop.cancel)


def test_results_ring_once_after_the_window(loop, bell):
    bell.window = 0.5
    bell.ring(WHENEVER)
    bell.ring(WHENEVER)
    assert (loop.rings, loop.delays) == (0, [0.5])
    loop.pass_window()
    assert (loop.rings, loop.timers) == (1, {})


def test_what_is_urgent_rings_at_once_and_takes_what_gathers_along(loop, bell):
    bell.ring(WHENEVER)
    bell.ring(NOW)
    assert (loop.rings, loop.timers) == (1, {})


@pytest.mark.parametrize("later", [WHENEVER, NOW])
def test_a_driver_that_has_been_called_is_not_called_again(loop, bell, later):
    bell.ring(NOW)
    bell.ring(later)
    loop.pass_window()
    assert loop.rings == 1


def test_a_half_full_outbox_calls_a_driver_that_may_not_have_heard(loop, bell):
    bell.ring(NOW)
    bell.ring(AGAIN)
    assert loop.rings == 2


def test_a_driver_that_comes_by_itself_needs_no_bell(loop, bell):
    bell.ring(WHENEVER)
    bell.answered()
    loop.pass_window()
    assert loop.rings == 0


@pytest.mark.parametrize("urgency", [NOW, WHENEVER])
def test_news_after_the_driver_has_come_ring_again(loop, bell, urgency):
    bell.ring(NOW)
    bell.answered()
    bell.ring(urgency)
    loop.pass_window()
    assert loop.rings == 2
