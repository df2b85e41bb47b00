from __future__ import annotations

import contextlib
import threading

import pytest

from dasktune.trainable import async_exception as module
from dasktune.trainable.async_exception import AsyncRaise, TrialInterrupted


def run_in_thread(interrupter, function):
    """Call `function` in another thread; return the thread and the list of what it raised."""
    raised = []

    def body():
        try:
            interrupter.call(function)
        except BaseException as error:
            raised.append(type(error))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, raised


def test_a_busy_loop_is_interrupted():
    interrupter, running = AsyncRaise(), threading.Event()

    def loop():
        running.set()
        while True:
            try:
                pass
            except Exception:
                continue

    thread, raised = run_in_thread(interrupter, loop)
    assert running.wait(30)
    interrupter.interrupt()
    thread.join(30)
    assert raised == [TrialInterrupted]


def test_user_code_that_catches_everything_can_be_interrupted_again():
    interrupter, running, caught = AsyncRaise(), threading.Event(), threading.Event()

    def stubborn():
        try:
            running.set()
            while True:
                pass
        except BaseException:
            caught.set()
        while True:
            pass

    thread, raised = run_in_thread(interrupter, stubborn)
    assert running.wait(30)
    interrupter.interrupt()
    assert caught.wait(30)
    interrupter.interrupt()
    thread.join(30)
    assert raised == [TrialInterrupted]


def test_nothing_strikes_behind_the_shield_and_everything_at_its_end():
    interrupter, shielded, go_on = AsyncRaise(), threading.Event(), threading.Event()
    steps = []

    def user_code():
        interrupter.mask()
        try:
            shielded.set()
            assert go_on.wait(30)
            steps.append("shielded work done")
        finally:
            interrupter.unmask()
        steps.append("not reached")

    thread, raised = run_in_thread(interrupter, user_code)
    assert shielded.wait(30)
    interrupter.interrupt()
    go_on.set()
    thread.join(30)
    assert raised == [TrialInterrupted]
    assert steps == ["shielded work done"]


def test_an_interrupt_that_came_between_two_calls_ends_the_next_one():
    interrupter = AsyncRaise()
    interrupter.interrupt()
    with pytest.raises(TrialInterrupted):
        interrupter.call(pytest.fail, "must not run")
    assert interrupter.call(lambda: 1) == 1


def test_an_interrupt_that_was_settled_is_forgotten():
    interrupter = AsyncRaise()
    interrupter.interrupt()
    interrupter.discard_pending()
    assert interrupter.call(lambda x: x, 2) == 2


def interrupt_oneself(interrupter):
    """Set the exception so that it strikes before the next jump back or call ends."""
    with interrupter._lock:
        interrupter._set = True
    module._raise_in_thread(interrupter._ident, TrialInterrupted)


def test_what_has_not_struck_in_user_code_is_caught_on_the_threshold(monkeypatch):
    interrupter = AsyncRaise()
    real = interrupter._lock

    class StrikesWhenReleased:
        def __enter__(self):
            return real.__enter__()

        def __exit__(self, *args):
            real.__exit__(*args)
            if args[0] is None and not interrupter._armed and strikes:
                raise strikes.pop()

    strikes = [TrialInterrupted]
    interrupter._lock = StrikesWhenReleased()
    assert interrupter.call(lambda: 3) == 3
    assert not strikes
    assert not interrupter._armed
    with pytest.raises(TrialInterrupted):
        interrupter.call(lambda: 4)


def test_an_interrupt_in_the_last_moment_of_user_code_ends_the_next_call():
    interrupter, outcome = AsyncRaise(), []

    def user_code():
        try:
            interrupt_oneself(interrupter)
        finally:
            outcome.append("left")

    with pytest.raises(TrialInterrupted):
        interrupter.call(user_code)
    assert outcome == ["left"]
    assert interrupter.call(lambda: 5) == 5


def test_a_strike_before_the_threshold_ends_nothing_else(monkeypatch):
    interrupter = AsyncRaise()
    real, strikes = interrupter._leave, [TrialInterrupted]

    def leave():
        if strikes:
            raise strikes.pop()
        real()

    monkeypatch.setattr(interrupter, "_leave", leave)
    assert interrupter.call(lambda: 3) == 3
    assert not interrupter._armed
    with pytest.raises(TrialInterrupted):
        interrupter.call(lambda: 4)


def test_an_interrupt_that_user_code_has_swallowed_does_not_strike_again():
    interrupter = AsyncRaise()

    def user_code():
        with contextlib.suppress(TrialInterrupted):
            interrupt_oneself(interrupter)
        interrupter.mask()
        interrupter.unmask()
        return "went on"

    assert interrupter.call(user_code) == "went on"
    assert interrupter.call(lambda: 6) == 6


def test_the_shield_of_another_thread_changes_nothing():
    interrupter = AsyncRaise()

    def user_code():
        helper = threading.Thread(target=lambda: (interrupter.mask(), interrupter.unmask()))
        helper.start()
        helper.join()
        return interrupter._armed

    assert interrupter.call(user_code)
