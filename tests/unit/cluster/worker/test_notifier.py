from __future__ import annotations

import pytest

from dasktune.cluster.worker.endpoint import Notifier
from dasktune.trainable.reporting.outbox import Urgency

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
def notifier(loop):
    return Notifier(loop.send, loop.call_later, loop.cancel)


def test_results_ring_once_after_the_window(loop, notifier):
    notifier.batch_window = 0.5
    notifier.notify(WHENEVER)
    notifier.notify(WHENEVER)
    assert (loop.rings, loop.delays) == (0, [0.5])
    loop.pass_window()
    assert (loop.rings, loop.timers) == (1, {})


def test_what_is_urgent_rings_at_once_and_takes_what_gathers_along(loop, notifier):
    notifier.notify(WHENEVER)
    notifier.notify(NOW)
    assert (loop.rings, loop.timers) == (1, {})


@pytest.mark.parametrize("later", [WHENEVER, NOW])
def test_a_driver_that_has_been_called_is_not_called_again(loop, notifier, later):
    notifier.notify(NOW)
    notifier.notify(later)
    loop.pass_window()
    assert loop.rings == 1


def test_a_half_full_outbox_calls_a_driver_that_may_not_know(loop, notifier):
    notifier.notify(NOW)
    notifier.notify(AGAIN)
    assert loop.rings == 2


def test_a_driver_that_comes_by_itself_needs_no_bell(loop, notifier):
    notifier.notify(WHENEVER)
    notifier.on_poll()
    loop.pass_window()
    assert loop.rings == 0


@pytest.mark.parametrize("urgency", [NOW, WHENEVER])
def test_news_after_the_driver_has_come_ring_again(loop, notifier, urgency):
    notifier.notify(NOW)
    notifier.on_poll()
    notifier.notify(urgency)
    loop.pass_window()
    assert loop.rings == 2
