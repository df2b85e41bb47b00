"""Calls from another thread to an event loop, which is a list of what it was woken for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dasktune.cluster.connection.loop_calls import LoopCallQueue

Calls = tuple[LoopCallQueue, list[Callable[[], None]], list[int], list[BaseException]]


@pytest.fixture
def calls() -> Calls:
    woken: list[Callable[[], None]] = []
    crashes: list[BaseException] = []
    return LoopCallQueue(woken.append, crashes.append), woken, [], crashes


def test_many_calls_wake_the_loop_once_and_run_in_their_order(calls: Calls) -> None:
    queue, woken, done, _ = calls
    for number in range(3):
        queue.call_soon(done.append, number)
    assert (len(woken), done) == (1, [])
    woken.pop()()
    assert done == [0, 1, 2]
    queue.call_soon(done.append, 3)
    woken.pop()()
    assert done == [0, 1, 2, 3]


def test_what_was_added_waits_for_a_flush_or_for_the_next_call(calls: Calls) -> None:
    queue, woken, done, _ = calls
    queue.flush()
    queue.add(done.append, 0)
    queue.add(done.append, 1)
    assert woken == []
    queue.flush()
    queue.flush()
    assert len(woken) == 1
    queue.add(done.append, 2)
    # The loop has not taken them yet, so it takes this one with them.
    woken.pop()()
    assert done == [0, 1, 2]
    queue.add(done.append, 3)
    queue.call_soon(done.append, 4)
    woken.pop()()
    assert done == [0, 1, 2, 3, 4]


def test_a_call_that_fails_is_reported_and_the_next_ones_run(calls: Calls) -> None:
    queue, woken, done, crashes = calls
    queue.add(int, "x")
    queue.call_soon(done.append, 1)
    woken.pop()()
    assert (done, [type(one) for one in crashes]) == ([1], [ValueError])
